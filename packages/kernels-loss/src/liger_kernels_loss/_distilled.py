"""Two heads whose logits are compared, in chunks: the private op below linear_jsd and linear_kl."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from liger.launch import private_op
from liger_kernels_loss._chunked import BACKENDS, Chunking, Needs, Work, each_chunk, gradients_like, linear_rows
from liger_kernels_loss._chunks import chunk_rows, scaled_upstream
from liger_kernels_loss._loss import Loss, Rows, Upstream, Wants, stat_dtype
from liger_kernels_loss._pairs import NumItems, row_divisor
from liger_kernels_loss._result import Result
from liger_kernels_loss.transforms import head


# -- Two heads ---------------------------------------------------------------------------------------------------------
def _pairs_fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor | None,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    teacher_bias: torch.Tensor | None,
    dloss: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    beta: float,
    temperature: float,
    ignore_index: int,
    hard_weight: float,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    losses = hidden.new_empty(hidden.shape[0], dtype=stat_dtype(hidden))
    return losses, *gradients_like(hidden, weight, accum_dtype, Needs(need_hidden, need_weight, need_bias))


@private_op("linear_jsd", _pairs_fake)
def _pairs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor | None,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    teacher_bias: torch.Tensor | None,
    dloss: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    beta: float,
    temperature: float,
    ignore_index: int,
    hard_weight: float,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden (N, H), teacher_hidden (N, T) -> losses (N,), dhidden (N, H), dweight (V, H), dbias (V,).

    ``dloss``, ``scale`` and what is empty: as in ``_labels_chunked.chunked``.
    """
    needs = Needs(need_hidden, need_weight, need_bias)
    losses = hidden.new_empty(hidden.shape[0], dtype=stat_dtype(hidden))
    # the gradient of the soft part takes the place of the teacher's logits, unless that would round it
    apart = hard_weight > 0.0 and torch.promote_types(hidden.dtype, teacher_hidden.dtype) != teacher_hidden.dtype
    item = hidden.element_size() * (1 + apart) + teacher_hidden.element_size()
    N, width = hidden.shape
    size = chunk_rows(N, width, weight.shape[0], item, workspace_mb, hidden.device.type)
    logits = teacher_hidden.new_empty((min(size, N), weight.shape[0]))
    place = hidden.new_empty(logits.shape) if apart and any(needs) else logits
    soft, hard = _shares(scaled_upstream(dloss, scale, hidden), hard_weight, hidden)
    use, pair = BACKENDS[backend], BACKENDS[backend].pair
    assert pair is not None

    def step(part: slice, z: torch.Tensor) -> None:
        t, y, found = logits[: z.shape[0]], among(target, part), losses[part]
        head(teacher_hidden[part], teacher_weight, teacher_bias, out=t)
        dz, dt = (z, place[: z.shape[0]]) if any(needs) else (None, None)
        if hard is None:
            pair(z, t, y, among(soft, part), found, beta, temperature, ignore_index, dz)
            return
        pair(z, t, y, soft[part], found, beta, temperature, ignore_index, dt)
        rows = torch.empty_like(found)
        use.step(z, y, None, Upstream(hard[part]), Rows(rows), Loss(ignore_index), dz)
        found.mul_(1.0 - hard_weight).add_(rows, alpha=hard_weight)
        if dt is not None:
            z.add_(dt)

    return losses, *each_chunk(step, size, hidden, weight, bias, accum_dtype, needs)


def _shares(dloss: torch.Tensor | None, hard_weight: float, like: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
    """Upstream gradients (N,) of the soft and of the hard losses; None for ones, and for no hard losses."""
    if not hard_weight:
        return dloss, None
    dloss = like.new_ones(like.shape[0], dtype=stat_dtype(like)) if dloss is None else dloss
    return dloss * (1.0 - hard_weight), dloss * hard_weight


def among(rows: torch.Tensor | None, part: slice) -> torch.Tensor | None:
    return None if rows is None else rows[part]


def _run(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tensors: Sequence[torch.Tensor | None],
    upstream: Upstream,
    scale: torch.Tensor | None,
    options: tuple[Any, ...],
    wants: Wants,
    needs: Needs,
) -> tuple[Rows, Sequence[torch.Tensor]]:
    """``Work.run``; ``tensors`` are the target and the teacher's hidden, weight and bias."""
    losses, *made = _pairs(hidden, weight, bias, *tensors, upstream.loss, scale, *options, *needs)
    return Rows(losses), made


# -- Results -----------------------------------------------------------------------------------------------------------
def distilled(
    op: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor | None,
    run: Callable[..., tuple[Rows, Sequence[torch.Tensor]]],
    tensors: tuple[torch.Tensor | None, ...],
    options: tuple[Any, ...],
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    """The loss of hidden (..., H) and target (...,); ``run`` is that of a ``Work`` whose tensors begin with the target.

    Shape: scalar, or (...,) for reduction="none".
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    labels = None if target is None else target.reshape(-1).long().contiguous()
    by = row_divisor(flat.shape[0], flat, labels, ignore_index, reduction, num_items)
    loss = Loss(ignore_index)
    result = Result(flat if labels is None else labels, None, by, hidden.shape[:-1], loss, reduction, ())
    total, rows = linear_rows(op, flat, weight, bias, Work(run, (labels, *tensors), options), result)
    return result.reduce(rows.loss) if total is None else total


def linear_jsd_chunked(
    backend: str,
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor | None,
    student_bias: torch.Tensor | None,
    teacher_bias: torch.Tensor | None,
    *,
    beta: float,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
    hard_weight: float,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    op: str = "linear_jsd",
) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_jsd``; ``op`` is the name for errors."""
    tensors = teacher_hidden.reshape(-1, teacher_hidden.shape[-1]), teacher_weight, teacher_bias
    options = (*Chunking(backend, accum_dtype, workspace_mb), beta, temperature, ignore_index, hard_weight)
    head_and_target = student_hidden, student_weight, student_bias, target
    return distilled(op, *head_and_target, _run, tensors, options, ignore_index, reduction, num_items)


def linear_kl_chunked(backend: str, *tensors: Any, reverse: bool, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_kl``."""
    return linear_jsd_chunked(backend, *tensors, beta=float(reverse), op="linear_kl", **options)
