"""RMSNorm: y = x / rms(x) * (offset + w),  rms(x) = sqrt(mean(x^2) + eps), over the last dimension.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
Shapes: x (..., H), w (H,) or None, y (..., H). R is the number of rows, the product of the leading dimensions.
Precision: the order of casts differs between model families and is named by ``cast``:

=============  ==========================================================================  =====================
cast           what is rounded                                                             dtype of y
=============  ==========================================================================  =====================
"llama"        x/rms in fp32, rounded to x.dtype, times weight                             promoted from x and w
"fp32-weight"  x/rms in fp32, times weight in fp32, rounded once (olmo2, gpt_oss)          x.dtype
"gemma"        the same arithmetic as "fp32-weight"; Gemma pairs it with offset=1          x.dtype
"none"         no cast at all: also the statistics are rounded to x.dtype at each step     promoted from x and w
=============  ==========================================================================  =====================

The offset is added to the weight in fp32, always. Gradients: with xhat = x/rms and g = dy * (offset + w),
dx = (g - xhat * mean(g * xhat)) / rms and dw = sum over rows of dy * xhat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_number, check_tensor, public, run
from liger.numerics import acc

CASTS = ("llama", "fp32-weight", "gemma", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    h = x if cast == "none" else acc(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if cast in ("llama", "none"):
        h = h.to(x.dtype)
        if weight is None:
            return h * (1.0 + offset) if offset else h
        scale = (acc(weight) + offset) if offset else weight
        return (scale * h).to(torch.promote_types(x.dtype, weight.dtype))
    if weight is None:
        return (h * (1.0 + offset) if offset else h).to(x.dtype)
    return (h * (acc(weight) + offset)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("rms_norm")
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """RMSNorm over the last dimension.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (H,), floating, possibly of another dtype than x; None leaves it out.
        eps: added to the mean square.
        cast: order of casts, one of ``CASTS``; see the module's docstring.
        offset: added to the weight in fp32 (1 for Gemma).
        kernel: choose a kernel by hand.

    Returns:
        (..., H); its dtype is x.dtype, or for "llama" and "none" the promoted dtype of x and weight.

    Raises:
        ValueError: shapes do not match, an unknown ``cast``, or ``eps`` is negative or not finite.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    if cast not in CASTS:
        raise ValueError(f"rms_norm: cast is {cast!r}, expected one of {', '.join(CASTS)}")
    check_number("rms_norm", "eps", eps)
    if not 0.0 <= eps < float("inf"):
        raise ValueError(f"rms_norm: eps is {eps!r}, expected a finite number, 0 or more")
    check_number("rms_norm", "offset", offset)
    check_tensor("rms_norm", "x", x)
    if x.dim() == 0 or not x.dtype.is_floating_point:
        raise TypeError(f"rms_norm: x must be floating with at least one dimension, got {x.dtype} {tuple(x.shape)}")
    if weight is not None:
        check_tensor("rms_norm", "weight", weight)
        if not weight.dtype.is_floating_point or weight.device != x.device:
            raise TypeError(
                f"rms_norm: weight must be floating on {x.device} like x, got {weight.dtype} on {weight.device}"
            )
        if weight.shape != x.shape[-1:]:
            raise ValueError(
                f"rms_norm: weight has shape {tuple(weight.shape)}, expected ({x.shape[-1]},), the last of x"
                + (
                    " (an empty weight is usually a sharded parameter that was not gathered)"
                    if not weight.numel()
                    else ""
                )
            )
    options = {"eps": eps, "cast": cast, "offset": offset}
    return run("rms_norm", (x, weight), options, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def rms_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, and weights around 1.

    Variants: "weightless", also with an offset of 0.5 so that it is seen; "gemma", its casts and offset together;
    "three dimensions" (R, 2, H).
    """
    x = torch.randn(R, H, generator=generator) * torch.tensor([1e-3, 1.0, 1e3])[torch.arange(R) % 3, None]
    weight = 1 + 0.2 * torch.randn(H, generator=generator)
    if variant == "three dimensions":
        x = torch.stack((x, x.flip(0)), dim=1)
    if variant == "weightless":
        return (x.to(device, dtype), None), {"offset": 0.5}
    gemma = {"cast": "gemma", "offset": 1.0} if variant == "gemma" else {}
    return (x.to(device, dtype), weight.to(device, dtype)), gemma


def rms_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x and weight, write y; read x, weight and dy, write dx and dweight."""
    x, weight = tensors
    assert x is not None
    w = 0 if weight is None else weight.nbytes
    return {"forward": 2 * x.nbytes + w, "backward": 3 * x.nbytes + 2 * w}
