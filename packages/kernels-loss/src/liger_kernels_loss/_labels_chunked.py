"""Heads with labels or distributions as targets, in chunks: the private op below linear_cross_entropy and log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from liger.launch import private_op
from liger_kernels_loss._chunked import BACKENDS, Chunking, Needs, Work, each_chunk, gradients_like, linear_rows
from liger_kernels_loss._chunks import chunk_rows, scaled_upstream
from liger_kernels_loss._loss import Loss, RowResults, Rows, Upstream, Wants, is_soft
from liger_kernels_loss._result import CrossEntropyOutput, Result, make_result
from liger_kernels_loss.transforms import inner_and_outer


# -- The chunks --------------------------------------------------------------------------------------------------------
def _fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    dloss: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    rows = Rows.empty(hidden.shape[0], hidden, Wants(lse, entropy, best))
    return *rows, *gradients_like(hidden, weight, accum_dtype, Needs(need_hidden, need_weight, need_bias))


@private_op("linear_cross_entropy", _fake)
def chunked(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    dloss: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]:
    """hidden (N, H), target (N,) or (N, V) -> the fields of ``Rows``; dhidden (N, H), dweight (V, H), dbias (V,) fp32.

    ``dloss``, ``dlse`` and ``dentropy`` (N,) are the rows' upstream gradients. ``scale``, 0-dimensional, multiplies all
    of them, except for its power of two, which ``unscaled`` brings in. Gradients that are not needed are empty.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    rows = Rows.empty(hidden.shape[0], hidden, Wants(lse, entropy, best))
    classes = BACKENDS[backend].classes or weight.shape[0]
    N, width = hidden.shape
    size = chunk_rows(N, width, classes, hidden.element_size(), workspace_mb, hidden.device.type)
    upstream = Upstream(scaled_upstream(dloss, scale, hidden), dlse, dentropy)
    needs = Needs(need_hidden, need_weight, need_bias)

    def step(part: slice, z: torch.Tensor) -> None:
        out = z if any(needs) else None
        BACKENDS[backend].step(z, target[part], class_weight, upstream.part(part), rows.part(part), loss, out)

    return *rows, *each_chunk(step, size, hidden, weight, bias, accum_dtype, needs)  # type: ignore[return-value]


# -- Results -----------------------------------------------------------------------------------------------------------
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
    """``Work.run``; ``tensors`` are target and class weights."""
    target, class_weight = tensors
    found = chunked(hidden, weight, target, bias, class_weight, *upstream, scale, *options, *wants, *needs)
    return Rows(*found[:5]), found[5:]


def rows_of(
    op: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    result: Result,
    chunking: Chunking,
    compact: bool,
    largest: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, RowResults]:
    """``linear_rows`` with labels or distributions as the target; ``largest`` is that of all class weights.

    ``compact`` leaves ignored rows out before the product, which waits for the device.
    """
    if compact and not is_soft(result.target) and not torch.compiler.is_compiling():
        ignore_index = result.loss.ignore_index
        kept = (result.target != ignore_index).nonzero().squeeze(1)
        total, rows = rows_of(op, hidden[kept], weight, bias, class_weight, result.of(kept), chunking, False, largest)
        return total, rows.among(kept, hidden.shape[0], ignore_index)
    size = _size(result.loss, largest, hidden)
    work = Work(_run, (result.target, class_weight), (*chunking, *result.loss), size)
    return linear_rows(op, hidden, weight, bias, work, result)


def largest_weight(class_weight: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """The largest class weight, 0-dimensional, where ``rows_of`` looks at it: in fp16."""
    return None if class_weight is None or like.dtype != torch.float16 else class_weight.abs().amax()


def _size(loss: Loss, largest: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """``Work.size``: what dlogits are multiplied with, but for the weights of tokens."""
    slope = abs(inner_and_outer(None, loss.logit_scale, loss.temperature)[0])
    if slope == 1.0 or like.dtype != torch.float16:
        return largest
    return torch.full((), slope, device=like.device) if largest is None else largest * slope


def linear_cross_entropy_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    *,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
    check_labels: bool,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    compact: bool,
    **loss: Any,
) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    del check_labels
    flat = hidden.reshape(-1, hidden.shape[-1])
    class_weight = None if class_weight is None else class_weight.contiguous()
    result = make_result(target, class_weight, token_weight, flat, Loss(**loss), reduction, num_items, returns)
    chunking = Chunking(backend, accum_dtype, workspace_mb)
    largest = largest_weight(class_weight, flat)
    total, rows = rows_of("linear_cross_entropy", flat, weight, bias, class_weight, result, chunking, compact, largest)
    return result.finish(rows, total)
