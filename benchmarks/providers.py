"""Who is compared: our Triton kernels, the reference in eager and compiled, torch's own ops, and liger-kernel."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from liger.declare import Kernel, Op, load
from liger.registry import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to compute an op.

    Attributes:
        name: what tables call it.
        fn: takes the tensors and options of the op.
        kernel: our declaration, if it is ours.
        overwrites: it writes into its arguments, so it gets its own.
        capture: it can be captured in a CUDA graph; one that waits for the device cannot.
        compiled: by ``torch.compile``, which takes seconds.
    """

    name: str
    fn: Callable[..., Any]
    kernel: Kernel | None = None
    overwrites: bool = False
    capture: bool = True
    compiled: bool = False


def providers(op: Op, kernel: Kernel, device: str) -> Iterator[Provider]:
    """All that are installed and serve the op, ours first."""
    yield Provider(name="ours", fn=functools.partial(load(op.public), kernel=kernel.name), kernel=kernel)
    reference = load(op.reference)
    yield Provider(name="eager", fn=reference)
    # inductor on a CPU would need a C++ compiler and say nothing about a GPU
    backend = "inductor" if device == "cuda" else "aot_eager"
    torch._dynamo.reset()
    compiled = torch.compile(reference, dynamic=False, backend=backend)
    yield Provider(name="torch.compile", fn=compiled, compiled=True)
    if op.name == "rms_norm":
        yield Provider(name="F.rms_norm", fn=_torch_rms_norm)
    if device == "cuda" and op.name in PEERS and importlib.util.find_spec("liger_kernel"):
        waits = op.name in ("cross_entropy", "linear_cross_entropy")
        yield Provider(name="liger-kernel", fn=PEERS[op.name], overwrites=True, capture=not waits)


def kernels() -> list[Kernel]:
    """Every registered Triton kernel."""
    return [k for op in registry().ops for k in registry().kernels(op) if k.needs.interpreter]


def _torch_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


# -- liger-kernel, as of 0.8.5 -----------------------------------------------------------------------------------------
@functools.cache
def _liger(name: str) -> Any:
    module = "liger_kernel.transformers.rope" if name == "liger_rotary_pos_emb" else "liger_kernel.ops"
    return getattr(importlib.import_module(module), name)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> Any:
    return _liger("LigerRMSNormFunction").apply(x, weight, eps, 0.0, "llama", True)


def _silu_mul(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _liger("LigerSiLUMulFunction").apply(gate, up)


def _gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _liger("LigerGELUMulFunction").apply(gate, up)


def _rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    return _liger("liger_rotary_pos_emb")(q, k, cos, sin)


def _cross_entropy(logits: torch.Tensor, target: torch.Tensor, weight: None) -> Any:
    return _liger("LigerCrossEntropyFunction").apply(logits, target, weight)[0]


def _linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: None, class_weight: None
) -> Any:
    return _liger("LigerFusedLinearCrossEntropyFunction").apply(hidden, weight, target, bias, class_weight)[0]


PEERS: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm,
    "silu_mul": _silu_mul,
    "gelu_mul": _gelu_mul,
    "rope": _rope,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
}
