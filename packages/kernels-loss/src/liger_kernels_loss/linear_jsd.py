"""Distillation with both heads: the divergence of teacher_hidden W_t^T and student_hidden W_s^T, without all logits.

For a row with the logits z of the student, t of the teacher and label y

    loss = (1 - hard_weight) * jsd(z, t) + hard_weight * cross_entropy(z, y)

with ``jsd`` at beta and temperature as ``jsd.py`` defines it, and the cross-entropy at temperature 1. Source of the
losses: see ``jsd.py``; Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", mixes the labels in. Source
of the method: ``linear_cross_entropy.py``; a chunk of the teacher's logits lies beside the student's.
Shapes: student_hidden (..., H), student_weight (V, H), student_bias (V,), teacher_hidden (..., T), teacher_weight
(V, T), teacher_bias (V,), target (...,); N is the number of rows.
Precision: logits are rounded to the dtype of their head, as the head itself does; everything after is fp32 (fp64 for
fp64). dlogits is rounded to the student's dtype, with ``hard_weight`` each part and their sum. Gradients of hidden and
weight, the upstream gradient and reduction="none": those of ``linear_cross_entropy``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_number, public, run
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._loss import Loss, Wants, check_target, row_results
from liger_kernels_loss._pairs import (
    NumItems,
    check_beta,
    check_frozen,
    check_reduction,
    check_temperature,
    reduce_rows,
)
from liger_kernels_loss.cross_entropy import labels as make_labels
from liger_kernels_loss.jsd import jsd_reference
from liger_kernels_loss.transforms import head

OP = "linear_jsd"
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_jsd_reference(
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor | None = None,
    student_bias: torch.Tensor | None = None,
    teacher_bias: torch.Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    hard_weight: float = 0.0,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
) -> torch.Tensor:
    """The definition: all logits at once. The last two options are about how the work is cut up; it is not."""
    del accum_dtype, workspace_mb
    student = head(student_hidden.reshape(-1, student_hidden.shape[-1]), student_weight, student_bias)
    teacher = head(teacher_hidden.reshape(-1, teacher_hidden.shape[-1]), teacher_weight, teacher_bias)
    labels = None if target is None else target.reshape(-1).long()
    soft = {"beta": beta, "temperature": temperature, "ignore_index": ignore_index}
    rows = jsd_reference(student, teacher, labels, reduction="none", **soft)  # type: ignore[arg-type]
    if hard_weight and labels is not None:
        hard = row_results(student, labels, None, Loss(ignore_index), Wants()).loss
        rows = (1.0 - hard_weight) * rows + hard_weight * hard
    rows = rows.view(student_hidden.shape[:-1])
    return reduce_rows(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_jsd(
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor | None = None,
    student_bias: torch.Tensor | None = None,
    teacher_bias: torch.Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    hard_weight: float = 0.0,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """``jsd`` of two heads' logits, computed in chunks of rows: neither set of logits is ever whole.

    Args:
        student_hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        student_weight: (V, H), the student's head. Under autocast hidden, weight and bias of each head are cast as in
            ``torch.nn.functional.linear``; otherwise their dtypes must be equal. The two heads may differ in dtype.
        teacher_hidden: (..., T), floating, with the leading shape of ``student_hidden``; T need not be H.
        teacher_weight: (V, T). Nothing of the teacher may require a gradient: detach what does.
        target: (...,) integers or None: rows with ``ignore_index`` have loss 0 and gradient 0 and do not count in the
            mean. Not shifted. Other values are the labels of ``hard_weight`` and mean nothing without.
        student_bias, teacher_bias: (V,) or None.
        beta, temperature: as in ``jsd``: forward KL is beta=0, reverse KL beta=1. Not multiplied by temperature^2.
        ignore_index, reduction, num_items: as in ``jsd``.
        hard_weight: in [0, 1]: the share of the cross-entropy with the labels, at temperature 1, in the loss; the
            divergence has the rest. Where a loss has two weights, as ``weight_soft_loss`` and ``weight_hard_loss``,
            it is the second over their sum, which multiplies the result.
        accum_dtype: as in ``linear_cross_entropy``.
        workspace_mb: MiB for one chunk's logits of both heads; as in ``linear_cross_entropy``.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, a weight is empty, an option lies outside its range, ``hard_weight`` comes
            without a target, or something of the teacher requires a gradient.
        TypeError: an argument is of the wrong type, dtypes of a head differ, or a tensor is not of the right kind or
            lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_jsd
        >>> student, teacher = torch.ones(2, 4), torch.ones(2, 6)  # hidden states of two widths
        >>> weight, teacher_weight = torch.zeros(8, 4, requires_grad=True), torch.eye(8, 6)
        >>> loss = linear_jsd(student, weight, teacher, teacher_weight, torch.tensor([3, -100]), beta=0.0)
        >>> loss.backward()
        >>> loss.detach()
        tensor(0.0628)
        >>> weight.grad[[0, 7], 0]
        tensor([-0.0235,  0.0704])
    """
    heads = check_heads(OP, student_hidden, student_weight, teacher_hidden, teacher_weight, student_bias, teacher_bias)
    hard_weight, target = check_hard(OP, hard_weight, heads[0], heads[1], target)
    options = {
        "beta": check_beta(OP, beta),
        **check_soft(OP, temperature, ignore_index, reduction, num_items),
        "hard_weight": hard_weight,
        **check_chunking(OP, heads[1], accum_dtype, workspace_mb),
    }
    sizes = {"H": heads[1].shape[1], "T": heads[3].shape[1], "V": heads[1].shape[0]}
    return run(OP, (*heads[:4], target, *heads[4:]), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_heads(
    op: str,
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    student_bias: torch.Tensor | None,
    teacher_bias: torch.Tensor | None,
) -> Heads:
    """Return hidden and weight of student and teacher and both biases, each head in one dtype.

    Raises:
        TypeError: one is not floating, lies on another device, or has another dtype than its head outside autocast.
        ValueError: shapes do not match, a weight is empty, or something of the teacher requires a gradient.
    """
    student = check_head(op, student_hidden, student_weight, student_bias, "student_")
    for name, tensor in (("hidden", teacher_hidden), ("weight", teacher_weight), ("bias", teacher_bias)):
        check_frozen(op, f"teacher_{name}", tensor)
    teacher = check_head(op, teacher_hidden, teacher_weight, teacher_bias, "teacher_")
    if teacher[0].device != student[0].device:
        raise TypeError(
            f"{op}: teacher_hidden is on {teacher[0].device}, expected {student[0].device} like student_hidden"
        )
    if teacher[0].shape[:-1] != student[0].shape[:-1]:
        raise ValueError(
            f"{op}: teacher_hidden has shape {tuple(teacher[0].shape)}, expected the leading dimensions of "
            f"student_hidden {tuple(student[0].shape)}"
        )
    if teacher[1].shape[0] != student[1].shape[0]:
        raise ValueError(
            f"{op}: teacher_weight has {teacher[1].shape[0]} classes and student_weight {student[1].shape[0]}; "
            f"expected one vocabulary: where only padding differs, cut the longer weight"
        )
    return student[0], student[1], teacher[0], teacher[1], student[2], teacher[2]


def check_soft(op: str, temperature: float, ignore_index: int, reduction: str, num_items: NumItems) -> dict[str, Any]:
    """The checked options of every distillation as keyword arguments of a kernel."""
    check_reduction(op, ignore_index, reduction, num_items)
    return {
        "temperature": check_temperature(op, temperature),
        "ignore_index": ignore_index,
        "reduction": reduction,
        "num_items": num_items,
    }


def check_hard(
    op: str, hard_weight: float, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor | None
) -> tuple[float, torch.Tensor | None]:
    """``hard_weight`` as a float, and the target in int64, if there is one.

    Raises:
        TypeError: it is no number, or the target does not hold integers or lies on another device.
        ValueError: it is outside [0, 1] or has no target, or the target's shape does not match.
    """
    value = check_number(op, "hard_weight", hard_weight)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{op}: hard_weight is {hard_weight!r}, expected a number in [0, 1]")
    if target is not None:
        target = check_target(op, target, hidden, "student_hidden", weight.shape[0], soft=False)
    elif value:
        raise ValueError(f"{op}: hard_weight is {hard_weight!r} but target is None; pass the labels as target")
    return value, target


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_jsd_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, T: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """The student's logits are of magnitude 1, the teacher's 2. Label 0 is frequent, and met by ``ignore_index=0``."""
    leaves = [torch.randn(N, H, generator=generator), torch.randn(V, H, generator=generator) / H**0.5]
    teacher = [2 * torch.randn(N, T, generator=generator), torch.randn(V, T, generator=generator) / T**0.5]
    biases: list[torch.Tensor | None] = [None, None]
    if variant == "bias":
        made = [torch.randn(V, generator=generator).to(device, dtype) for _ in range(2)]
        biases = [made[0].requires_grad_(), made[1]]
    target = None if variant == "no target" else make_labels(N, V, generator, variant).to(device)
    heads = [*(t.to(device, dtype).requires_grad_() for t in leaves), *(t.to(device, dtype) for t in teacher)]
    return (*heads, target, *biases), {}


def linear_jsd_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read, the student's gradients written; logits written and read, dlogits written, read twice."""
    student, weight, teacher, teacher_weight = tensors[:4]
    assert student is not None
    assert weight is not None
    assert teacher is not None
    assert teacher_weight is not None
    logits = student.numel() // student.shape[-1] * weight.shape[0]
    heads = 2 * (student.nbytes + weight.nbytes) + teacher.nbytes + teacher_weight.nbytes
    return {"full": heads + logits * (5 * student.element_size() + 2 * teacher.element_size())}


def linear_jsd_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Three products of 2 N V H and one of 2 N V T."""
    student, weight, teacher = tensors[:3]
    assert student is not None
    assert weight is not None
    assert teacher is not None
    return {"full": (6 * student.numel() + 2 * teacher.numel()) * weight.shape[0]}
