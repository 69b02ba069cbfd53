"""Total variation distance between the distributions of a teacher and a student, from their logits.

With q = softmax(student / T) and p = softmax(teacher / T), the loss of a row is 0.5 * sum_c |q_c - p_c|, in [0, 1], and
0 where the target is ``ignore_index``. It is symmetric. With g_c = 0.5 * sign(q_c - p_c)

    dloss/dstudent_c = q_c / T * (g_c - sum q g)

Source: Wen et al. 2023, "f-Divergence Minimization for Sequence-Level Knowledge Distillation". Not multiplied by T.
Shapes: student and teacher (..., V), target (...,); N is the number of rows.
Precision: all of it in fp32 (fp64 for fp64), as if the logits were upcast first; the gradient is rounded once to the
student's dtype. The loss is fp32 (fp64 for fp64).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import public, run
from liger_kernels_loss._pairs import NumItems, check_rows, check_temperature, kept_logits, pair_inputs, reduce_rows

OP = "tvd"


# -- Reference ---------------------------------------------------------------------------------------------------------
def tvd_reference(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
) -> torch.Tensor:
    """The definition, in plain torch."""
    q, p = (torch.softmax(kept_logits(t, target, ignore_index) / temperature, -1) for t in (student, teacher))
    rows = 0.5 * (q - p).abs().sum(-1)
    return reduce_rows(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def tvd(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Total variation distance between the distributions that two sets of logits stand for.

    Args:
        student: (..., V) floating: logits. Of probabilities pass the logarithm.
        teacher: (..., V) floating, of any such dtype; it may not require a gradient. Its gradient is the student's of
            ``tvd(teacher, student.detach())``.
        target: (...,) integers or None: rows with ``ignore_index`` have loss 0 and gradient 0 and do not count in the
            mean, whatever their logits are. Not shifted; other values mean nothing here.
        temperature: positive; divides the logits of both.
        ignore_index: see ``target``.
        reduction: "mean" over the kept rows, "sum", or "none". If every row is ignored the mean is nan, the sum is 0,
            and all gradients are 0.
        num_items: divides the sum over rows, in place of what "mean" divides by; a number or a tensor of one element.
            Not with "none".
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 logits): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, an option lies outside its range, or the teacher requires a gradient.
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> p = torch.tensor([[0.5, 0.25, 0.25]])
        >>> q = torch.tensor([[0.25, 0.5, 0.25]])
        >>> liger.ops.tvd(q.log(), p.log())
        tensor(0.2500)
    """
    target = check_rows(OP, student, teacher, target, ignore_index, reduction, num_items)
    options = {
        "temperature": check_temperature(OP, temperature),
        "ignore_index": ignore_index,
        "reduction": reduction,
        "num_items": num_items,
    }
    return run(OP, (student, teacher, target), options, sizes={"V": student.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def tvd_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """``pair_inputs`` without classes to which both give nearly the same probability.

    There the gradient jumps from one sign to the other, and rounding decides, the kernel's as the reference's.
    """
    (student, teacher, target), options = pair_inputs(device, dtype, N=N, V=V, generator=generator, variant=variant)
    assert student is not None
    assert teacher is not None
    if student.device.type != "meta":
        q, p = (t.detach().float().log_softmax(-1) for t in (student, teacher))
        teacher = torch.where((q - p).abs() < 1e-3, teacher + 0.125, teacher)
    return (student, teacher, target), options
