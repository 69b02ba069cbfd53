"""From the results of rows to what a cross-entropy returns: weights of tokens, the reduction, optional outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from liger.dispatch import check_tensor
from liger_kernels_loss._loss import Loss, RowResults, Wants, is_soft, kept_rows, stat_dtype

RETURNS = ("token_loss", "z_loss", "entropy", "token_accuracy", "predictions")


class CrossEntropyOutput(NamedTuple):
    """A cross-entropy with ``returns``; what was not asked for is None.

    All but ``token_accuracy`` and ``predictions`` is differentiable.

    Attributes:
        loss: what is returned without ``returns``: fp32 (fp64 for fp64), scalar or (...,) for reduction="none".
        token_loss: (...,) the loss of each token, what reduction="none" returns; 0 where ignored.
        z_loss: the part of ``loss`` that is z_loss * lse^2, reduced in the same way.
        entropy: (...,) of softmax(z) in nats, 0 where ignored.
        token_accuracy: scalar fp32: share of kept rows whose prediction is the label; nan if there are none. Weights
            of classes and tokens do not count.
        predictions: (...,) int64, the most likely class, the first of equals; ``ignore_index`` where ignored.
    """

    loss: torch.Tensor
    token_loss: torch.Tensor | None = None
    z_loss: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    token_accuracy: torch.Tensor | None = None
    predictions: torch.Tensor | None = None


class Result(NamedTuple):
    """How rows become the result of one call.

    ``target`` is (N,) int64 or (N, V), ``token_weight`` (N,) or None, ``by`` what the sum over rows is divided by,
    0-dimensional, or None, ``shape`` that of the leading dimensions.
    """

    target: torch.Tensor
    token_weight: torch.Tensor | None
    by: torch.Tensor | None
    shape: torch.Size
    loss: Loss
    reduction: str
    returns: tuple[str, ...]

    @property
    def reduced(self) -> bool:
        """Whether the loss is one number."""
        return self.reduction != "none"

    @property
    def wants(self) -> Wants:
        """Statistics that ``returns`` needs."""
        asked = self.returns
        return Wants("z_loss" in asked, "entropy" in asked, "predictions" in asked or "token_accuracy" in asked)

    def of(self, kept: torch.Tensor) -> Result:
        """The same with the rows ``kept`` (n,) alone; the divisor stays."""
        token_weight = None if self.token_weight is None else self.token_weight[kept]
        return self._replace(target=self.target[kept], token_weight=token_weight)

    def weighted(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows times the tokens' weights."""
        return rows if self.token_weight is None else rows * self.token_weight

    def reduce(self, rows: torch.Tensor) -> torch.Tensor:
        """Weighted rows, or their sum over ``by``."""
        rows = self.weighted(rows)
        return divide(rows.sum(), self.by) if self.reduced else rows.view(self.shape)

    def factor(self) -> torch.Tensor | None:
        """Derivative of the reduced loss with respect to each row: (N,), or 0-dimensional if all are equal."""
        inverse = None if self.by is None else self.by.reciprocal()
        if self.token_weight is None:
            return inverse
        return self.token_weight if inverse is None else self.token_weight * inverse

    def finish(self, rows: RowResults, total: torch.Tensor | None = None) -> torch.Tensor | CrossEntropyOutput:
        """The call's result. ``total`` is the reduced loss where a kernel has computed it."""
        loss = self.reduce(rows.loss) if total is None else total
        if not self.returns:
            return loss
        found: dict[str, torch.Tensor] = {}
        if "token_loss" in self.returns:
            found["token_loss"] = self.weighted(rows.loss).view(self.shape)
        if rows.lse is not None:
            found["z_loss"] = self.reduce(self.loss.z_loss * rows.lse.square())
        if rows.entropy is not None:
            found["entropy"] = rows.entropy.view(self.shape)
        if "token_accuracy" in self.returns and rows.best is not None:
            found["token_accuracy"] = self._accuracy(rows.best)
        if "predictions" in self.returns and rows.best is not None:
            found["predictions"] = rows.best.view(self.shape)
        return CrossEntropyOutput(loss, **found)

    def _accuracy(self, best: torch.Tensor) -> torch.Tensor:
        kept = kept_rows(self.target, self.loss.ignore_index)
        labels = self.target.argmax(-1) if is_soft(self.target) else self.target
        return ((best == labels) & kept).sum() / kept.sum()


def make_result(
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    like: torch.Tensor,
    loss: Loss,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
) -> Result:
    """From checked arguments; ``like`` has the dtype of the logits."""
    soft = is_soft(target)
    shape = target.shape[:-1] if soft else target.shape
    flat = target.reshape(-1, target.shape[-1]).contiguous() if soft else target.reshape(-1).long().contiguous()
    token_weight = None if token_weight is None else token_weight.reshape(-1).to(stat_dtype(like))
    by = divisor(flat, class_weight, token_weight, stat_dtype(like), loss.ignore_index, reduction, num_items)
    return Result(flat, token_weight, by, shape, loss, reduction, returns)


def divide(total: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
    """From the sum over rows to the loss. As in torch, 0 / 0 is nan and x / 0 inf, and ignored rows have gradient 0."""
    return total if by is None else total / by


def divisor(
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    dtype: torch.dtype,
    ignore_index: int,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
) -> torch.Tensor | None:
    """What the sum over rows is divided by, 0-dimensional; None for a plain sum and for no reduction.

    ``num_items`` if given; else "mean" divides by the number of kept rows, or by the sum of their weights. With
    distributions class weights do not count here, as in torch.
    """
    if isinstance(num_items, torch.Tensor):
        # to an accelerator the copy needs no wait; from one it does
        return num_items.to(target.device, dtype, non_blocking=target.device.type != "cpu").reshape(())
    if num_items is not None:
        return torch.full((), num_items, dtype=dtype, device=target.device)
    if reduction != "mean":
        return None
    kept = kept_rows(target, ignore_index)
    if class_weight is not None and not is_soft(target):
        kept = class_weight[target.clamp(0, class_weight.shape[0] - 1)] * kept
    return (kept if token_weight is None else token_weight * kept).sum(dtype=dtype)


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_returns(op: str, returns: Any) -> tuple[str, ...]:
    """``returns`` as a tuple of names, each once.

    Raises:
        TypeError: something else than a tuple or list of strings.
        ValueError: an unknown name.
    """
    if not isinstance(returns, (tuple, list)) or not all(isinstance(name, str) for name in returns):
        raise TypeError(f"{op}: returns is {returns!r}, expected a tuple or list of names, as ('token_loss',)")
    if unknown := [name for name in returns if name not in RETURNS]:
        raise ValueError(f"{op}: returns names {', '.join(map(repr, unknown))}, expected some of {', '.join(RETURNS)}")
    return tuple(returns)


def check_token_weight(op: str, token_weight: torch.Tensor | None, like: torch.Tensor, name: str) -> None:
    """``token_weight`` must be None or floating, one for each row of ``like``, on its device, without a gradient."""
    if token_weight is None:
        return
    check_tensor(op, "token_weight", token_weight)
    if not token_weight.dtype.is_floating_point or token_weight.device != like.device:
        raise TypeError(
            f"{op}: token_weight must be floating on {like.device}, got {token_weight.dtype} on {token_weight.device}"
        )
    if token_weight.shape != like.shape[:-1]:
        raise ValueError(
            f"{op}: token_weight has shape {tuple(token_weight.shape)}, expected {tuple(like.shape[:-1])}, "
            f"the leading dimensions of {name} {tuple(like.shape)}"
        )
    if token_weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{op}: token_weight requires a gradient, which is not defined; multiply the result of reduction='none'"
        )
