"""RMSNorm: y = x / rms(x) * (offset + w),  rms(x) = sqrt(mean(x^2) + eps), over the last dimension.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
An optional bias is added last: y = x / rms(x) * (offset + w) + b.
Shapes: x (..., H), w (H,) or None, b (H,) or None, y (..., H). R is the product of the leading dimensions.
Precision: the order of casts differs between model families and is named by ``cast``:

=============  ==========================================================================  =====================
cast           what is rounded                                                             dtype of y
=============  ==========================================================================  =====================
"llama"        x/rms in fp32, rounded to x.dtype, times weight                             promoted of x, w and b
"fp32-weight"  x/rms in fp32, times weight in fp32, rounded once (olmo2, gpt_oss)          x.dtype
"gemma"        the same arithmetic as "fp32-weight"; Gemma pairs it with offset=1          x.dtype
"none"         no cast at all: also the statistics are rounded to x.dtype at each step     promoted of x, w and b
=============  ==========================================================================  =====================

The offset is added to the weight in fp32, always, the bias in the dtype of the product. Gradients: with xhat = x/rms
and g = dy * (offset + w), dx = (g - xhat * mean(g * xhat)) / rms, dw = sum over rows of dy * xhat, db = sum of dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, check_number, public
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input
from liger_kernels_norm._distributed import run_rows

CASTS = ("llama", "fp32-weight", "gemma", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def rms_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
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
            h = h * (1.0 + offset) if offset else h
        else:
            scale = (acc(weight) + offset) if offset else weight
            h = (scale * h).to(torch.promote_types(x.dtype, weight.dtype))
        return h if bias is None else h + bias
    if weight is not None:
        h = h * (acc(weight) + offset)
    elif offset:
        h = h * (1.0 + offset)
    return (h if bias is None else h + acc(bias)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("rms_norm")
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """RMSNorm over the last dimension.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows and 0 columns included.
            A DTensor gives one placed as it is, but replicated where its last dimension was split.
        weight: (H,), floating, possibly of another dtype than x; None leaves it out.
        bias: (H,), likewise.
        eps: added to the mean square.
        cast: order of casts, one of ``CASTS``; see the module's docstring.
        offset: added to the weight in fp32 (1 for Gemma).
        kernel: choose a kernel by hand.

    Returns:
        (..., H); its dtype is x.dtype, or for "llama" and "none" the promoted dtype of x, weight and bias.

    Raises:
        ValueError: shapes do not match, an unknown ``cast``, or ``eps`` is negative or not finite,
            or DTensors lie on different meshes.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger import ops
        >>> ops.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), eps=0.0)
        tensor([[0.8485, 2.2627]])
    """
    check_choice("rms_norm", "cast", cast, CASTS)
    eps = check_eps("rms_norm", eps)
    offset = check_number("rms_norm", "offset", offset)
    check_input("rms_norm", x)
    if weight is not None:
        check_beside("rms_norm", "weight", weight, x, x.shape[-1:], why="the last of x")
    if bias is not None:
        check_beside("rms_norm", "bias", bias, x, x.shape[-1:], why="the last of x")
    options = {"eps": eps, "cast": cast, "offset": offset}
    return run_rows("rms_norm", (x, weight, bias), options, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def rows_like_hidden_states(R: int, H: int, generator: torch.Generator) -> torch.Tensor:
    """(R, H): rows of magnitude 1e-3, 1 and 1e3 in turn."""
    return torch.randn(R, H, generator=generator) * torch.tensor([1e-3, 1.0, 1e3])[torch.arange(R) % 3, None]


def rms_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, and weights around 1.

    Variants: "weightless", also with an offset of 0.5 so that it is seen; "gemma", its casts and offset together;
    "bias"; "three dimensions" (R, 2, H).
    """
    x, weight = rows_like_hidden_states(R, H, generator), 1 + 0.2 * torch.randn(H, generator=generator)
    if variant == "three dimensions":
        x = torch.stack((x, x.flip(0)), dim=1)
    if variant == "weightless":
        return (x.to(device, dtype), None), {"offset": 0.5}
    bias = (torch.randn(H, generator=generator).to(device, dtype),) if variant == "bias" else ()
    gemma = {"cast": "gemma", "offset": 1.0} if variant == "gemma" else {}
    return (x.to(device, dtype), weight.to(device, dtype), *bias), gemma


def norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x and parameters, write y; read x, parameters and dy, write dx and the parameters' gradients."""
    x, *parameters = tensors
    assert x is not None
    w = sum(p.nbytes for p in parameters if p is not None)
    return {"forward": 2 * x.nbytes + w, "backward": 3 * x.nbytes + 2 * w}
