"""linear_cross_entropy in plain torch, chunked: what serves CPUs, and any device that has nothing better."""

from __future__ import annotations

from typing import Any

import torch

from liger_kernels_loss._linear_cross_entropy_chunked import BACKENDS, Backend, linear_cross_entropy_chunked
from liger_kernels_loss._loss import Loss
from liger_kernels_loss.transforms import transform_

# Elements worked on at a time: on a CPU the passes over them stay in cache, elsewhere launches matter more.
CPU_BLOCK, BLOCK = 1 << 18, 1 << 25


def _block(x: torch.Tensor) -> int:
    return CPU_BLOCK if x.device.type == "cpu" else BLOCK


def torch_step(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: torch.Tensor | None,
    rows: torch.Tensor,
    loss: Loss,
    gradient: bool,
) -> None:
    """Write the losses of logits (n, V) to rows (n,); with ``gradient`` replace the logits by dlogits.

    ``upstream`` (n,) multiplies each row of the gradient; None stands for ones.
    """
    size = max(1, _block(logits) // logits.shape[1])
    total = None if class_weight is None or not loss.label_smoothing else class_weight.sum()
    for start in range(0, logits.shape[0], size):
        part = slice(start, start + size)
        raw = logits[part]
        z = raw if raw.dtype == rows.dtype else raw.to(rows.dtype)
        scale = None if upstream is None else upstream[part, None].to(rows.dtype)
        rows[part] = _torch_block(z, target[part], class_weight, total, scale, loss, gradient)
        if gradient and z is not raw:
            raw.copy_(z)


def _torch_block(
    z: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    class_total: torch.Tensor | None,
    upstream: torch.Tensor | None,
    loss: Loss,
    gradient: bool,
) -> torch.Tensor:
    """Losses (n,) of a block of fp32 logits z (n, V), which ends as dlogits or as garbage."""
    ignored = (target == loss.ignore_index)[:, None]
    labels = target[:, None].masked_fill(ignored, 0)
    capped = gradient and loss.softcap is not None
    slope = torch.empty_like(z) if capped else None
    transform_(z, softcap=loss.softcap, logit_scale=loss.logit_scale, slope=slope)
    top, own = z.amax(1, keepdim=True), z.gather(1, labels)
    smooth = loss.label_smoothing / z.shape[1]
    if smooth:
        away = z - own
        away = (away if class_weight is None else away.mul_(class_weight)).sum(1, keepdim=True)
        mass = z.shape[1] if class_total is None else class_total
    total = z.sub_(top).exp_().sum(1, keepdim=True)
    log_total = total.log()
    lse = top + log_total
    hit = (1.0 - loss.label_smoothing) * (torch.ones_like(own) if class_weight is None else class_weight[labels])
    nll = (top - own) + log_total  # both terms are >= 0, so a log-prob is never above 0
    out, pull = hit * nll, hit
    if smooth:
        out, pull = out + smooth * (mass * nll - away), pull + smooth * mass
    if loss.z_loss:
        out, pull = out + loss.z_loss * lse.square(), pull + 2.0 * loss.z_loss * lse
    if gradient:
        scale = torch.full_like(own, 1.0 if capped else loss.logit_scale)
        scale = scale if upstream is None else scale * upstream
        z.mul_(pull * scale / total).scatter_add_(1, labels, -hit * scale)
        if smooth:
            z.sub_(smooth * scale * (1.0 if class_weight is None else class_weight))
        if slope is not None:
            z.mul_(slope)
        z.masked_fill_(ignored, 0.0)
    return out.masked_fill_(ignored, 0.0).squeeze(1)


def torch_scale(x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * factor, multiplied in the dtype of ``factor``, one number, and rounded once; ``out`` may be ``x``."""
    size = _block(x)
    for a, b in zip(torch.split(x.view(-1), size), torch.split(out.view(-1), size), strict=True):
        b.copy_(a.to(factor.dtype) * factor)


BACKENDS["torch"] = Backend(torch_step, torch_scale)


def linear_cross_entropy_torch(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    return linear_cross_entropy_chunked("torch", *tensors, **options)
