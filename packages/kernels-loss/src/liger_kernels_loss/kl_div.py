"""Kullback-Leibler divergence of given distributions, element by element: ``torch.nn.functional.kl_div``.

For log-probabilities x (input) and probabilities t or their logarithms (target), each element has the loss

    t * (log t - x), 0 for t = 0             or, with log_target, exp(t) * (t - x)
    dloss/dx = -t                            or -exp(t)

reduced over all of them: KL(target || input). Source: torch. With ``reverse`` it is KL(input || target),

    exp(x) * (x - log t), 0 for exp(x) = 0   or, with log_target, exp(x) * (x - t)
    dloss/dx = exp(x) * (x - log t + 1)      or exp(x) * (x - t + 1)

which is inf where t alone is 0. Nothing is normalised here; from logits ``jsd`` with beta=0, or beta=1 for the reverse,
needs no log-probabilities in memory.
Shapes: input and target of one shape, any.
Precision: all of it in fp32 (fp64 for fp64); the gradient is rounded once to input's dtype. The loss is fp32 (fp64 for
fp64), where torch's is of input's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_flag, public, run
from liger.numerics import acc
from liger_kernels_loss._pairs import check_pair
from liger_kernels_loss._result import divide

OP = "kl_div"
REDUCTIONS = ("mean", "batchmean", "sum", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def kl_div_reference(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    target: torch.Tensor,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    reverse: bool = False,
) -> torch.Tensor:
    """The definition, in plain torch."""
    x, t = acc(input), acc(target)
    if reverse:
        some = x.exp() > 0.0
        x = torch.where(some, x, 0.0)
        losses = torch.where(some, x.exp() * (x - (t if log_target else t.log())), 0.0)
    else:
        losses = torch.nn.functional.kl_div(x, t, reduction="none", log_target=log_target)
    return losses if reduction == "none" else divide(losses.sum(), element_divisor(input, reduction))


def element_divisor(x: torch.Tensor, reduction: str) -> torch.Tensor | None:
    """What the sum over elements is divided by, 0-dimensional; None for a plain sum."""
    if reduction in ("sum", "none"):
        return None
    count = x.numel() if reduction == "mean" else x.shape[0] if x.dim() else 1
    return x.new_full((), count, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def kl_div(
    input: torch.Tensor,  # noqa: A002  (torch's name)
    target: torch.Tensor,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    reverse: bool = False,
    kernel: str | None = None,
) -> torch.Tensor:
    """KL(target || input) of distributions, as ``torch.nn.functional.kl_div``. From logits use ``jsd``, beta 0 or 1.

    Args:
        input: floating, of any shape: log-probabilities of the student.
        target: probabilities of the teacher, of input's shape and any floating dtype; it may not require a gradient.
        reduction: "mean" over all elements, "batchmean": the sum over input.shape[0], "sum", or "none".
        log_target: whether target holds log-probabilities. One of -inf gives nan, as in torch; inf with ``reverse``.
        reverse: KL(input || target), which torch does not have: inf where the target alone is 0.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 input): scalar, or of input's shape for reduction="none".

    Raises:
        ValueError: shapes differ, the reduction is none of these, or the target requires a gradient.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> student = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
        >>> teacher = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
        >>> liger.ops.kl_div(student, teacher, reduction="batchmean")
        tensor(0.2554)
    """
    check_choice(OP, "reduction", reduction, REDUCTIONS)
    check_flag(OP, "log_target", log_target)
    check_flag(OP, "reverse", reverse)
    check_pair(OP, input, target, ("input", "target"))
    options = {"reduction": reduction, "log_target": log_target, "reverse": reverse}
    return run(OP, (input, target), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def kl_div_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """Log-probabilities, and probabilities. Variants: "zeros" among them, "log target", their logarithms."""
    x, t = (torch.randn(N, V, generator=generator).mul(2.0).log_softmax(-1) for _ in range(2))
    if variant == "log target":
        return (x.to(device, dtype).requires_grad_(), t.to(device, dtype)), {"log_target": True}
    t = t.exp()
    if variant == "zeros":
        t[:, ::3] = 0.0
    return (x.to(device, dtype).requires_grad_(), t.to(device, dtype)), {}
