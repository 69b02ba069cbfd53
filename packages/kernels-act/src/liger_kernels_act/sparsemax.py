"""Sparsemax over the last dimension: y_i = max(x_i - tau, 0), with tau such that sum_i y_i = 1.

It is the point of the simplex nearest to x; unlike softmax it gives exact zeros.

Source: Martins and Astudillo 2016, "From Softmax to Sparsemax", eq. 2 and algorithm 1.
Shapes: x and y (..., V). R is the number of rows, the product of the leading dimensions.
Precision: in fp32, rounded once to x.dtype. The kernel finds tau by Newton's method, which ends at it: the sum is
linear in tau as long as tau crosses no x_i. A row with nan or inf, or of -inf alone, gives nan, and so is its gradient.
Gradient: dx_i = dy_i - mean of dy over the support where y_i > 0, and 0 elsewhere; only y is saved.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger.numerics import acc
from liger_kernels_act.softmax import check_rows


# -- Reference ---------------------------------------------------------------------------------------------------------
def sparsemax_reference(x: torch.Tensor) -> torch.Tensor:
    """The definition, in plain torch, by sorting."""
    wide = acc(x)
    z = wide - wide.detach().amax(-1, keepdim=True)  # the same y, with smaller numbers
    ordered = z.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    count = (ordered * torch.arange(1, x.shape[-1] + 1, device=x.device) > excess).sum(-1, keepdim=True).clamp(min=1)
    tau = excess.gather(-1, count - 1) / count
    one = 1.0 + 0.0 * tau.detach()  # nan where y is: the gradient of a row without a y
    return (one * torch.relu(z - tau)).to(x.dtype)  # not clamp, whose slope at 0 is 1


# -- Public ------------------------------------------------------------------------------------------------------------
@public("sparsemax")
def sparsemax(x: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    """Sparsemax over the last dimension.

    Args:
        x: (..., V), floating; any strides; V > 0.
        kernel: choose a kernel by hand.

    Returns:
        The shape and dtype of x. Rows are >= 0 and sum to 1; nan where a row has nan, inf, or -inf alone.

    Raises:
        ValueError: x has no dimension, or its last one is 0.
        TypeError: x is no tensor or not floating.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.sparsemax(torch.tensor([[0.0, 1.5, 2.0, -1.0]]))
        tensor([[0.0000, 0.2500, 0.7500, 0.0000]])
    """
    check_rows("sparsemax", x)
    if x.shape[-1] == 0:
        raise ValueError(f"sparsemax: x has shape {tuple(x.shape)}, expected (..., V) with V > 0")
    return run("sparsemax", (x,), {}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
