"""GroupNorm: y = w_c * (x - mean) / sqrt(var + eps) + b_c, mean and var over the channels of a group and all positions.

Source: Wu and He 2018, "Group Normalization", eq. 1 to 6; arguments as ``torch.nn.functional.group_norm``.
Shapes: x, y (N, C, *positions); w, b (C,) or None. S is the product of the positions, and a group has
D = C / num_groups * S elements.
Precision: everything in fp32, the variance from differences to a running mean (Welford), rounded once to x.dtype.
Gradients: with xhat the normalised x, A_nc = sum over positions of dy * xhat and B_nc = sum over positions of dy:
dx = (dy * w - sum of w * B / D - xhat * sum of w * A / D) / sqrt(var + eps), the sums over the group's channels,
dw = sum over n of A, db = sum over n of B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_eps, public, run
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_count, check_input


# -- Reference ---------------------------------------------------------------------------------------------------------
def group_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    num_groups: int = 32,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch's own, of fp32 values, rounded once. torch's on a CPU adds 16-bit values in another order.

    Where torch's backward fails it is asked in another way: with a bias alone, and on the CPU, where the process ends,
    with a frozen x that has its channels last.
    """
    w, b = (None if t is None else acc(t) for t in (weight, bias))
    if w is None and b is not None:
        w = torch.ones_like(b)
    if x.numel():
        return torch.group_norm(acc(x).reshape(*x.shape[:2], -1), num_groups, w, b, eps).to(x.dtype).view(x.shape)
    shape = (
        -1,
        *(1,) * (x.dim() - 2),
    )  # of nothing: torch's gradients of the parameters are nan, a sum over nothing is 0
    y = acc(x) if w is None else acc(x) * w.reshape(shape)
    return (y if b is None else y + b.reshape(shape)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("group_norm")
def group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    num_groups: int = 32,
    eps: float = 1e-5,
    kernel: str | None = None,
) -> torch.Tensor:
    """Normalise over groups of channels and all positions.

    Args:
        x: (N, C, *positions), floating; any strides, any number of positions, also none.
        weight: (C,), floating; None leaves it out.
        bias: (C,), floating; None leaves it out.
        num_groups: equal groups of consecutive channels; it divides C.
        eps: added to the variance.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x.

    Raises:
        ValueError: shapes do not match, ``num_groups`` does not divide C, or ``eps`` is negative or not finite.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> x = torch.tensor([[[1.0, 3.0], [10.0, 30.0]]])  # one sample, two channels, two positions
        >>> liger.ops.group_norm(x, num_groups=2, eps=0.0)
        tensor([[[-1.,  1.],
                 [-1.,  1.]]])
    """
    eps = check_eps("group_norm", eps)
    check_input("group_norm", x, 2)
    check_count("group_norm", "num_groups", num_groups)
    if x.shape[1] % num_groups:
        raise ValueError(
            f"group_norm: num_groups is {num_groups}, which does not divide {x.shape[1]}, the channels of x"
        )
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None:
            check_beside("group_norm", name, t, x, x.shape[1:2], why="the channels of x")
    options = {"num_groups": num_groups, "eps": eps}
    sizes = {"N": x.shape[0], "G": num_groups, "C": x.shape[1] // num_groups}
    return run("group_norm", (x, weight, bias), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def group_norm_inputs(
    device: str, dtype: torch.dtype, *, N: int, G: int, C: int, S: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """x (N, G * C, S), samples of magnitude 1e-3, 1 and 1e3 in turn and off center, weights around 1, biases around 0.

    Variants: "no parameters"; "no bias"; "image", (N, G * C, 2, S).
    """
    x = torch.randn(N, G * C, S, generator=generator) + 0.5
    x = x * torch.tensor([1.0, 1e3, 1e-3])[torch.arange(N) % 3, None, None]
    weight, bias = 0.2 * torch.randn(2, G * C, generator=generator)
    if variant == "image":
        x = torch.stack((x, x.flip(1)), dim=2)
    w, b = (1 + weight).to(device, dtype), bias.to(device, dtype)
    chosen = {"no parameters": (None, None), "no bias": (w, None)}.get(variant, (w, b))
    return (x.to(device, dtype), *chosen), {"num_groups": G}


def group_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read all inputs, write y; read x, weight and dy, write dx, dweight and dbias."""
    x, weight, bias = (0 if t is None else t.nbytes for t in tensors)
    return {"forward": 2 * x + weight + bias, "backward": 3 * x + 2 * weight + bias}
