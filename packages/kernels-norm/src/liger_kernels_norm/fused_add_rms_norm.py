"""Residual sum and RMSNorm together: s = x + residual, y = rms_norm(s); both are returned.

Source: the two lines of every pre-norm decoder layer; RMSNorm as in ``liger.ops.rms_norm``.
Shapes: x, residual, s and y (..., H), weight (H,) or None. R is the number of rows, the product of the leading ones.
Precision: s is rounded to the dtype promoted from x and residual, and the norm is taken of what was rounded: both
results have the bits of the two separate steps; ``cast`` and ``offset`` as in ``rms_norm``.
Gradients: dx = dresidual = (gradient of rms_norm at s from dy) + ds, added in fp32 and rounded once.
Memory: s is kept for the backward, and no other tensor of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, check_number, public
from liger_kernels_norm._arguments import check_beside, check_input
from liger_kernels_norm._distributed import run_rows
from liger_kernels_norm.rms_norm import CASTS, rms_norm_reference, rows_like_hidden_states


# -- Reference ---------------------------------------------------------------------------------------------------------
def fused_add_rms_norm_reference(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch."""
    s = x + residual
    return rms_norm_reference(s, weight, eps=eps, cast=cast, offset=offset), s


# -- Public ------------------------------------------------------------------------------------------------------------
@public("fused_add_rms_norm")
def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s = x + residual`` and RMSNorm of it, in one pass.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
            A DTensor gives two placed as it is, but replicated where its last dimension was split.
        residual: the same shape and device, possibly another dtype.
        weight: (H,), floating, possibly of another dtype; None leaves it out.
        eps: added to the mean square.
        cast: order of casts, one of those of ``rms_norm``.
        offset: added to the weight in fp32 (1 for Gemma).
        kernel: choose a kernel by hand.

    Returns:
        y (..., H), the normalised sum, in the dtype that ``rms_norm`` gives it; s (..., H), the sum, in the dtype
        promoted from x and residual.

    Raises:
        ValueError: shapes do not match, an unknown ``cast``, or ``eps`` is negative or not finite,
            or DTensors lie on different meshes.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger import ops
        >>> ops.fused_add_rms_norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]), eps=0.0)
        (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))
    """
    op = "fused_add_rms_norm"
    check_choice(op, "cast", cast, CASTS)
    eps = check_eps(op, eps)
    offset = check_number(op, "offset", offset)
    check_input(op, x)
    check_beside(op, "residual", residual, x, x.shape, why="like x")
    if weight is not None:
        check_beside(op, "weight", weight, x, x.shape[-1:], why="the last of x")
    options = {"eps": eps, "cast": cast, "offset": offset}
    return run_rows(op, (x, residual, weight), options, sizes={"H": x.shape[-1]}, kernel=kernel, rows=2)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def fused_add_rms_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn. Variant "weightless", with an offset of 0.5 so that it is seen."""
    x, residual = (rows_like_hidden_states(R, H, generator).to(device, dtype) for _ in range(2))
    if variant == "weightless":
        return (x, residual, None), {"offset": 0.5}
    return (x, residual, (1 + 0.2 * torch.randn(H, generator=generator)).to(device, dtype)), {}


def fused_add_rms_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x and residual, write y and s; read s, dy and ds, write the gradient that both inputs share."""
    x, _, weight = tensors
    assert x is not None
    w = 0 if weight is None else weight.nbytes
    return {"forward": 4 * x.nbytes + w, "backward": 4 * x.nbytes + 2 * w}
