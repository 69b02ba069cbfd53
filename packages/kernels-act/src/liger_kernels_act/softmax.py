"""Softmax over the last dimension: y_i = exp(x_i - m) / sum_j exp(x_j - m), m = max x.

Shapes: x and y (..., V). R is the number of rows, the product of the leading dimensions.
Precision: maximum, exponentials and sum in fp32, rounded once to x.dtype, as ``F.softmax(x, dim=-1)`` does and as
``F.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)`` does with more memory. A row of -inf alone gives nan.
Gradient: dx = y (dy - sum(y dy)), in fp32, rounded once; only y is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import public, run
from liger_kernels_act._pair import check_floating


# -- Reference ---------------------------------------------------------------------------------------------------------
def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The definition, in plain torch."""
    return torch.softmax(x, dim=-1)


def check_rows(op: str, x: torch.Tensor) -> None:
    """Raise unless x is floating and has rows.

    Raises:
        TypeError: x is no tensor or not floating.
        ValueError: x has no dimension.
    """
    check_floating(op, "x", x)
    if x.dim() == 0:
        raise ValueError(f"{op}: x has no dimension, expected rows (..., V)")


# -- Public ------------------------------------------------------------------------------------------------------------
@public("softmax")
def softmax(x: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    """Softmax over the last dimension.

    Args:
        x: (..., V), floating; any strides.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x. Rows sum to 1; a row of -inf alone is nan.

    Raises:
        ValueError: x has no dimension.
        TypeError: x is no tensor or not floating.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.softmax(torch.tensor([[0.0, 1.0, 2.0]]))
        tensor([[0.0900, 0.2447, 0.6652]])
    """
    check_rows("softmax", x)
    return run("softmax", (x,), {}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]


# -- Tests and benchmarks ----------------------------------------------------------------------------------------------
def logits(
    device: str, dtype: torch.dtype, *, R: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """x (R, V) with rows of magnitude 1e-3, 1 and 10 in turn; at 1e3 all but one result are 0, and so are gradients.

    Variants: "three dimensions" (R, 2, V); "masked", where the first half of each row is -inf, as under a causal mask.
    """
    shape = (R, 2, V) if variant == "three dimensions" else (R, V)
    scale = torch.tensor([1e-3, 1.0, 10.0])[torch.arange(R) % 3]
    x = torch.randn(shape, generator=generator) * scale.reshape(-1, *[1] * (len(shape) - 1))
    if variant == "masked":
        x[:, : V // 2] = -torch.inf
    return (x.to(device, dtype),), {}
