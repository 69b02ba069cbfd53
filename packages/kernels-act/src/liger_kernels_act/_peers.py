"""Other libraries' gated activations, for benchmarks."""

from __future__ import annotations

import torch

from liger.bench import peer


@peer("liger_kernel", overwrites=True)  # its backward writes into the inputs
def liger_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate, up)  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True)
def liger_gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5; the tanh approximation."""
    from liger_kernel.ops import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(gate, up)  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True)
def liger_silu_mul_packed(x: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5; the "gate_up" layout."""
    from liger_kernel.ops import LigerFusedGateUpSiLUMulFunction

    return LigerFusedGateUpSiLUMulFunction.apply(x)  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True)
def liger_relu_squared(x: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerReLUSquaredFunction

    return LigerReLUSquaredFunction.apply(x)  # type: ignore[no-any-return]


@peer("liger_kernel")
def liger_softmax(x: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5; up to 65536 columns."""
    from liger_kernel.ops import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)  # type: ignore[no-any-return]


@peer("quack")
def quack_softmax(x: torch.Tensor) -> torch.Tensor:
    """quack 0.6."""
    from quack.softmax import softmax

    return softmax(x)  # type: ignore[no-any-return]


@peer("liger_kernel")
def liger_sparsemax(x: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5; it sorts with torch."""
    from liger_kernel.ops import LigerSparsemaxFunction

    return LigerSparsemaxFunction.apply(x, -1)  # type: ignore[no-any-return]
