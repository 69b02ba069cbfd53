"""Cosine distance between the logits of a student and a teacher: 1 - cos of the angle between two rows.

With |x| = max(sqrt(sum x^2), 1e-8), as in ``torch.nn.functional.cosine_similarity``, the loss of a row is

    1 - cos,  cos = sum s t / (|s| |t|)
    dloss/ds = (cos * s / |s| - t / |t|) / |s|;  without the first term where |s| is that bound

and 0 where the target is ``ignore_index``. It does not depend on the scale of either row, and so on no temperature.
Shapes: student and teacher (..., V), target (...,); N is the number of rows. They may as well be hidden states.
Precision: all of it in fp32 (fp64 for fp64), as if the logits were upcast first; the gradient is rounded once to the
student's dtype. The loss is fp32 (fp64 for fp64). Squares of fp32 logits beyond 1e19 overflow, as in torch.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger_kernels_loss._pairs import NumItems, check_rows, kept_logits, reduce_rows

OP = "cosine_distance"
LEAST = 1e-8  # norm of a row


# -- Reference ---------------------------------------------------------------------------------------------------------
def cosine_distance_reference(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
) -> torch.Tensor:
    """The definition, in plain torch."""
    s, t = (kept_logits(logits, target, ignore_index) for logits in (student, teacher))
    rows = 1.0 - torch.nn.functional.cosine_similarity(s, t, dim=-1, eps=LEAST)
    return reduce_rows(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def cosine_distance(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """1 - cosine similarity over the last dimension, as a distillation loss.

    Args:
        student: (..., V) floating: logits or other features.
        teacher: (..., V) floating, of any such dtype; it may not require a gradient. Its gradient is the student's of
            ``cosine_distance(teacher, student.detach())``.
        target: (...,) integers or None: rows with ``ignore_index`` have loss 0 and gradient 0 and do not count in the
            mean, whatever their values are. Not shifted; other values mean nothing here.
        ignore_index: see ``target``.
        reduction: "mean" over the kept rows, "sum", or "none". If every row is ignored the mean is nan, the sum is 0,
            and all gradients are 0.
        num_items: divides the sum over rows, in place of what "mean" divides by; a number or a tensor of one element.
            Not with "none".
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 logits): scalar, or (...,) for reduction="none". In [0, 2]; 1 for a row of zeros.

    Raises:
        ValueError: shapes do not match, an option lies outside its range, or the teacher requires a gradient.
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.cosine_distance(torch.eye(3)[:2], torch.ones(2, 3), reduction="none")
        tensor([0.4226, 0.4226])
    """
    target = check_rows(OP, student, teacher, target, ignore_index, reduction, num_items)
    options = {"ignore_index": ignore_index, "reduction": reduction, "num_items": num_items}
    return run(OP, (student, teacher, target), options, sizes={"V": student.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]
