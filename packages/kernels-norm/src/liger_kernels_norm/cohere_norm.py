"""Cohere's norm: y = (x - mean(x)) / sqrt(var(x) + eps) * w over the last dimension; no bias, and w may differ by head.

Source: LayerNorm (Ba, Kiros and Hinton 2016) as Cohere's models have it; with a weight (N, H) it is their norm of
queries and keys, where x (..., N, H) has N heads.
Shapes: x (..., H) with w (H,), or x (..., N, H) with w (N, H); y as x. R is the number of rows, the product of the
leading dimensions.
Precision: everything in fp32, rounded once to x.dtype. Upstream computes the mean and then the mean of (x - mean)^2,
which the reference repeats, so it has upstream's bits; ``layer_norm`` may differ from it in the last one.
Gradients: as of ``layer_norm``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_eps, public
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input
from liger_kernels_norm._distributed import run_rows
from liger_kernels_norm.rms_norm import rows_like_hidden_states


# -- Reference ---------------------------------------------------------------------------------------------------------
def cohere_norm_reference(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-5) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's module."""
    h = acc(x)
    mean = h.mean(-1, keepdim=True)
    variance = (h - mean).pow(2).mean(-1, keepdim=True)
    h = (h - mean) * torch.rsqrt(variance + eps)
    return (acc(weight) * h).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("cohere_norm")
def cohere_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-5, kernel: str | None = None) -> torch.Tensor:
    """Mean-subtracting norm over the last dimension, without a bias.

    Args:
        x: (..., H) or (..., N, H), floating; any leading shape, any strides, 0 rows included.
            A DTensor gives one placed as it is, but replicated where dimensions of weight were split.
        weight: (H,), or (N, H) for heads, floating, possibly of another dtype than x.
        eps: added to the variance.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x.

    Raises:
        ValueError: shapes do not match, or ``eps`` is negative or not finite,
            or DTensors lie on different meshes.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger import ops
        >>> ops.cohere_norm(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(3), eps=0.0)
        tensor([[-1.2247,  0.0000,  1.2247]])
    """
    eps = check_eps("cohere_norm", eps)
    check_input("cohere_norm", x)
    shapes = tuple(x.shape[-1:]), tuple(x.shape[-2:])
    check_beside("cohere_norm", "weight", weight, x, *shapes, why="the last of x")
    return run_rows("cohere_norm", (x, weight), {"eps": eps}, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def cohere_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, weights around 1. Variant "heads": x (R, 3, H), weight (3, H)."""
    heads = (3,) if variant == "heads" else ()
    x = rows_like_hidden_states(R * (heads or (1,))[0], H, generator).view(R, *heads, H)
    weight = 1 + 0.2 * torch.randn(*heads, H, generator=generator)
    return (x.to(device, dtype), weight.to(device, dtype)), {}
