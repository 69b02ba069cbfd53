"""The square of ReLU: y = max(x, 0)^2.

Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling"; nemotron's "relu2".
Shapes: x and y (..., H). R is the number of rows, the product of the leading dimensions.
Precision: the square in fp32, rounded once: bit-equal to ``torch.square(F.relu(x))``. nan stays nan.
Gradient: dx = 2 dy max(x, 0), in fp32, rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from liger.dispatch import public, run
from liger_kernels_act._pair import check_floating


# -- Reference ---------------------------------------------------------------------------------------------------------
def relu_squared_reference(x: torch.Tensor) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's activation."""
    return torch.square(F.relu(x))


# -- Public ------------------------------------------------------------------------------------------------------------
@public("relu_squared")
def relu_squared(x: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    """``relu(x) ** 2``, elementwise.

    Args:
        x: (..., H), floating; any strides.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x.

    Raises:
        TypeError: x is no tensor or not floating.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.relu_squared(torch.tensor([-2.0, 0.5, 3.0]))
        tensor([0.0000, 0.2500, 9.0000])
    """
    check_floating("relu_squared", "x", x)
    return run("relu_squared", (x,), {}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]


# -- Tests and benchmarks ----------------------------------------------------------------------------------------------
def row_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """x (R, H) with rows of magnitude 1e-3, 1 and 1e2 in turn: fp16 holds the squares. Variant "three dimensions"."""
    shape = (R, 2, H) if variant == "three dimensions" else (R, H)
    scale = torch.tensor([1e-3, 1.0, 1e2])[torch.arange(R) % 3]
    x = torch.randn(shape, generator=generator) * scale.reshape(-1, *[1] * (len(shape) - 1))
    return (x.clamp(max=200.0).to(device, dtype),), {}


def row_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x, write y; read x (or y) and dy, write dx."""
    (x,) = tensors
    return {"forward": 2 * x.nbytes, "backward": 3 * x.nbytes}
