"""Compare one tensor with the eager result and the truth, by the numerical contract: see ``liger.testing.contract``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from liger.errors import ContractViolation

FACTOR = 2.0
CHAIN = 4.0  # ulp
ONE_ROUNDING = 0.35  # RMS in ulp; 0.29 for one rounding, 0.41 for two
BIAS = 0.25  # ulp; half of what truncation causes
RMS_COUNT = 64
BIAS_COUNT = 64  # elements needed to tell: the mean of n rounding errors varies by 0.3 / sqrt(n)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one output or gradient against the truth, over the whole tensor."""

    max: float
    rms: float
    eager_max: float
    eager_rms: float


def compare(
    actual: torch.Tensor | None,
    eager: torch.Tensor,
    truth: torch.Tensor,
    *,
    neighbours: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    reduction: int | None = None,
    per_row: bool = True,
) -> Errors:
    """Compare one tensor; see ``liger.testing.contract``. ``neighbours`` are (eager, truth) of neighbouring inputs.

    ``per_row=False`` compares the whole tensor only, for single samples whose rows hold too few values for statistics.
    Where the truth is not finite, ``actual`` must be the same; where only eager's result overflowed, nothing is asked.
    """
    if actual is None:
        raise ContractViolation("is missing: None")
    if (actual.shape, actual.dtype, actual.device) != (eager.shape, eager.dtype, eager.device):
        found, expected = (f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in (actual, eager))
        raise ContractViolation(f"is {found}, expected {expected}")
    if actual.numel() == 0:
        return Errors(0.0, 0.0, 0.0, 0.0)
    if not actual.dtype.is_floating_point:
        _check_discrete(actual, [(eager, truth), *neighbours])
        return Errors(0.0, 0.0, 0.0, 0.0)
    got, plain, true = (_rows(t.double()) for t in (actual, eager, truth))
    special = ~true.isfinite()
    different = special & ~((got == true) | (got.isnan() & true.isnan()))
    lost = ~special & plain.isfinite() & ~got.isfinite()
    if bool((different | lost).any()):
        index = int((different | lost).reshape(-1).to(torch.uint8).argmax())
        raise ContractViolation("is not finite as the truth is" + _at(index, got, plain, true, actual.shape))
    counted = ~special & plain.isfinite()
    error, size = (torch.where(counted, t.abs(), 0.0)[None] for t in (got - true, true))
    others = [(_rows(e.double()) - _rows(t.double())).abs() for e, t in neighbours]
    eager_error = torch.stack([torch.where(counted & e.isfinite(), e, 0.0) for e in ((plain - true).abs(), *others)])
    for rows in (True, False) if per_row else (False,):
        _check(error, eager_error, size, (got, plain, true), actual, reduction, rows)
    if actual.element_size() == 2:
        eager_pairs = [(plain, true), *((_rows(e.double()), _rows(t.double())) for e, t in neighbours)]
        _check_bias(got, torch.where(counted, true, 0.0), eager_pairs, actual.dtype)
    whole = error.reshape(1, 1, -1), eager_error.reshape(len(eager_error), 1, -1)
    return Errors(*(float(norm(t)) for t in whole for norm in (_largest, _rms)))


def _check_discrete(actual: torch.Tensor, samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Integers have no error: each must be what eager or the truth finds for the inputs or a neighbour of them."""
    allowed = torch.stack([actual == value for pair in samples for value in pair]).any(0)
    if not allowed.all():
        index = int((~allowed).reshape(-1).to(torch.uint8).argmax())
        raise ContractViolation(
            "is none of the values that eager finds" + _at(index, actual, *samples[0], actual.shape)
        )


def check_layout(actual: torch.Tensor | None, eager: torch.Tensor, inputs: Sequence[torch.Tensor | None]) -> None:
    """Raise ContractViolation unless ``actual`` is contiguous or strided as eager's result or a copy of an input."""
    if actual is None or actual.is_contiguous():
        return
    copies = [torch.empty_like(t, device="meta") for t in inputs if t is not None and t.shape == actual.shape]
    # the stride of a dimension of size 1 means nothing
    found, *allowed = ([s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (actual, eager, *copies))
    if found not in allowed:
        raise ContractViolation(
            f"has strides {actual.stride()} for shape {tuple(actual.shape)}, expected contiguous ones, eager's "
            f"{eager.stride()}, or those of a copy of the input"
        )


def _check(
    error: torch.Tensor,
    eager_error: torch.Tensor,
    size: torch.Tensor,
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    actual: torch.Tensor,
    reduction: int | None,
    rows: bool,
) -> None:
    """error, eager_error, size (samples, rows, columns): raise for the row, or the tensor, most above its limit."""
    if not rows:
        error, eager_error, size = (t.reshape(t.shape[0], 1, -1) for t in (error, eager_error, size))
    floor = _floor(_largest(size), actual.dtype, reduction)
    norms = {"largest": _largest, "RMS": _rms} if error.shape[-1] >= RMS_COUNT else {"largest": _largest}
    for what, norm in norms.items():
        found, plain = norm(error), norm(eager_error)
        if rows:
            plain = torch.maximum(plain, _usual(plain, _largest(size)))
        allowed = torch.maximum(FACTOR * plain, floor)
        row = int((found / allowed).argmax())
        if float(found[row]) > float(allowed[row]):
            worst = row * error.shape[-1] + int(error[0, row].argmax())
            where = f"row {row}" if rows else "the tensor"
            raise ContractViolation(
                f"is outside the contract: the {what} error of {where} is {float(found[row]):.3g}, allowed are "
                f"{float(allowed[row]):.3g} (eager {float(plain[row]):.3g}, floor {float(floor[row]):.3g})"
                + _at(worst, *values, actual.shape)
            )


def _usual(error: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Errors of rows at the relative error that one row in a hundred exceeds."""
    counted = size > 0
    relative = torch.where(counted, error / size.where(counted, 1.0), 0.0)
    return size * relative.quantile(0.99) if relative.numel() else error


def _check_bias(
    got: torch.Tensor, truth: torch.Tensor, eager: Sequence[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype
) -> None:
    """eager: results and truths."""
    used = truth != 0
    count = int(used.sum())
    if count < BIAS_COUNT:
        return

    def steps(value: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        value, true = value[used], true[used]
        # clamped, so that elements that are small by cancellation do not outweigh the others
        return ((value - true) * true.sign() / ulp(true.abs(), dtype)).clamp(-1, 1).nan_to_num()

    eager_steps = [steps(e, t) for e, t in eager]
    if max(float(s.square().mean().sqrt()) for s in eager_steps) > ONE_ROUNDING:
        return
    found, plain = float(steps(got, truth).mean()), max(abs(float(s.mean())) for s in eager_steps)
    allowed = max(FACTOR * plain, BIAS + 1 / math.sqrt(count))
    if abs(found) > allowed:
        raise ContractViolation(
            f"is biased: the mean error away from zero is {found:.2f} ulp (eager {plain:.2f}, allowed {allowed:.2f}); "
            f"is it truncated to {dtype} instead of rounded?"
        )


def _floor(size: torch.Tensor, dtype: torch.dtype, reduction: int | None) -> torch.Tensor:
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    return ulp(size, dtype) + max(CHAIN, math.sqrt(reduction or 1)) * ulp(size, accumulation)


def ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of neighbouring ``dtype`` values at ``magnitude`` (float64, not negative)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.clamp(info.smallest_normal, info.max))
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


def _largest(x: torch.Tensor) -> torch.Tensor:
    """(samples, rows, columns) -> (rows,)."""
    return x.amax(-1).amax(0)


def _rms(x: torch.Tensor) -> torch.Tensor:
    """(samples, rows, columns) -> (rows,)."""
    return x.square().mean(-1).mean(0).sqrt()


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)


def _at(index: int, got: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, shape: torch.Size) -> str:
    named = (("got", got), ("eager", eager), ("truth", truth))
    values = ", ".join(f"{name} {float(t.reshape(-1)[index]):.9g}" for name, t in named)
    coordinates: list[int] = []
    for size in reversed(shape):
        index, position = divmod(index, size)
        coordinates.insert(0, position)
    return f"\n  worst at {tuple(coordinates)}: {values}"
