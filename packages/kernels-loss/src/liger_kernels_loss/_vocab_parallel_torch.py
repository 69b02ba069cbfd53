"""The vocabulary-parallel cross-entropies in plain torch: what serves CPUs, and any device that has nothing better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from liger_kernels_loss import _linear_cross_entropy_torch  # noqa: F401  (the chunk loop's backend)
from liger_kernels_loss._chunks import block_rows
from liger_kernels_loss._loss import Loss, Wants, ignored_rows, is_soft
from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss._vocab_parallel import parallel_cross_entropy, parallel_linear_cross_entropy
from liger_kernels_loss._vocab_parallel_rows import MATHS, Maths, Place, fields
from liger_kernels_loss.transforms import inner_and_outer, transform_


def torch_statistics(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    place: Place,
    loss: Loss,
    wants: Wants,
    out: torch.Tensor,
) -> None:
    """Write the statistics of logits (N, columns) into ``out`` (K, N): the rows of ``fields``."""
    for part in _blocks(logits):
        found = _statistics(logits[part], target[part], class_weight, place, loss, wants, out.dtype)
        for row, name in zip(out, fields(loss, wants), strict=True):
            row[part] = found[name]


def _statistics(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    place: Place,
    loss: Loss,
    wants: Wants,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    z = logits.to(dtype, copy=True)
    transform_(z, softcap=loss.softcap, logit_scale=loss.logit_scale, temperature=loss.temperature)
    top = z.amax(1)
    down = (top[:, None] - z).masked_fill_(z == top[:, None], 0.0)  # 0 too where both are -inf
    found = {"top": top}
    found["mass"], found["found"] = _of_target(down, target, class_weight, place)
    if loss.label_smoothing:
        found["away"] = down.sum(1) if class_weight is None else down @ class_weight
        found["width"] = (
            torch.full_like(top, logits.shape[1]) if class_weight is None else class_weight.sum().expand_as(top)
        )
    e = (-down).exp()
    found["total"] = e.sum(1).masked_fill(top == -float("inf"), 0.0)
    if wants.entropy:
        found["bent"] = -down.mul_(e).masked_fill_(e == 0.0, 0.0).sum(1)
    if wants.best:
        peak, best = (logits if loss.logit_scale > 0 else -logits).max(1)
        found["peak"], found["best"] = peak.to(dtype), (best + place.first).to(dtype)
    if is_soft(target):
        return found
    ignored = ignored_rows(target, loss.ignore_index)
    return {name: t.masked_fill(ignored, 0.0) for name, t in found.items()}


def _of_target(
    down: torch.Tensor, target: torch.Tensor, class_weight: torch.Tensor | None, place: Place
) -> tuple[torch.Tensor, torch.Tensor]:
    """``mass`` and ``found`` (n,); ``down`` (n, columns) is top - z."""
    if is_soft(target):
        weights = target.to(down.dtype) if class_weight is None else target.to(down.dtype) * class_weight
        return weights.sum(1), (weights * down).masked_fill_(weights == 0.0, 0.0).sum(1)
    at, here = _column(target, place, down)
    weights = torch.ones_like(at, dtype=down.dtype) if class_weight is None else class_weight[at]
    mass = weights.masked_fill((target < 0) | (target >= place.classes), float("nan"))
    far = down.gather(1, at[:, None]).squeeze(1)
    known = (target >= 0) & (target < place.classes) & ~here
    return mass.masked_fill(known, 0.0), (weights * far).masked_fill(~here, 0.0)


def _column(target: torch.Tensor, place: Place, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The label's column (n,) and whether it is one of ``like`` (n, columns); column 0 if not."""
    at = target - place.first
    here = (at >= 0) & (at < like.shape[1])
    return at.masked_fill(~here, 0), here


def torch_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    coefficients: torch.Tensor,
    place: Place,
    loss: Loss,
    out: torch.Tensor,
) -> None:
    """Write dlogits (N, columns) into ``out``, which may be the logits; ``coefficients`` of ``make_coefficients``."""
    for part in _blocks(logits):
        out[part] = _gradient(logits[part], target[part], class_weight, coefficients[:, part], place, loss)


def _gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    coefficients: torch.Tensor,
    place: Place,
    loss: Loss,
) -> torch.Tensor:
    top, pull, hit, smooth, *bend = coefficients.unsqueeze(2)
    z = logits.to(coefficients.dtype, copy=True)
    slope = None if loss.softcap is None else torch.empty_like(z)
    transform_(z, softcap=loss.softcap, logit_scale=loss.logit_scale, temperature=loss.temperature, slope=slope)
    away = z.sub_(top)
    dz = away.exp()
    if bend:
        dz = (dz * (pull - bend[0] * away)).masked_fill_(dz == 0.0, 0.0)
    else:
        dz.mul_(pull)
    if loss.label_smoothing:
        dz.sub_(smooth if class_weight is None else smooth * class_weight)
    if is_soft(target):
        dz.sub_(hit * target if class_weight is None else hit * target * class_weight)
    else:
        at, here = _column(target, place, dz)
        weights = hit if class_weight is None else hit * class_weight[at][:, None]
        dz.scatter_add_(1, at[:, None], -weights.masked_fill(~here[:, None], 0.0))
    dz.mul_(inner_and_outer(None, loss.logit_scale, loss.temperature)[0] if slope is None else slope)
    return dz if is_soft(target) else dz.masked_fill_(ignored_rows(target, loss.ignore_index)[:, None], 0.0)


def _blocks(x: torch.Tensor) -> Iterator[slice]:
    size = block_rows(x)
    for start in range(0, x.shape[0], size):
        yield slice(start, start + size)


MATHS["torch"] = Maths(torch_statistics, torch_gradient)


def vocab_parallel_cross_entropy_torch(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_cross_entropy``."""
    return parallel_cross_entropy("torch", *tensors, **options)


def vocab_parallel_linear_cross_entropy_torch(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_linear_cross_entropy``."""
    return parallel_linear_cross_entropy("torch", *tensors, **options)
