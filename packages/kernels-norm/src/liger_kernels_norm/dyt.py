"""DyT, dynamic tanh: y = w * tanh(alpha * x) + b, in the place of a normalisation.

Source: Zhu et al. 2025, "Transformers without Normalization", section 4.
Shapes: x, y (..., H); alpha one element, (1,) or (); w (H,); b (H,) or None; R rows.
Precision: everything in fp32, rounded once to x.dtype. (The authors' module rounds each step in 16-bit dtypes.)
Gradients: with t = tanh(alpha * x) and d = dy * w * (1 - t^2): dx = alpha * d, dalpha = sum of x * d over everything,
dw = sum over rows of dy * t, db = sum over rows of dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import public, run
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input


# -- Reference ---------------------------------------------------------------------------------------------------------
def dyt_reference(
    x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The definition, in plain torch; in fp32 it has the bits of the authors' module."""
    y = torch.tanh(acc(alpha) * acc(x)) * acc(weight)
    return (y if bias is None else y + acc(bias)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("dyt")
def dyt(
    x: torch.Tensor,
    alpha: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kernel: str | None = None,
) -> torch.Tensor:
    """Dynamic tanh: ``weight * tanh(alpha * x) + bias``.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
        alpha: (1,) or (), floating.
        weight: (H,), floating.
        bias: (H,), floating; None leaves it out.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) of x.dtype.

    Raises:
        ValueError: shapes do not match.
        TypeError: an argument is no tensor, not floating, or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.dyt(torch.tensor([[-2.0, 0.0, 2.0]]), torch.tensor([0.5]), torch.ones(3), torch.ones(3))
        tensor([[0.2384, 1.0000, 1.7616]])
    """
    check_input("dyt", x)
    check_beside("dyt", "alpha", alpha, x, (1,), (), why="one element")
    check_beside("dyt", "weight", weight, x, x.shape[-1:], why="the last of x")
    if bias is not None:
        check_beside("dyt", "bias", bias, x, x.shape[-1:], why="the last of x")
    return run("dyt", (x, alpha, weight, bias), {}, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def dyt_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 2 in turn, weights around 1, biases around 0.

    Not larger: where tanh is 1 the slope has no digits as 1 - t^2, in float64 neither, and so there is no truth.

    Variants: "no bias"; "three dimensions", (R, 2, H) and an alpha without dimensions.
    """
    x = torch.randn(R, H, generator=generator) * torch.tensor([1e-3, 1.0, 2.0])[torch.arange(R) % 3, None]
    alpha = 0.5 + 0.5 * torch.rand(1, generator=generator)
    weight = 1 + 0.2 * torch.randn(H, generator=generator)
    bias = None if variant == "no bias" else 0.2 * torch.randn(H, generator=generator).to(device, dtype)
    if variant == "three dimensions":
        x, alpha = torch.stack((x, x.flip(0)), dim=1), alpha[0]
    return (x.to(device, dtype), alpha.to(device, dtype), weight.to(device, dtype), bias), {}


def dyt_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x, weight and bias, write y; read x, weight and dy, write dx, dweight and dbias."""
    x, _, weight, bias = tensors
    assert x is not None
    assert weight is not None
    b = 0 if bias is None else bias.nbytes
    return {"forward": 2 * x.nbytes + weight.nbytes + b, "backward": 3 * x.nbytes + 2 * weight.nbytes + b}
