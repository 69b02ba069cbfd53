"""The vocabulary-parallel cross-entropies, for any device and backend: who sends what when, and the gradients."""

from __future__ import annotations

import functools
from typing import Any

import torch

from liger.launch import refuse_second_derivative
from liger_kernels_loss._chunked import BACKENDS, Backend, Chunking
from liger_kernels_loss._labels_chunked import largest_weight, rows_of
from liger_kernels_loss._loss import Loss, RowResults, Rows, Upstream, Wants, combine, is_soft
from liger_kernels_loss._result import CrossEntropyOutput, Result, make_result
from liger_kernels_loss._shards import Shards, everyone, summed_gradient
from liger_kernels_loss._vocab_parallel_rows import (
    MATHS,
    Place,
    Whole,
    first_best,
    make_coefficients,
    shard_gradient,
    shard_statistics,
    whole_rows,
)

OP, LINEAR_OP = "vocab_parallel_cross_entropy", "vocab_parallel_linear_cross_entropy"


# -- cross_entropy -----------------------------------------------------------------------------------------------------
class _CrossEntropy(torch.autograd.Function):
    """The reduced loss if there is one, and the results of the rows. Saves the logits and a few numbers a row."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        class_weight: torch.Tensor | None,
        result: Result,
        shards: Shards,
        maths: str,
    ) -> tuple[torch.Tensor | None, ...]:
        flat = logits.reshape(-1, logits.shape[-1]).contiguous()
        place, wants = Place(shards.first, shards.classes), result.wants
        mine = shard_statistics(
            flat, result.target, class_weight, *place, *result.loss, wants.entropy, wants.best, maths
        )
        rows, pull = whole_rows(everyone(mine, shards), result.target, place, result.loss, wants)
        factor = result.factor() if result.reduced else None
        ctx.save_for_backward(flat, result.target, class_weight, factor, pull, rows.top, rows.total, rows.entropy)
        ctx.place, ctx.loss, ctx.maths, ctx.shape = place, result.loss, maths, logits.shape
        ctx.set_materialize_grads(False)
        if rows.best is not None:
            ctx.mark_non_differentiable(rows.best)
        lse = rows.top + rows.total.log() if wants.lse else None  # type: ignore[operator, union-attr]
        return result.reduce(rows.loss) if result.reduced else None, rows.loss, lse, rows.entropy, rows.best

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(OP)
        logits, target, class_weight, factor, pull, top, total, entropy = ctx.saved_tensors
        upstream = combine(dy[0], factor, *dy[1:4], like=top)
        whole = Whole(Rows(top, top, total, entropy), pull)
        coefficients = make_coefficients(whole, upstream, ctx.place, ctx.loss)
        out = shard_gradient(logits, target, class_weight, coefficients, *ctx.place, *ctx.loss, ctx.maths)
        return out.view(ctx.shape), None, None, None, None


def parallel_cross_entropy(
    maths: str,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    *,
    group: str,
    shards: tuple[int, ...],
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
    check_labels: bool,
    **loss: Any,
) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_cross_entropy``."""
    del check_labels
    found, options = Shards.of(group, shards), Loss(**loss)
    weight = None if weight is None else weight.contiguous()
    num_items = _num_items(target, weight, token_weight, options.ignore_index, reduction, num_items, found)
    asked = _asked(target, returns)
    result = make_result(target, None, token_weight, logits, options, reduction, num_items, asked)
    total, *rows = _CrossEntropy.apply(logits, weight, result, found, maths)  # type: ignore[no-untyped-call]
    return _answered(result.finish(RowResults(*rows), total), target, returns, found)


def _num_items(
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    shards: Shards,
) -> int | float | torch.Tensor | None:
    """``num_items``; or what a mean with class weights is divided by, for the weight of a label lies on one rank."""
    if class_weight is None or reduction != "mean" or num_items is not None or is_soft(target):
        return num_items
    at = target - shards.first
    here = (at >= 0) & (at < class_weight.shape[0]) & (target != ignore_index)
    weights = class_weight[at.masked_fill(~here, 0)] * here
    mine = (weights if token_weight is None else weights * token_weight.to(weights.dtype)).sum()
    return everyone(mine, shards).sum(0)


# With probabilities the class that is compared with the prediction lies on one rank, too.
def _asked(target: torch.Tensor, returns: tuple[str, ...]) -> tuple[str, ...]:
    """What has to be returned by what knows this rank's columns of the target alone."""
    if not is_soft(target) or "token_accuracy" not in returns:
        return returns
    return (*[name for name in returns if name != "token_accuracy"], "predictions")


def _answered(
    found: torch.Tensor | CrossEntropyOutput, target: torch.Tensor, returns: tuple[str, ...], shards: Shards
) -> torch.Tensor | CrossEntropyOutput:
    """What was asked for, from what ``_asked`` has found."""
    if isinstance(found, torch.Tensor) or not is_soft(target) or "token_accuracy" not in returns:
        return found
    peak, best = target.detach().max(-1)
    place = Place(shards.first, shards.classes)
    labels = first_best(everyone(peak, shards), everyone(best + place.first, shards), place)
    assert found.predictions is not None
    accuracy = found.predictions.eq(labels).sum() / labels.numel()
    return found._replace(token_accuracy=accuracy, predictions=found.predictions if "predictions" in returns else None)


# -- linear_cross_entropy ----------------------------------------------------------------------------------------------
def _step(
    maths: str,
    shards: Shards,
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: Upstream,
    rows: Rows,
    loss: Loss,
    out: torch.Tensor | None,
) -> None:
    """A chunk of ``_chunked``: the ranks meet once."""
    shards = shards if shards.sizes else shards._replace(sizes=(logits.shape[1],))
    place = Place(shards.first, shards.classes)
    wants = Wants(True, rows.entropy is not None or upstream.entropy is not None, rows.best is not None)
    mine = shard_statistics(logits, target, class_weight, *place, *loss, wants.entropy, wants.best, maths)
    whole = whole_rows(everyone(mine, shards), target, place, loss, wants)
    for kept, value in zip(rows, whole.rows, strict=True):
        if kept is not None and value is not None:
            kept.copy_(value)
    if out is not None:
        coefficients = make_coefficients(whole, upstream, place, loss)
        MATHS[maths].gradient(logits, target, class_weight, coefficients, place, loss, out)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _backend(maths: str, group: str, sizes: tuple[int, ...]) -> str:
    """The name of a backend of ``_chunked`` for these shards; no sizes if all columns are here."""
    name = f"{maths}, {group}, {sizes}"
    if name not in BACKENDS:
        step = functools.partial(_step, maths, Shards.of(group, sizes))
        BACKENDS[name] = Backend(step, BACKENDS[maths].scale, classes=max(sizes, default=0))
    return name


def parallel_linear_cross_entropy(
    maths: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    *,
    group: str,
    shards: tuple[int, ...],
    reduce_hidden_gradient: bool,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
    check_labels: bool,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    compact: bool,
    **loss: Any,
) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_linear_cross_entropy``."""
    del check_labels
    found, options = Shards.of(group, shards), Loss(**loss)
    flat = hidden.reshape(-1, hidden.shape[-1])
    flat = summed_gradient(flat, found, LINEAR_OP) if reduce_hidden_gradient else flat
    class_weight = None if class_weight is None else class_weight.contiguous()
    num_items = _num_items(target, class_weight, token_weight, options.ignore_index, reduction, num_items, found)
    result = make_result(target, None, token_weight, flat, options, reduction, num_items, _asked(target, returns))
    chunking = Chunking(_backend(maths, group, () if found.alone else shards), accum_dtype, workspace_mb)
    largest = largest_weight(class_weight, flat)
    largest = None if largest is None else everyone(largest, found).amax()
    total, rows = rows_of(LINEAR_OP, flat, weight, bias, class_weight, result, chunking, compact, largest)
    return _answered(result.finish(rows, total), target, returns, found)
