"""What the cross-entropies share: the checks of their common arguments, the loss of a row, and the reduction."""

from __future__ import annotations

from typing import NamedTuple

import torch

from liger.dispatch import check_number, check_tensor
from liger.launch import private_op
from liger_kernels_loss.transforms import check_transform

REDUCTIONS = ("mean", "sum", "none")


class Loss(NamedTuple):
    """The options that shape the loss of one row; see ``cross_entropy``."""

    ignore_index: int
    label_smoothing: float
    softcap: float | None
    logit_scale: float
    z_loss: float


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_options(op: str, loss: Loss, reduction: str, num_items: int | float | torch.Tensor | None) -> None:
    """Raise for values outside the options' range, of another type, or that contradict each other."""
    if not isinstance(loss.ignore_index, int):
        raise TypeError(f"{op}: ignore_index must be an int, got {type(loss.ignore_index).__name__}")
    for name, value in (("label_smoothing", loss.label_smoothing), ("z_loss", loss.z_loss)):
        check_number(op, name, value)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: reduction is {reduction!r}, expected one of {', '.join(REDUCTIONS)}")
    if not 0.0 <= loss.label_smoothing <= 1.0:
        raise ValueError(f"{op}: label_smoothing is {loss.label_smoothing!r}, expected a number in [0, 1]")
    if not 0.0 <= loss.z_loss < float("inf"):
        raise ValueError(f"{op}: z_loss is {loss.z_loss!r}, expected a finite number, 0 or more")
    check_transform(op, softcap=loss.softcap, logit_scale=loss.logit_scale)
    if num_items is not None:
        _check_num_items(op, reduction, num_items)


def _check_num_items(op: str, reduction: str, num_items: int | float | torch.Tensor) -> None:
    if reduction == "none":
        raise ValueError(f"{op}: num_items divides a sum, but reduction is 'none'; use 'mean' or 'sum'")
    if isinstance(num_items, torch.Tensor):
        if num_items.numel() != 1:
            raise ValueError(f"{op}: num_items has shape {tuple(num_items.shape)}, expected one element")
        return
    check_number(op, "num_items", num_items, "None, a number or a tensor of one element")
    if not num_items >= 0:
        raise ValueError(f"{op}: num_items is {num_items}, expected a number of items, 0 or more")


def check_target(op: str, target: torch.Tensor, like: torch.Tensor, name: str) -> None:
    """``target`` must be a tensor of integers, one for each row of ``like``, on the same device."""
    check_tensor(op, "target", target)
    if target.dtype.is_floating_point or target.dtype.is_complex or target.dtype == torch.bool:
        raise TypeError(f"{op}: target must hold integer class indices, got {target.dtype}")
    if target.device != like.device:
        raise TypeError(f"{op}: target is on {target.device}, expected {like.device} like {name}")
    if target.shape != like.shape[:-1]:
        raise ValueError(
            f"{op}: target has shape {tuple(target.shape)}, expected {tuple(like.shape[:-1])}, "
            f"the leading dimensions of {name} {tuple(like.shape)}"
        )


def check_class_weight(
    op: str, weight: torch.Tensor | None, like: torch.Tensor, classes: int, name: str
) -> torch.Tensor | None:
    """Return class weights (V,) in the dtype of the statistics, or None."""
    if weight is None:
        return None
    check_tensor(op, name, weight)
    if not weight.dtype.is_floating_point or weight.device != like.device:
        raise TypeError(f"{op}: {name} must be floating on {like.device}, got {weight.dtype} on {weight.device}")
    if weight.shape != (classes,):
        raise ValueError(f"{op}: {name} has shape {tuple(weight.shape)}, expected ({classes},), one for each class")
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{op}: {name} requires a gradient, which is not defined; expected a tensor that needs none")
    return weight.to(torch.float64 if like.dtype == torch.float64 else torch.float32)


def _checked_labels_fake(target: torch.Tensor, classes: int, ignore_index: int, op: str) -> torch.Tensor:
    return torch.empty_like(target)


@private_op("checked_labels", _checked_labels_fake)
def checked_labels(target: torch.Tensor, classes: int, ignore_index: int, op: str) -> torch.Tensor:
    """A copy of ``target``, after a look at its values; this waits for the device.

    Raises:
        ValueError: a label is neither ``ignore_index`` nor in [0, classes).
    """
    wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
    if wrong.any():
        first = target[wrong][0].item()
        raise ValueError(
            f"{op}: target has {int(wrong.sum())} of {target.numel()} labels outside [0, {classes}), "
            f"the first is {first}; "
            f"expected class indices below {classes} or ignore_index={ignore_index}"
        )
    return target.clone()


# -- Reference ---------------------------------------------------------------------------------------------------------
def row_losses(z: torch.Tensor, target: torch.Tensor, class_weight: torch.Tensor | None, loss: Loss) -> torch.Tensor:
    """Transformed logits z (N, V), target (N,) -> loss of each row (N,): the definition, in plain torch."""
    rows = torch.nn.functional.cross_entropy(
        z,
        target,
        class_weight,
        reduction="none",
        ignore_index=loss.ignore_index,
        label_smoothing=loss.label_smoothing,
    )
    if loss.z_loss:
        penalty = loss.z_loss * z.logsumexp(-1).square()
        rows = rows + penalty.masked_fill(target == loss.ignore_index, 0.0)
    return rows


# -- Reduction ---------------------------------------------------------------------------------------------------------
def divisor(
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    dtype: torch.dtype,
    ignore_index: int,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
) -> torch.Tensor | None:
    """What the sum over rows is divided by, 0-dimensional; None for a plain sum and for no reduction.

    ``num_items`` if given; else "mean" divides by the number of kept rows, or by the sum of their class weights.
    """
    if isinstance(num_items, torch.Tensor):
        # to an accelerator the copy needs no wait; from one it does
        return num_items.to(target.device, dtype, non_blocking=target.device.type != "cpu").reshape(())
    if num_items is not None:
        return torch.full((), num_items, dtype=dtype, device=target.device)
    if reduction != "mean":
        return None
    kept = target != ignore_index
    if class_weight is not None:
        kept = class_weight[target.clamp(0, class_weight.shape[0] - 1)] * kept
    return kept.sum().to(dtype)


def divide(total: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
    """From the sum over rows to the loss. As in torch, 0 / 0 is nan and x / 0 inf, and ignored rows have gradient 0."""
    return total if by is None else total / by
