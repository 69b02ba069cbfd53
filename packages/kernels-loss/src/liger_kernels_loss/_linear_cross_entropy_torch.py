"""linear_cross_entropy in plain torch, chunked: what serves CPUs, and any device that has nothing better."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from liger_kernels_loss._chunked import BACKENDS, Backend
from liger_kernels_loss._chunks import block_elements, block_rows
from liger_kernels_loss._distilled import linear_jsd_chunked, linear_kl_chunked
from liger_kernels_loss._divergence_torch import torch_pair
from liger_kernels_loss._labels_chunked import linear_cross_entropy_chunked
from liger_kernels_loss._loss import Loss, Rows, Upstream, class_total, is_soft
from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss._topk import linear_topk_kl_chunked
from liger_kernels_loss.linear_logits_stats import LogitsStats, logits_stats_chunked
from liger_kernels_loss.linear_token_logprobs import TokenLogprobs, token_logprobs_chunked
from liger_kernels_loss.transforms import inner_and_outer, transform_


def torch_step(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: Upstream,
    rows: Rows,
    loss: Loss,
    out: torch.Tensor | None,
) -> None:
    """Write the results of logits (n, V) with target (n,) or (n, V) into ``rows``, and dlogits into ``out``, if given.

    ``out`` must be the logits themselves.
    """
    size = block_rows(logits)
    total = class_total(class_weight, loss)
    for start in range(0, logits.shape[0], size):
        part = slice(start, start + size)
        raw = logits[part]
        if rows.best is not None:
            torch.argmax(raw if loss.logit_scale > 0 else -raw, 1, out=rows.best[part])
        z = raw if raw.dtype == rows.loss.dtype else raw.to(rows.loss.dtype)
        weights = _Targets.of(target[part], class_weight, total, loss, z)
        _torch_block(z, weights, upstream.part(part), rows.part(part), loss, out is not None)
        if out is not None and z is not raw:
            raw.copy_(z)


class _Targets(NamedTuple):
    """What the rows of a block are compared with: coefficients of lse - z_c in the loss.

    ``hit`` (n, 1) at ``labels`` (n, 1) and ``smooth`` at every class, as a number or (V,); or ``dense`` (n, V) for
    distributions. ``mass`` is their sum (n, 1), ``ignored`` (n, 1) bool or None.
    """

    labels: torch.Tensor | None
    hit: torch.Tensor | None
    smooth: torch.Tensor | float
    dense: torch.Tensor | None
    mass: torch.Tensor
    ignored: torch.Tensor | None

    @classmethod
    def of(
        cls,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        class_total: torch.Tensor | None,
        loss: Loss,
        like: torch.Tensor,
    ) -> _Targets:
        classes, s = like.shape[1], loss.label_smoothing
        if is_soft(target):
            dense = target.to(like.dtype) * (1.0 - s) + s / classes
            dense = dense if class_weight is None else dense * class_weight
            return cls(None, None, 0.0, dense, dense.sum(1, keepdim=True), None)
        ignored = (target == loss.ignore_index)[:, None]
        labels = target[:, None].masked_fill(ignored, 0)
        hit = (
            like.new_full((), 1.0 - s).expand(labels.shape)
            if class_weight is None
            else (1.0 - s) * class_weight[labels]
        )
        if not s:
            return cls(labels, hit, 0.0, None, hit, ignored)
        smooth = s / classes * (1.0 if class_weight is None else class_weight)
        mass = hit + s / classes * (classes if class_total is None else class_total)
        return cls(labels, hit, smooth, None, mass, ignored)

    def distance(self, z: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """(n, 1): sum of the coefficients times (top - z_c). No term is negative, so a log-prob is never above 0."""
        if self.dense is not None:
            return (self.dense * (top - z)).masked_fill_(self.dense == 0.0, 0.0).sum(1, keepdim=True)
        assert self.labels is not None
        assert self.hit is not None
        found = self.hit * (top - z.gather(1, self.labels))
        if isinstance(self.smooth, torch.Tensor) or self.smooth:
            found = found + ((top - z).mul_(self.smooth)).sum(1, keepdim=True)
        return found

    def subtract(self, dz: torch.Tensor, scale: torch.Tensor) -> None:
        """dz -= the coefficients times ``scale`` (n, 1)."""
        if self.dense is not None:
            dz.sub_(self.dense * scale)
            return
        assert self.labels is not None
        assert self.hit is not None
        dz.scatter_add_(1, self.labels, -self.hit * scale)
        if isinstance(self.smooth, torch.Tensor) or self.smooth:
            dz.sub_(self.smooth * scale)


def _torch_block(
    z: torch.Tensor, targets: _Targets, upstream: Upstream, rows: Rows, loss: Loss, gradient: bool
) -> None:
    """Write the results of a block of fp32 logits z (n, V), which ends as dlogits or as garbage."""
    slope = torch.empty_like(z) if gradient and loss.softcap is not None else None
    transform_(z, softcap=loss.softcap, logit_scale=loss.logit_scale, temperature=loss.temperature, slope=slope)
    top = z.amax(1, keepdim=True)
    found = targets.distance(z, top)
    z.sub_(top)
    log_p = z.clone() if rows.entropy is not None or upstream.entropy is not None else None
    total = z.exp_().sum(1, keepdim=True)
    log_total = total.log()
    lse = top + log_total
    found = found + targets.mass * log_total + loss.z_loss * lse.square()
    entropy = None
    if log_p is not None:
        log_p.sub_(log_total).masked_fill_(z == 0.0, 0.0)
        entropy = -(log_p * z).sum(1, keepdim=True) / total
    _store(rows, targets.ignored, loss.ignore_index, found, top, total, entropy)
    if gradient:
        constant = inner_and_outer(None, loss.logit_scale, loss.temperature)[0]
        surprise = None if log_p is None or entropy is None else log_p.add_(entropy)
        _torch_gradient(z, targets, upstream, loss, lse, total, surprise, constant if slope is None else slope)


def _store(rows: Rows, ignored: torch.Tensor | None, ignore_index: int, *found: torch.Tensor | None) -> None:
    for out, value, fill in zip(rows, (*found, rows.best), (0.0, 0.0, 1.0, 0.0, ignore_index), strict=True):
        if out is not None and value is not None:
            kept = value.reshape(out.shape)
            out.copy_(kept if ignored is None else kept.masked_fill(ignored.reshape(out.shape), fill))


def _torch_gradient(
    e: torch.Tensor,
    targets: _Targets,
    upstream: Upstream,
    loss: Loss,
    lse: torch.Tensor,
    total: torch.Tensor,
    surprise: torch.Tensor | None,
    slope: torch.Tensor | float,
) -> None:
    """e = exp(z - top) (n, V) becomes dlogits. ``surprise`` is log p + entropy (n, V), for the latter's gradient."""
    dloss, dlse, dentropy = (None if d is None else d[:, None].to(e.dtype) for d in upstream)
    scale = torch.ones_like(lse) if dloss is None else dloss
    pull = (targets.mass + 2.0 * loss.z_loss * lse) * scale
    if dlse is not None:
        pull = pull + dlse
    if dentropy is None:
        e.mul_(pull / total)
    else:
        assert surprise is not None
        e.mul_(surprise.mul_(-dentropy).add_(pull).div_(total))
    targets.subtract(e, scale)
    e.mul_(slope)
    if targets.ignored is not None:
        e.masked_fill_(targets.ignored, 0.0)


def torch_scale(x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * factor, multiplied in the dtype of ``factor``, one number, and rounded once; ``out`` may be ``x``."""
    size = block_elements(x)
    for a, b in zip(torch.split(x.view(-1), size), torch.split(out.view(-1), size), strict=True):
        b.copy_(a.to(factor.dtype) * factor)


BACKENDS["torch"] = Backend(torch_step, torch_scale, pair=torch_pair)


def linear_cross_entropy_torch(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    return linear_cross_entropy_chunked("torch", *tensors, **options)


def linear_token_logprobs_torch(*tensors: Any, **options: Any) -> TokenLogprobs:
    """See ``liger_kernels_loss.linear_token_logprobs``."""
    return token_logprobs_chunked("torch", *tensors, **options)


def linear_logits_stats_torch(*tensors: Any, **options: Any) -> LogitsStats:
    """See ``liger_kernels_loss.linear_logits_stats``."""
    return logits_stats_chunked("torch", *tensors, **options)


def linear_jsd_torch(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_jsd``."""
    return linear_jsd_chunked("torch", *tensors, **options)


def linear_kl_torch(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_kl``."""
    return linear_kl_chunked("torch", *tensors, **options)


def linear_topk_kl_torch(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_topk_kl``."""
    return linear_topk_kl_chunked("torch", *tensors, **options)
