"""What the cross-entropies share: the checks of their common arguments, the loss of a row, and the reduction."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from liger.dispatch import check_number, check_tensor
from liger.launch import private_op
from liger_kernels_loss.transforms import check_transform, transform

REDUCTIONS = ("mean", "sum", "none")


class Loss(NamedTuple):
    """The options that shape the loss of one row; see ``cross_entropy``."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0
    temperature: float = 1.0
    z_loss: float = 0.0


class Wants(NamedTuple):
    """Which statistics of the rows are wanted besides their losses."""

    lse: bool = False
    entropy: bool = False
    best: bool = False


class Rows(NamedTuple):
    """Where a kernel writes what it finds in each row: (N,) in the dtype of the statistics, ``best`` int64.

    ``loss`` and ``entropy`` are 0 and ``best`` is ``ignore_index`` where the label is. lse = top + log(total), where
    ``top`` is the largest transformed logit; the two are kept apart because p = exp(z - top) / total is exact then.
    """

    loss: torch.Tensor
    top: torch.Tensor | None = None
    total: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    best: torch.Tensor | None = None

    @classmethod
    def empty(cls, n: int, like: torch.Tensor, wants: Wants) -> Rows:
        """For ``n`` rows on the device of ``like``, in its dtype or float32 if that is wider."""

        def make(wanted: bool) -> torch.Tensor | None:
            return like.new_empty(n, dtype=stat_dtype(like)) if wanted else None

        best = like.new_empty(n, dtype=torch.int64) if wants.best else None
        loss, lse = like.new_empty(n, dtype=stat_dtype(like)), wants.lse
        return cls(loss, make(lse), make(lse), make(wants.entropy), best)

    def part(self, part: slice) -> Rows:
        """The same of some rows, as views."""
        return Rows(*[None if t is None else t[part] for t in self])  # type: ignore[arg-type]


class RowResults(NamedTuple):
    """What a kernel's autograd function returns for each row, (N,): differentiable but for ``best``."""

    loss: torch.Tensor
    lse: torch.Tensor | None
    entropy: torch.Tensor | None
    best: torch.Tensor | None

    def among(self, kept: torch.Tensor, n: int, ignore_index: int) -> RowResults:
        """The results of ``n`` rows, of which these are ``kept`` and the others ignored."""

        def spread_out(t: torch.Tensor, fill: int = 0) -> torch.Tensor:
            return t.new_full((n,), fill).index_copy(0, kept, t)

        lse, entropy = (None if t is None else spread_out(t) for t in (self.lse, self.entropy))
        best = None if self.best is None else spread_out(self.best, ignore_index)
        return RowResults(spread_out(self.loss), lse, entropy, best)


class Upstream(NamedTuple):
    """Gradients of a row's results, (N,) in the dtype of the statistics; None for 1 (``loss``) and 0 (the others)."""

    loss: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    entropy: torch.Tensor | None = None

    def part(self, part: slice) -> Upstream:
        """The same of some rows, as views."""
        return Upstream(*[None if t is None else t[part] for t in self])


def spread(factor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """One number for each row of ``like``: a 0-dimensional tensor becomes (N,) with stride 0."""
    return factor if factor is None or factor.dim() else factor.expand(like.shape[0])


def combine(
    dtotal: torch.Tensor | None,
    factor: torch.Tensor | None,
    drows: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    *,
    like: torch.Tensor,
) -> Upstream:
    """Gradients of rows (N,) from that of the reduced loss, sum(rows * factor), and those of the rows themselves."""
    dloss = drows
    if dtotal is not None:
        of_total = spread(dtotal if factor is None else dtotal * factor, like)
        dloss = of_total if drows is None or of_total is None else drows + of_total
    if dloss is None:
        dloss = like.new_zeros(1, dtype=stat_dtype(like)).expand(like.shape[0])
    others = [None if d is None else d.contiguous() for d in (dlse, dentropy)]
    return Upstream(dloss, *others)


def class_total(class_weight: torch.Tensor | None, loss: Loss) -> torch.Tensor | None:
    """Sum of the class weights (1,), where the smoothing needs it."""
    return None if class_weight is None or not loss.label_smoothing else class_weight.sum().reshape(1)


def stat_dtype(like: torch.Tensor) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if like.dtype == torch.float64 else torch.float32


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_options(op: str, loss: Loss, reduction: str, num_items: int | float | torch.Tensor | None) -> Loss:
    """Return ``loss`` with Python's floats.

    Raises:
        TypeError: an option is of another type.
        ValueError: one is outside its range, or two contradict each other.
    """
    if not isinstance(loss.ignore_index, int):
        raise TypeError(f"{op}: ignore_index must be an int, got {type(loss.ignore_index).__name__}")
    smoothing, z_loss = (check_number(op, name, getattr(loss, name)) for name in ("label_smoothing", "z_loss"))
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: reduction is {reduction!r}, expected one of {', '.join(REDUCTIONS)}")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{op}: label_smoothing is {loss.label_smoothing!r}, expected a number in [0, 1]")
    if not 0.0 <= z_loss < float("inf"):
        raise ValueError(f"{op}: z_loss is {loss.z_loss!r}, expected a finite number, 0 or more")
    numbers = check_transform(op, softcap=loss.softcap, logit_scale=loss.logit_scale, temperature=loss.temperature)
    if num_items is not None:
        _check_num_items(op, reduction, num_items)
    return Loss(loss.ignore_index, smoothing, *numbers, z_loss)


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


def check_target(
    op: str, target: torch.Tensor, like: torch.Tensor, name: str, classes: int, *, soft: bool = True
) -> torch.Tensor:
    """``target`` must hold an integer, or if ``soft`` a floating distribution, for each row of ``like``.

    Integers are returned as int64: narrower ones compare with ``ignore_index`` and ``classes`` modulo their range.
    """
    check_tensor(op, "target", target)
    floating = target.dtype.is_floating_point
    labels = tuple(like.shape[:-1])
    wrong = target.dtype.is_complex or target.dtype == torch.bool or (floating and not soft)
    if wrong or (floating and tuple(target.shape) == labels):
        also = f", or probabilities of shape {(*labels, classes)}" if soft else ""
        raise TypeError(
            f"{op}: target must hold integer class indices{also}, got {target.dtype} of shape {tuple(target.shape)}"
        )
    if target.device != like.device:
        raise TypeError(f"{op}: target is on {target.device}, expected {like.device} like {name}")
    expected = (*labels, classes) if floating else labels
    if tuple(target.shape) != expected:
        raise ValueError(
            f"{op}: target has shape {tuple(target.shape)}, expected {expected} "
            f"for {'probabilities' if floating else 'labels'} and {name} {tuple(like.shape)}"
        )
    if floating and target.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{op}: target requires a gradient, which is not defined; expected one that needs none, as target.detach()"
        )
    return target if floating else target.long()


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
    return weight.to(stat_dtype(like))


def _checked_labels_fake(target: torch.Tensor, classes: int, ignore_index: int, op: str) -> torch.Tensor:
    return torch.empty_like(target)


@private_op("checked_labels", _checked_labels_fake)
def checked_labels(target: torch.Tensor, classes: int, ignore_index: int, op: str) -> torch.Tensor:
    """A copy of ``target``, after a look at its values; this waits for the device.

    Raises:
        ValueError: a label is neither ``ignore_index`` nor in [0, classes), or there are probabilities instead.
    """
    if is_soft(target):
        raise ValueError(f"{op}: check_labels looks at class indices, but target holds {target.dtype} probabilities")
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
def row_results(
    logits: torch.Tensor, target: torch.Tensor, class_weight: torch.Tensor | None, loss: Loss, wants: Wants
) -> RowResults:
    """Logits (N, V), target (N,) or (N, V) -> what each row yields: the definition, in plain torch."""
    z = transform(logits, softcap=loss.softcap, logit_scale=loss.logit_scale, temperature=loss.temperature)
    ignored = ignored_rows(target, loss.ignore_index)
    options: dict[str, Any] = {"reduction": "none", "label_smoothing": loss.label_smoothing}
    if is_soft(target):
        rows = torch.nn.functional.cross_entropy(z, target.to(z.dtype), class_weight, **options)
    else:
        rows = torch.nn.functional.cross_entropy(z, target, class_weight, ignore_index=loss.ignore_index, **options)
    lse = entropy = best = None
    if loss.z_loss or wants.lse:
        lse = z.logsumexp(-1).masked_fill(ignored, 0.0)
        rows = rows + loss.z_loss * lse.square() if loss.z_loss else rows
    if wants.entropy:
        p, log_p = z.softmax(-1), z.log_softmax(-1)
        entropy = (p * -log_p.masked_fill(p == 0.0, 0.0)).sum(-1).masked_fill(ignored, 0.0)
    if wants.best:
        best = best_columns(logits, loss.logit_scale).masked_fill(ignored, loss.ignore_index)
    return RowResults(rows, lse if wants.lse else None, entropy, best)


def best_columns(logits: torch.Tensor, scale: float) -> torch.Tensor:
    """Column of the largest (for a negative scale of the smallest) logit of each row (N,), the first of equals."""
    return (logits if scale > 0 else -logits).detach().argmax(-1)


def is_soft(target: torch.Tensor) -> bool:
    """Whether the target holds a distribution for each row instead of a label."""
    return target.dtype.is_floating_point


def ignored_rows(target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """(N,) bool: the rows whose label is ``ignore_index``; none of them with distributions."""
    if is_soft(target):
        return torch.zeros(target.shape[0], dtype=torch.bool, device=target.device)
    return target == ignore_index


def kept_rows(target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """(N,) bool: the others."""
    if is_soft(target):
        return torch.ones(target.shape[0], dtype=torch.bool, device=target.device)
    return target != ignore_index
