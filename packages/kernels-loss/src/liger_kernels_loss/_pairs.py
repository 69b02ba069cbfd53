"""What the losses between a student and a teacher share: checks, the reduction, gradients made in the forward, inputs.

Student and teacher are logits (..., V). A loss of a row is ignored where the row's target is ``ignore_index``; what the
target says otherwise plays no part. Only the student gets a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_number, check_tensor
from liger.launch import refuse_second_derivative
from liger.numerics import acc
from liger_kernels_loss._loss import REDUCTIONS, Loss, check_options, check_target, stat_dtype
from liger_kernels_loss._result import divide, divisor

NumItems = int | float | torch.Tensor | None


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_pair(op: str, student: torch.Tensor, teacher: torch.Tensor, names: tuple[str, str]) -> None:
    """Two floating tensors of one shape and device, of which the second needs no gradient; they may differ in dtype.

    Raises:
        TypeError: one of them is no floating tensor, or they lie on two devices.
        ValueError: the shapes differ, or the second requires a gradient.
    """
    for name, tensor in zip(names, (student, teacher), strict=True):
        check_tensor(op, name, tensor)
        if not tensor.dtype.is_floating_point or tensor.device != student.device:
            raise TypeError(f"{op}: {name} must be floating on {student.device}, got {tensor.dtype} on {tensor.device}")
    if teacher.shape != student.shape:
        raise ValueError(
            f"{op}: {names[1]} has shape {tuple(teacher.shape)}, expected {tuple(student.shape)} like {names[0]}"
        )
    check_frozen(op, names[1], teacher)


def check_frozen(op: str, name: str, teacher: torch.Tensor | None) -> None:
    """ValueError if ``teacher`` requires a gradient."""
    if teacher is not None and teacher.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{op}: {name} requires a gradient, which this op does not give; pass {name}.detach(), and for its "
            f"gradient call the op a second time with the roles exchanged"
        )


def check_beta(op: str, beta: float) -> float:
    """beta as a float; TypeError if it is no number, ValueError outside [0, 1]."""
    value = check_number(op, "beta", beta)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{op}: beta is {beta!r}, expected a number in [0, 1]")
    return value


def check_rows(
    op: str,
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor | None:
    """Check the arguments of a loss with one value for each row; return the target, in int64.

    Raises:
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        ValueError: shapes do not match, an option lies outside its range, or the teacher requires a gradient.
    """
    check_reduction(op, ignore_index, reduction, num_items)
    check_pair(op, student, teacher, ("student", "teacher"))
    if student.dim() == 0 or student.shape[-1] == 0:
        raise ValueError(f"{op}: student has shape {tuple(student.shape)}, expected (..., V) with at least one class")
    if target is None:
        return None
    return check_target(op, target, student, "student", student.shape[-1], soft=False)


def check_reduction(op: str, ignore_index: int, reduction: str, num_items: NumItems) -> None:
    """How rows become the loss; TypeError or ValueError for what is of the wrong type or outside its range."""
    if reduction == "batchmean":
        raise ValueError(
            f"{op}: reduction is 'batchmean', expected one of {', '.join(REDUCTIONS)}: 'mean' is over rows"
        )
    check_options(op, Loss(ignore_index), reduction, num_items)


def check_temperature(op: str, temperature: float) -> float:
    """The temperature as a float; TypeError if it is no number, ValueError unless it is positive and finite."""
    value = check_number(op, "temperature", temperature)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{op}: temperature is {temperature!r}, expected a positive number")
    return value


# -- Reduction ---------------------------------------------------------------------------------------------------------
def row_divisor(
    rows: int,
    like: torch.Tensor,
    target: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor | None:
    """What the sum over ``rows`` is divided by, 0-dimensional on the device of ``like``; None for a plain sum."""
    dtype = stat_dtype(like)
    if target is None and num_items is None:
        return like.new_full((), rows, dtype=dtype) if reduction == "mean" else None
    kept = like.new_empty(0) if target is None else target
    return divisor(kept, None, None, dtype, ignore_index, reduction, num_items)


def reduce_rows(
    rows: torch.Tensor, target: torch.Tensor | None, *, ignore_index: int, reduction: str, num_items: NumItems
) -> torch.Tensor:
    """Losses (...,) of all rows -> the loss; those with ``ignore_index`` are 0 and pass no gradient, not even nan."""
    if target is not None:
        rows = rows.masked_fill(target == ignore_index, 0.0)
    if reduction == "none":
        return rows
    return divide(rows.sum(), row_divisor(rows.numel(), rows, target, ignore_index, reduction, num_items))


def kept_logits(logits: torch.Tensor, target: torch.Tensor | None, ignore_index: int) -> torch.Tensor:
    """For references: logits in fp32 (fp64 for fp64), 0 in ignored rows, so that an inf there has no derivative."""
    wide = acc(logits)
    return wide if target is None else wide.masked_fill((target == ignore_index)[..., None], 0.0)


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Reduced(torch.autograd.Function):
    """Sum of the losses over ``by``. The gradient is made in the forward and handed out, scaled in place, once.

    A further backward computes it again. While compiling it is a saved tensor, scaled out of place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student: torch.Tensor,
        teacher: torch.Tensor,
        target: torch.Tensor | None,
        by: torch.Tensor | None,
        make: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        scale: Callable[..., torch.Tensor],
        options: tuple[Any, ...],
    ) -> torch.Tensor:
        factor = None if by is None else by.reciprocal()
        rows, made = make(student, teacher, target, factor, *options, True, True)
        ctx.make, ctx.scale, ctx.options, ctx.compiled = make, scale, options, torch.compiler.is_compiling()
        if ctx.compiled:
            ctx.save_for_backward(made)
        else:
            ctx.save_for_backward(student, teacher, target, factor)
            ctx.made = made
        return divide(rows.sum(), by)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(ctx.options[0])
        if ctx.compiled:
            (made,) = ctx.saved_tensors
            return ctx.scale(made, dy, False), None, None, None, None, None, None
        student, teacher, target, factor = ctx.saved_tensors
        made, ctx.made = ctx.made, None
        if made is None:
            _, made = ctx.make(student, teacher, target, factor, *ctx.options, False, True)
        return ctx.scale(made, dy, True), None, None, None, None, None, None


class _Each(torch.autograd.Function):
    """The losses one by one, or their sum over ``by``. Everything is computed in the backward, again."""

    @staticmethod
    def forward(
        ctx: Any,
        student: torch.Tensor,
        teacher: torch.Tensor,
        target: torch.Tensor | None,
        by: torch.Tensor | None,
        make: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        total: bool,
        options: tuple[Any, ...],
    ) -> torch.Tensor:
        rows, _ = make(student, teacher, target, None, *options, True, False)
        ctx.save_for_backward(student, teacher, target, by)
        ctx.make, ctx.options = make, options
        return divide(rows.sum(), by) if total else rows

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(ctx.options[0])
        student, teacher, target, by = ctx.saved_tensors
        _, made = ctx.make(student, teacher, target, divide(dy, by), *ctx.options, False, True)
        return made, None, None, None, None, None, None


def pair_loss(
    make: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    scale: Callable[..., torch.Tensor],
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    by: torch.Tensor | None,
    total: bool,
    options: tuple[Any, ...],
) -> torch.Tensor:
    """The losses that ``make`` computes, or their sum over ``by``, with a gradient for the student.

    The sum has its gradient made in the forward. Not so in fp16, where a small one is lost before a gradient scaler's
    factor arrives.

    Args:
        make: ``f(student, teacher, target, factor, *options, loss, gradient) -> losses, dstudent``, or None for what is
            not asked for; the factor of the gradient is None, one number, or one for each loss.
        scale: ``f(gradient, dy, in_place) -> gradient``.
        options: of ``make``; the first is the op's name.
    """
    if not (torch.is_grad_enabled() and student.requires_grad):
        rows, _ = make(student, teacher, target, None, *options, True, False)
        return divide(rows.sum(), by) if total else rows
    if total and student.dtype != torch.float16:
        return _Reduced.apply(student, teacher, target, by, make, scale, options)  # type: ignore[no-any-return, no-untyped-call]
    return _Each.apply(student, teacher, target, by, make, total, options)  # type: ignore[no-any-return, no-untyped-call]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def pair_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """A student with rows of magnitude 1, 1e-3 and 3 in turn, a teacher with rows of magnitude 2, targets below 4.

    A row of larger ones is one class alone, whose gradient is what cancellation leaves, in eager as by chance.
    Variants: "ignored rows", loud ones; "no target"; "masked", where the teacher excludes some classes.
    """
    size = torch.tensor([1.0, 1e-3, 3.0])[torch.arange(N) % 3, None]
    student, teacher = torch.randn(N, V, generator=generator) * size, torch.randn(N, V, generator=generator) * 2
    target = torch.arange(N) % 4
    if variant == "ignored rows":
        student[::2], teacher[::2], target[::2] = torch.inf, torch.nan, -100
    if variant == "masked":
        teacher[:, V // 2 + 1 :] = -torch.inf
    given = None if variant == "no target" else target.to(device)
    return (student.to(device, dtype).requires_grad_(), teacher.to(device, dtype), given), {}


def pair_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read both, write the student's gradient: 6 bytes a logit in 16 bit."""
    student, teacher = tensors[0], tensors[1]
    assert student is not None
    assert teacher is not None
    return {"full": 2 * student.nbytes + teacher.nbytes}
