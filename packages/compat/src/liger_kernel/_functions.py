"""The autograd Functions: what is called through ``.apply`` with the peer's positional arguments, as functions.

Gradients go through ``liger.ops``; none of the caller's tensors is ever overwritten, whatever ``in_place`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from liger import ops
from liger.numerics import acc
from liger_kernel import _said

OURS = "nothing of the caller's is overwritten, and launch settings are Liger's"
CHOSEN = "a kernel is chosen by the tensors of the call; kernel= of the function in liger.ops names one"


class Applied:
    """Stands for an ``autograd.Function``: has ``apply`` and nothing else."""

    apply: Callable[..., Any]


def applied(name: str, function: Callable[..., Any]) -> type[Applied]:
    """A class whose ``apply`` is a function."""
    members = {"apply": staticmethod(function), "__doc__": function.__doc__, "__module__": function.__module__}
    return type(name, (Applied,), members)


# -- Norms -------------------------------------------------------------------------------------------------------------
def _added(name: str, W: Tensor | None, offset: float) -> float:
    """The offset, which in the peer is that of the weight: there is none without a weight."""
    if W is None:
        _said.idle(name, "there is no weight that it would be added to", offset=(offset, 0.0))
    return offset if W is not None else 0.0


def rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
    row_mode: bool | None = None,
) -> Tensor:
    """RMSNorm: X (..., H), W (H,) or None -> (..., H)."""
    _said.idle("rms_norm", OURS, row_mode=(row_mode, None))
    offset = _added("rms_norm", W, offset)
    return ops.rms_norm(X, W, eps=eps, cast=casting_mode, offset=offset)  # type: ignore[no-any-return]


def fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """Residual sum S = X + R, (..., H), and RMSNorm of it: (Y, S)."""
    _said.idle("fused_add_rms_norm", OURS, in_place=(in_place, False))
    return ops.fused_add_rms_norm(X, R, W, eps=eps, cast=casting_mode, offset=offset)  # type: ignore[no-any-return]


def modulated_rms_norm(
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> Tensor:
    """RMSNorm of X (..., H) times ``1 + scale`` plus ``shift``, each (H,), (1, H), (B, H), (rows, H) or as X.

    Raises:
        ValueError: an unknown ``casting_mode``, or shapes do not match.
    """
    cast = {"llama": "llama", "gemma": "fp32-weight"}.get(casting_mode)
    offset = _added("modulated_rms_norm", W, offset)
    shift = torch.zeros_like(scale) if shift is None else shift
    scale, shift = (t.reshape(t.shape[-1]) if t.numel() == t.shape[-1] else t for t in (scale, shift))
    rows = X.numel() // X.shape[-1]
    x = X.reshape(-1, X.shape[-1]) if scale.dim() == 2 and scale.shape[0] == rows else X
    if scale.dim() == 1:
        scale, shift, x = scale[None], shift[None], X.reshape(1, -1, X.shape[-1])
    if cast is None or (offset and cast == "llama"):  # there the sum with it is fp32, and the product is rounded
        scale, shift = (t.view(*t.shape[:-1], *(1,) * (x.dim() - t.dim()), t.shape[-1]) for t in (scale, shift))
        return (rms_norm(x, W, eps, offset, casting_mode) * (1 + scale) + shift).view(X.shape)
    weight = acc(W) + offset if W is not None and offset else W
    return ops.modulated_rms_norm(x, scale, shift, weight, eps=eps, cast=cast).view(X.shape)  # type: ignore[no-any-return]


def layer_norm(X: Tensor, W: Tensor | None, B: Tensor | None, eps: float) -> Tensor:
    """LayerNorm: X (..., H), W and B (H,)."""
    return ops.layer_norm(X, W, B, eps=eps)  # type: ignore[no-any-return]


def group_norm(
    X: Tensor,
    affine_scaling_weight: Tensor | None,
    affine_shifting_bias: Tensor | None,
    num_channels: int,
    num_groups: int,
    eps: float,
) -> Tensor:
    """GroupNorm: X (N, C, ...), weight and bias (C,).

    Raises:
        ValueError: ``num_channels`` is not that of X.
    """
    if X.shape[1] != num_channels:
        raise ValueError(f"group_norm: num_channels is {num_channels}, but X has shape {tuple(X.shape)}")
    return ops.group_norm(X, affine_scaling_weight, affine_shifting_bias, num_groups=num_groups, eps=eps)  # type: ignore[no-any-return]


def poly_norm(X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True) -> Tensor:
    """PolyNorm: X (..., H), W (3,), B (1,) or ()."""
    return ops.poly_norm(X, W, B.reshape(1), eps=eps)  # type: ignore[no-any-return]


def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None = None) -> Tensor:
    """Dynamic tanh: x (..., H), alpha (1,), gamma and beta (H,)."""
    return ops.dyt(x, alpha, gamma, beta)  # type: ignore[no-any-return]


# -- Rotary embeddings -------------------------------------------------------------------------------------------------
def batched(*tables: Tensor) -> tuple[Tensor, ...]:
    """Tables (1 or B, T, ...) of those that may come without a batch."""
    return tuple(table[None] if table.dim() == 2 else table for table in tables)


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotated q (B, Nq, T, D) and k (B, Nk, T, D); cos and sin (1 or B, T, D_rot), or (T, D_rot).

    Raises:
        ValueError: ``rotary_dim`` is not the number of columns of cos.
    """
    if position_ids is not None:
        _said.once("rope: position_ids do nothing, cos and sin are those of the positions already")
    if rotary_dim is not None and rotary_dim != cos.shape[-1]:
        raise ValueError(f"rope: rotary_dim is {rotary_dim}, but cos has shape {tuple(cos.shape)}")
    return ops.rope(q, k, *batched(cos, sin), unsqueeze_dim=unsqueeze_dim)  # type: ignore[no-any-return]


def qwen2vl_mrope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int], unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotated by positions on three axes: cos and sin (3, B, T, D)."""
    return ops.mrope(q, k, cos, sin, sections=tuple(mrope_section), unsqueeze_dim=unsqueeze_dim)  # type: ignore[no-any-return]


def llama4_rope(q: Tensor, k: Tensor, freqs_cis: Tensor, BLOCK_SIZE: int | None = None) -> tuple[Tensor, Tensor]:
    """Rotated q and k (B, T, N, D) by complex numbers (B or 1, T, D / 2), or (T, D / 2)."""
    _said.idle("llama4_rope", OURS, BLOCK_SIZE=(BLOCK_SIZE, None))
    return ops.rope_complex(q, k, *batched(freqs_cis), unsqueeze_dim=2)  # type: ignore[no-any-return]


# -- Activations -------------------------------------------------------------------------------------------------------
def silu_mul(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    """``silu(a * gate_multiplier) * b * down_multiplier``, (..., H)."""
    return ops.silu_mul(a, b, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)  # type: ignore[no-any-return]


def silu_mul_packed(y: Tensor, in_place: bool = False) -> Tensor:
    """``silu`` of the first half of the columns times the second: (..., 2 H) -> (..., H)."""
    _said.idle("silu_mul_packed", OURS, in_place=(in_place, False))
    return ops.silu_mul_packed(y)  # type: ignore[no-any-return]


def gelu_mul(a: Tensor, b: Tensor) -> Tensor:
    """``gelu(a) * b`` with GELU's tanh form, (..., H)."""
    return ops.gelu_mul(a, b, approximate="tanh")  # type: ignore[no-any-return]


def relu_squared(x: Tensor) -> Tensor:
    """``relu(x) ** 2``, (...)."""
    return ops.relu_squared(x)  # type: ignore[no-any-return]


def mlp(
    input: Tensor,  # noqa: A002  (the peer's name)
    gate_weight: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
) -> Tensor:
    """The gated MLP: three matrix products around ``silu_mul``; input (..., H), weights (F, H), (F, H), (H, F)."""
    gate, up = (torch.nn.functional.linear(input, weight) for weight in (gate_weight, up_weight))
    return torch.nn.functional.linear(silu_mul(gate, up, gate_multiplier, down_multiplier), down_weight)


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return ops.softmax(x)  # type: ignore[no-any-return]


def sparsemax(x: Tensor, dim: int = -1) -> Tensor:
    """Sparsemax along ``dim``."""
    return ops.sparsemax(x.movedim(dim, -1)).movedim(-1, dim)  # type: ignore[no-any-return]


LigerRMSNormFunction = applied("LigerRMSNormFunction", rms_norm)
LigerFusedAddRMSNormFunction = applied("LigerFusedAddRMSNormFunction", fused_add_rms_norm)
LigerModulatedRMSNormFunction = applied("LigerModulatedRMSNormFunction", modulated_rms_norm)
LigerLayerNormFunction = applied("LigerLayerNormFunction", layer_norm)
LigerGroupNormFunction = applied("LigerGroupNormFunction", group_norm)
LigerPolyNormFunction = applied("LigerPolyNormFunction", poly_norm)
LigerDyTFunction = applied("LigerDyTFunction", dyt)
LigerRopeFunction = applied("LigerRopeFunction", rope)
LigerQwen2VLMRopeFunction = applied("LigerQwen2VLMRopeFunction", qwen2vl_mrope)
LigerLlama4RopeFunction = applied("LigerLlama4RopeFunction", llama4_rope)
LigerSiLUMulFunction = applied("LigerSiLUMulFunction", silu_mul)
LigerFusedGateUpSiLUMulFunction = applied("LigerFusedGateUpSiLUMulFunction", silu_mul_packed)
LigerGELUMulFunction = applied("LigerGELUMulFunction", gelu_mul)
LigerReLUSquaredFunction = applied("LigerReLUSquaredFunction", relu_squared)
LigerMLPFunction = applied("LigerMLPFunction", mlp)
LigerSoftmaxFunction = applied("LigerSoftmaxFunction", softmax)
LigerSparsemaxFunction = applied("LigerSparsemaxFunction", sparsemax)
