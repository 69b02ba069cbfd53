"""Modulated RMSNorm: y = rms_norm(x) * (1 + scale) + shift, with a scale and a shift for each sample.

Source: Peebles and Xie 2023, "Scalable Diffusion Models with Transformers", section 3.2 (adaLN); Zhang and Sennrich
2019, eq. 4 (RMSNorm).
Shapes: x, y (*B, ..., H); scale, shift (*B, H), where *B are any number of x's first dimensions: (B, H) for one of each
sample, the shape of x for one of each token; w (H,) or None. A sample is what shares a scale.
Precision: statistics in fp32, and the roundings named by ``cast``:

=============  ==============================================================================  =======================
cast           what is rounded                                                                 dtype of y
=============  ==============================================================================  =======================
"llama"        as separate steps do it: x / rms(x) to x.dtype, its product with w, 1 + scale,  promoted from all
               their product, and the sum with shift                                           tensors
"fp32-weight"  everything in fp32, rounded once                                                x.dtype
=============  ==============================================================================  =======================

Gradients: with xhat = x / rms(x), g = dy * (1 + scale) * w and P = sum of dy * xhat over a sample's rows:
dx = (g - xhat * mean(g * xhat)) / rms(x), dscale = w * P, dshift = sum of dy over a sample's rows, and
dw = sum over samples of (1 + scale) * P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, check_tensor, public, run
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input

CASTS = ("llama", "fp32-weight")


# -- Reference ---------------------------------------------------------------------------------------------------------
def modulated_rms_norm_reference(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
) -> torch.Tensor:
    """The definition, in plain torch; with cast "llama" bit-equal to upstream's modules."""
    shape = (*scale.shape[:-1], *(1,) * (x.dim() - scale.dim()), x.shape[-1])
    scale, shift = scale.reshape(shape), shift.reshape(shape)
    h = acc(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if cast == "llama":
        h = h.to(x.dtype)
        h = h if weight is None else weight * h
        return h * (1 + scale) + shift
    h = h if weight is None else acc(weight) * h
    return (h * (1 + acc(scale)) + acc(shift)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("modulated_rms_norm")
def modulated_rms_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    kernel: str | None = None,
) -> torch.Tensor:
    """RMSNorm over the last dimension, times ``1 + scale``, plus ``shift``.

    Args:
        x: (*B, ..., H), floating; any strides, 0 samples or tokens included.
        scale: (*B, H), floating: H columns for each of any number of x's first dimensions.
        shift: the shape of scale, floating.
        weight: (H,), floating; None leaves it out.
        eps: added to the mean square.
        cast: order of casts, one of ``CASTS``; see the module's docstring.
        kernel: choose a kernel by hand.

    Returns:
        The shape of x; of the promoted dtype of all tensors for cast "llama", of x.dtype for "fp32-weight".

    Raises:
        ValueError: shapes do not match, an unknown ``cast``, or ``eps`` is negative or not finite.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> x, scale, shift = torch.tensor([[[3.0, 3.0], [4.0, -4.0]]]), torch.tensor([[1.0, 0.0]]), torch.ones(1, 2)
        >>> liger.ops.modulated_rms_norm(x, scale, shift, eps=0.0)  # one sample of two tokens
        tensor([[[3., 2.],
                 [3., 0.]]])
    """
    op = "modulated_rms_norm"
    check_choice(op, "cast", cast, CASTS)
    eps = check_eps(op, eps)
    check_input(op, x, 2)
    check_tensor(op, "scale", scale)
    dims = min(max(scale.dim(), 2), x.dim())
    check_beside(op, "scale", scale, x, (*x.shape[: dims - 1], x.shape[-1]), why="first dimensions of x and its last")
    check_beside(op, "shift", shift, x, scale.shape, why="that of scale")
    if weight is not None:
        check_beside(op, "weight", weight, x, x.shape[-1:], why="the last of x")
    options, sizes = {"eps": eps, "cast": cast}, {"H": x.shape[-1]}
    return run(op, (x, scale, shift, weight), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def modulated_rms_norm_inputs(
    device: str, dtype: torch.dtype, *, B: int, T: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """x (B, T, H) with rows of magnitude 1e-3, 1 and 1e3 in turn, scales and shifts around 0, weights around 1.

    Variants: "weightless"; "tokens", a scale and a shift for each token.
    """
    x = torch.randn(B, T, H, generator=generator)
    x = x * torch.tensor([1e-3, 1.0, 1e3])[torch.arange(B * T) % 3].reshape(B, T, 1)
    shape = (B, T, H) if variant == "tokens" else (B, H)
    scale, shift = 0.3 * torch.randn(2, *shape, generator=generator)
    weight = None if variant == "weightless" else (1 + 0.2 * torch.randn(H, generator=generator)).to(device, dtype)
    return (x.to(device, dtype), scale.to(device, dtype), shift.to(device, dtype), weight), {}


def modulated_rms_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read all inputs, write y; read x, scale, weight and dy, write all gradients."""
    x, scale, shift, weight = (0 if t is None else t.nbytes for t in tensors)
    return {"forward": 2 * x + scale + shift + weight, "backward": 3 * x + 2 * scale + shift + 2 * weight}
