"""Logarithm of softmax over the last dimension: y_i = x_i - m - log(sum_j exp(x_j - m)), m = max x.

Shapes: x and y (..., V). R is the number of rows, the product of the leading dimensions.
Precision: maximum, exponentials, sum and logarithm in fp32, rounded once to x.dtype, as
``F.log_softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)`` does. A row of -inf alone gives nan, as there.
Gradient: dx = dy - exp(y) sum(dy), in fp32, rounded once. The kernel saves y alone, as torch does: in bf16 a y near -10
is rounded by up to 0.03, which changes exp(y) in the gradient by 3 %. Who needs more passes float32.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger.numerics import acc
from liger_kernels_act.softmax import check_rows


# -- Reference ---------------------------------------------------------------------------------------------------------
def log_softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The definition, in plain torch."""
    return torch.log_softmax(acc(x), dim=-1).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("log_softmax")
def log_softmax(x: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    """Logarithm of softmax over the last dimension.

    Args:
        x: (..., V), floating; any strides.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x. A row of -inf alone is nan.

    Raises:
        ValueError: x has no dimension.
        TypeError: x is no tensor or not floating.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.log_softmax(torch.tensor([[0.0, 1.0, 2.0]]))
        tensor([[-2.4076, -1.4076, -0.4076]])
    """
    check_rows("log_softmax", x)
    return run("log_softmax", (x,), {}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
