"""Rows of which each rank holds some columns: statistics of the shards, from them those of the whole rows.

A row of one shard yields, with t the target (one for the label's class, or probabilities), w class weights and the
largest transformed logit ``top`` of that shard:

    total = sum exp(z - top)        mass = sum t w         found = sum t w (top - z)
    away = sum w (top - z)          width = sum w          bent = sum exp(z - top) (z - top)

All ranks gather these, a few numbers a row in one collective. With the largest top of all and the distance to it,
shift >= 0, the sums of the whole row are sums over ranks of

    total exp(-shift),  mass,  found + shift mass,  away + shift width,  width,  (bent - shift total) exp(-shift)

No term of ``found`` and ``away`` is negative, so a log-prob is never above 0. Each rank then knows the loss, and the
gradient of its own columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from liger.launch import private_op
from liger_kernels_loss._loss import Loss, Rows, Upstream, Wants, ignored_rows, is_soft, stat_dtype


class Place(NamedTuple):
    """Where this rank's columns lie: the class of the first one, and the number of all classes."""

    first: int
    classes: int


class Maths(NamedTuple):
    """What differs between kernels; ``_vocab_parallel_torch`` says what each does.

    ``statistics(logits, target, class_weight, place, loss, wants, out)`` and
    ``gradient(logits, target, class_weight, coefficients, place, loss, out)``.
    """

    statistics: Callable[..., None]
    gradient: Callable[..., None]


MATHS: dict[str, Maths] = {}


def fields(loss: Loss, wants: Wants) -> tuple[str, ...]:
    """Names of the statistics of a shard, in the order in which kernels write them."""
    smooth = ("away", "width") if loss.label_smoothing else ()
    return "top", "total", "mass", "found", *smooth, *("bent",) * wants.entropy, *("peak", "best") * wants.best


# -- The two passes over a shard ---------------------------------------------------------------------------------------
def _statistics_fake(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    first: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    entropy: bool,
    best: bool,
    maths: str,
) -> torch.Tensor:
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    names = fields(loss, Wants(True, entropy, best))
    return logits.new_empty((len(names), logits.shape[0]), dtype=stat_dtype(logits))


@private_op("vocab_parallel_statistics", _statistics_fake)
def shard_statistics(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    first: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    entropy: bool,
    best: bool,
    maths: str,
) -> torch.Tensor:
    """logits (N, columns), target (N,) of classes or (N, columns) -> (K, N), the rows of ``fields``.

    All are 0 where the target is ``ignore_index``. ``mass`` is nan where it is outside [0, classes).
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    wants = Wants(True, entropy, best)
    out = logits.new_empty((len(fields(loss, wants)), logits.shape[0]), dtype=stat_dtype(logits))
    MATHS[maths].statistics(logits, target, class_weight, Place(first, classes), loss, wants, out)
    return out


def _gradient_fake(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    coefficients: torch.Tensor,
    first: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    maths: str,
) -> torch.Tensor:
    return torch.empty_like(logits)


@private_op("vocab_parallel_gradient", _gradient_fake)
def shard_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    coefficients: torch.Tensor,
    first: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    maths: str,
) -> torch.Tensor:
    """logits (N, columns) and ``make_coefficients`` -> dlogits."""
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    out = torch.empty_like(logits)
    MATHS[maths].gradient(logits, target, class_weight, coefficients, Place(first, classes), loss, out)
    return out


# -- From shards to rows -----------------------------------------------------------------------------------------------
class Whole(NamedTuple):
    """What is known of the rows (N,) of the whole vocabulary: ``Rows``, and the derivative of loss by lse."""

    rows: Rows
    pull: torch.Tensor


def whole_rows(parts: torch.Tensor, target: torch.Tensor, place: Place, loss: Loss, wants: Wants) -> Whole:
    """(ranks, K, N), the rows of ``fields`` for each rank -> what they say together."""
    part = dict(zip(fields(loss, wants), parts.unbind(1), strict=True))
    top = part["top"].amax(0)
    shift = top - part["top"]  # inf for a shard that holds nothing but -inf
    shrink = (-shift).exp()
    total, mass = (part["total"] * shrink).sum(0), part["mass"].sum(0)
    found = (part["found"] + _times(shift, part["mass"])).sum(0)
    ignored = None if is_soft(target) else ignored_rows(target, loss.ignore_index)
    top, total = _kept(top, ignored, 0.0), _kept(total, ignored, 1.0)
    log_total = total.log()
    lse = top + log_total
    s = loss.label_smoothing
    rows, pull = (1.0 - s) * (found + mass * log_total), (1.0 - s) * mass
    if s:
        width = part["width"].sum(0)
        away = (part["away"] + _times(shift, part["width"])).sum(0)
        rows = rows + s / place.classes * (away + width * log_total)
        pull = pull + s / place.classes * width
    if loss.z_loss:
        rows, pull = rows + loss.z_loss * lse.square(), pull + 2.0 * loss.z_loss * lse
    entropy = best = None
    if wants.entropy:
        bent = ((part["bent"] - _times(shift, part["total"])) * shrink).sum(0)
        entropy = _kept(log_total - bent / total, ignored, 0.0)
    if wants.best:
        best = _kept(first_best(part["peak"], part["best"], place), ignored, loss.ignore_index)
    return Whole(Rows(_kept(rows, ignored, 0.0), top, total, entropy, best), _kept(pull, ignored, 0.0))


def _kept(x: torch.Tensor, ignored: torch.Tensor | None, fill: float) -> torch.Tensor:
    return x if ignored is None else x.masked_fill(ignored, fill)


def _times(shift: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Their product; 0 where x is, though shift may be inf."""
    return (shift * x).masked_fill(x == 0.0, 0.0)


def first_best(peak: torch.Tensor, best: torch.Tensor, place: Place) -> torch.Tensor:
    """(ranks, N) largest logits and their classes -> the class of the largest of all (N,), the first of equals."""
    return best.masked_fill(peak != peak.amax(0), place.classes - 1).amin(0).long()


def make_coefficients(whole: Whole, upstream: Upstream, place: Place, loss: Loss) -> torch.Tensor:
    """Return top, pull, hit, smooth and with a gradient of the entropy bend, (4 or 5, N).

    dloss/dz = exp(z - top) * (pull - bend * (z - top)) - hit * t * w - smooth * w.
    """
    rows = whole.rows
    assert rows.top is not None
    assert rows.total is not None
    dloss = torch.ones_like(rows.top) if upstream.loss is None else upstream.loss
    pull = whole.pull * dloss
    if upstream.lse is not None:
        pull = pull + upstream.lse
    more = []
    if upstream.entropy is not None:
        assert rows.entropy is not None
        pull = pull + upstream.entropy * (rows.total.log() - rows.entropy)
        more = [upstream.entropy / rows.total]
    s = loss.label_smoothing
    return torch.stack([rows.top, pull / rows.total, (1.0 - s) * dloss, s / place.classes * dloss, *more])
