"""Other libraries' norms, for benchmarks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from liger.bench import peer

EPS = 1e-6


@peer("torch", cuda=False)
def torch_rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
    """torch's own."""
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


@peer("liger_kernel", overwrites=True)  # its backward writes into the output's gradient
def liger_rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
    """liger-kernel 0.8.5: offset 0, llama's casts, in place."""
    from liger_kernel.ops import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", True)  # type: ignore[no-any-return]


@peer("quack")
def quack_rms_norm(x: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
    """quack-kernels 0.6.5."""
    from quack import rmsnorm

    return rmsnorm(x, weight, eps=EPS)  # type: ignore[no-any-return]


@peer("liger_kernel")
def liger_fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """liger-kernel 0.8.5: offset 0, llama's casts, not in place."""
    from liger_kernel.ops import LigerFusedAddRMSNormFunction

    return LigerFusedAddRMSNormFunction.apply(x, residual, weight, EPS, 0.0, "llama", False)  # type: ignore[no-any-return]


@peer("quack")
def quack_fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """quack-kernels 0.6.5."""
    from quack import rmsnorm

    return rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)  # type: ignore[no-any-return]


@peer("torch", cuda=False)
def torch_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """torch's own."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@peer("liger_kernel")
def liger_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, 1e-5)  # type: ignore[no-any-return]


class _QuackLayerNorm(torch.autograd.Function):
    """quack offers the two kernels; their parameters are fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        from quack.rmsnorm import layernorm_fwd

        wide = weight.float()
        y, rstd, mean = layernorm_fwd(x, wide, bias.float(), 1e-5, return_rstd=True, return_mean=True)
        ctx.save_for_backward(x, wide, rstd, mean)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from quack.rmsnorm import layernorm_bwd

        x, weight, rstd, mean = ctx.saved_tensors
        return tuple(t.to(x.dtype) for t in layernorm_bwd(x, weight, dy, rstd, mean, has_bias=True))


@peer("quack")
def quack_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """quack-kernels 0.6.5."""
    return _QuackLayerNorm.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


@peer("liger_kernel")
def liger_dyt(
    x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerDyTFunction

    return LigerDyTFunction.apply(x, alpha, weight, bias)  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True)  # its backward writes into the output's gradient
def liger_poly_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5, in place."""
    from liger_kernel.ops import LigerPolyNormFunction

    return LigerPolyNormFunction.apply(x, weight, bias, EPS, True)  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True)  # its backward writes into the output's gradient
def liger_modulated_rms_norm(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """liger-kernel 0.8.5: offset 0, llama's casts, in place."""
    from liger_kernel.ops import LigerModulatedRMSNormFunction

    return LigerModulatedRMSNormFunction.apply(x, weight, scale, shift, EPS, 0.0, "llama", True)  # type: ignore[no-any-return]


@peer("torch", cuda=False)
def torch_group_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, num_groups: int = 32
) -> torch.Tensor:
    """torch's own."""
    return F.group_norm(x, num_groups, weight, bias, 1e-5)


@peer("liger_kernel")
def liger_group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, num_groups: int = 32) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], num_groups, 1e-5)  # type: ignore[no-any-return]
