"""PolyNorm: y = w0 * n(x^3) + w1 * n(x^2) + w2 * n(x) + b,  n(u) = u / sqrt(mean(u^2) + eps), over the last dimension.

Source: Zhuo et al. 2024, "Polynomial Composition Activations", eq. 6; weights in the order of the authors' code.
Shapes: x, y (..., H); w (3,); b one element, (1,) or (). R is the product of the leading dimensions.
Precision: everything in fp32, rounded once to x.dtype. (The authors' module rounds each step in 16-bit dtypes.) In fp32
x^6 overflows beyond |x| = 2.6e6.
Gradients: with n_k = n(x^k), r_k = n_k / x^k and m_k = mean(dy * n_k) over the row, dx = sum over k of
w_k * r_k * k * x^(k-1) * (dy - n_k * m_k), dw_k = sum of dy * n_k and db = sum of dy, both over everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_eps, public, run
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input


# -- Reference ---------------------------------------------------------------------------------------------------------
def poly_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-6
) -> torch.Tensor:
    """The definition, in plain torch; in fp32 it has the bits of the authors' module."""
    wide, w = acc(x), acc(weight)

    def n(u: torch.Tensor) -> torch.Tensor:
        return u / torch.sqrt(u.pow(2).mean(-1, keepdim=True) + eps)

    return (w[0] * n(wide**3) + w[1] * n(wide**2) + w[2] * n(wide) + acc(bias)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("poly_norm")
def poly_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-6, kernel: str | None = None
) -> torch.Tensor:
    """A polynomial of third degree of normalised powers of x.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (3,), floating: of x^3, x^2 and x.
        bias: (1,) or (), floating.
        eps: added to the mean squares.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) of x.dtype.

    Raises:
        ValueError: shapes do not match, or ``eps`` is negative or not finite.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.poly_norm(torch.tensor([[-1.0, 1.0]]), torch.tensor([0.5, 0.25, 0.125]), torch.zeros(1))
        tensor([[-0.3750,  0.8750]])
    """
    eps = check_eps("poly_norm", eps)
    check_input("poly_norm", x)
    check_beside("poly_norm", "weight", weight, x, (3,), why="of the third, second and first power")
    check_beside("poly_norm", "bias", bias, x, (1,), (), why="one element")
    sizes = {"H": x.shape[-1]}
    return run("poly_norm", (x, weight, bias), {"eps": eps}, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def poly_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, weights around 1/3.

    Variant: "three dimensions", (R, 2, H) and a bias without dimensions.
    """
    x = torch.randn(R, H, generator=generator) * torch.tensor([1e-3, 1.0, 1e3])[torch.arange(R) % 3, None]
    weight = 1 / 3 + 0.2 * torch.randn(3, generator=generator)
    bias = torch.randn(1, generator=generator)
    if variant == "three dimensions":
        x, bias = torch.stack((x, x.flip(0)), dim=1), bias[0]
    return (x.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype)), {}


def poly_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x, write y; read x and dy, write dx."""
    x = tensors[0]
    assert x is not None
    return {"forward": 2 * x.nbytes, "backward": 3 * x.nbytes}
