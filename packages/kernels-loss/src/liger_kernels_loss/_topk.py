"""A head whose distribution is compared with a teacher's k most likely classes, in chunks: below linear_topk_kl.

Everything of size V is the work of the row kernels of the cross-entropies: with lse as the only result that has an
upstream gradient, what they write is softmax times that. The k classes of a row are plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from liger.launch import private_op
from liger_kernels_loss._chunked import BACKENDS, Backend, Chunking, Needs, each_chunk, gradients_like
from liger_kernels_loss._chunks import chunk_rows, scaled_upstream
from liger_kernels_loss._distilled import among, distilled
from liger_kernels_loss._loss import Loss, Rows, Upstream, Wants, stat_dtype
from liger_kernels_loss._pairs import NumItems


# -- One chunk ---------------------------------------------------------------------------------------------------------
def _step(
    use: Backend,
    z: torch.Tensor,
    ignored: torch.Tensor | None,
    logprobs: torch.Tensor,
    indices: torch.Tensor,
    factor: torch.Tensor | None,
    losses: torch.Tensor,
    temperature: float,
    lump: bool,
    gradient: bool,
) -> None:
    """Losses of logits z (n, V) into ``losses`` (n,), and dlogits in their place, or what is left of them.

    ``ignored`` (n,) bool, logprobs (n, k) in the dtype of the losses, indices (n, k), ``factor`` (n,) or None for 1.
    """
    n, dtype = z.shape[0], losses.dtype
    p = logprobs.exp()
    mass = p.sum(1)
    factor = losses.new_ones(n) if factor is None else factor
    own = z.gather(1, indices).to(dtype).div_(temperature)
    if lump:
        z.scatter_(1, indices, -torch.inf)  # so that the row kernel sees the rest alone
    rows = Rows.empty(n, losses, Wants(lse=True))
    labels = torch.zeros_like(indices[:, 0]) if ignored is None else ignored.long().neg()
    upstream = Upstream(losses.new_zeros(1).expand(n), factor.contiguous() if lump else factor * mass)
    use.step(z, labels, None, upstream, rows, Loss(-1, temperature=temperature), z if gradient else None)
    assert rows.top is not None
    assert rows.total is not None
    top, total = rows.top, rows.total
    if lump:
        top = torch.maximum(rows.top, own.amax(1))
        total = rows.total * (rows.top - top).exp() + (own - top[:, None]).exp().sum(1)
    own.sub_(top[:, None])
    found = _expected(p, logprobs - own + total.log()[:, None]).sum(1)
    if lump:
        rest = (1.0 - mass).clamp_(min=0.0)
        log_rest_q = (rows.top - top) + rows.total.log() - total.log()
        found += _expected(rest, rest.log() - log_rest_q)
        if gradient:  # z is softmax over the rest, times the factor
            pull = log_rest_q.exp() - rest
            z.mul_((pull if ignored is None else pull.masked_fill(ignored, 0.0))[:, None])
        mass = mass + rest
    losses.copy_(found if ignored is None else found.masked_fill(ignored, 0.0))
    if gradient:
        d = own.exp_().mul_((mass / total)[:, None]).sub_(p).mul_(factor[:, None] / temperature)
        z.scatter_(1, indices, (d if ignored is None else d.masked_fill_(ignored[:, None], 0.0)).to(z.dtype))


def _expected(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """p * values, 0 where p is."""
    return (p * values).masked_fill_(p == 0.0, 0.0)


# -- The chunks --------------------------------------------------------------------------------------------------------
def _fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor | None,
    logprobs: torch.Tensor,
    indices: torch.Tensor,
    dloss: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    temperature: float,
    ignore_index: int,
    lump: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    losses = hidden.new_empty(hidden.shape[0], dtype=stat_dtype(hidden))
    return losses, *gradients_like(hidden, weight, accum_dtype, Needs(need_hidden, need_weight, need_bias))


@private_op("linear_topk_kl", _fake)
def _chunks(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor | None,
    logprobs: torch.Tensor,
    indices: torch.Tensor,
    dloss: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    temperature: float,
    ignore_index: int,
    lump: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden (N, H), logprobs and indices (N, k) -> losses (N,), dhidden (N, H), dweight (V, H), dbias (V,).

    ``dloss``, ``scale`` and what is empty: as in ``_labels_chunked.chunked``.
    """
    needs = Needs(need_hidden, need_weight, need_bias)
    losses = hidden.new_empty(hidden.shape[0], dtype=stat_dtype(hidden))
    N, width = hidden.shape
    size = chunk_rows(N, width, weight.shape[0], hidden.element_size(), workspace_mb, hidden.device.type)
    factor = scaled_upstream(dloss, scale, hidden)
    use = BACKENDS[backend]

    def step(part: slice, z: torch.Tensor) -> None:
        ignored = None if target is None else target[part] == ignore_index
        mine = logprobs[part].to(losses.dtype), indices[part], among(factor, part), losses[part]
        _step(use, z, ignored, *mine, temperature, lump, any(needs))

    return losses, *each_chunk(step, size, hidden, weight, bias, accum_dtype, needs)


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
    """``Work.run``; ``tensors`` are the target and the teacher's log-probs and classes."""
    losses, *made = _chunks(hidden, weight, bias, *tensors, upstream.loss, scale, *options, *needs)
    return Rows(losses), made


def linear_topk_kl_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    topk_logprobs: torch.Tensor,
    topk_indices: torch.Tensor,
    target: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    tail: str,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_topk_kl``."""
    k = topk_indices.shape[-1]
    tensors = topk_logprobs.reshape(-1, k), topk_indices.reshape(-1, k).long()
    lump = tail == "lump" and k < weight.shape[0]  # of all classes nothing is left
    options = (*Chunking(backend, accum_dtype, workspace_mb), temperature, ignore_index, lump)
    given = hidden, weight, bias, target
    return distilled("linear_topk_kl", *given, _run, tensors, options, ignore_index, reduction, num_items)
