"""The numerical contract: a kernel may be at most twice as far from the truth as the eager reference of the same dtype.

Truth is the reference in float64. Compared are the largest and the RMS error, over the whole tensor and per row (the
last dimension), of each output and each gradient. Floor, at the largest truth magnitude of the row, or of the tensor:
one ulp of the result's dtype plus sqrt(R) ulp of the accumulation dtype (float32, or float64 for itself), where R is the
number of terms that are summed, 1 if there is no sum. There is no other tolerance anywhere.

A row in which eager is nearly exact by luck, because the roundings of its intermediates cancel, counts with the
relative error of the other rows, at their 99 % quantile. Measured on the fp16 dweight of linear_cross_entropy, where
logits, dlogits and the result are rounded: without this a kernel with the same roundings failed in 7 of 4097 rows.

Truncating a 16-bit result instead of rounding it doubles the RMS error at most, and so would pass. It is found by its
bias: the mean error away from zero, in ulp of each element, which is 0 for rounding and -0.5 for truncation.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.errors import ContractViolation

Inputs = Sequence[torch.Tensor | None]
FACTOR = 2.0
BIAS = 0.25  # ulp; half of what truncation causes
BIAS_COUNT = 64  # elements needed to tell: the mean of n rounding errors varies by 0.3 / sqrt(n)


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one output or gradient against the truth, over the whole tensor."""

    max: float
    rms: float
    eager_max: float
    eager_rms: float


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs, and the gradients of those inputs that require one, by input position."""

    outputs: tuple[torch.Tensor, ...]
    gradients: dict[int, torch.Tensor | None]


def assert_contract(
    actual: Callable[..., Any] | torch.Tensor | Sequence[torch.Tensor],
    reference: Callable[..., Any],
    inputs: Inputs,
    options: Mapping[str, Any] | None = None,
    *,
    reduction: int | None = None,
) -> dict[str, Errors]:
    """Check a kernel against its reference by the contract above, forward and backward.

    Args:
        actual: the function under test, called as ``actual(*inputs, **options)``; or its outputs, then only they are checked.
        reference: the definition in plain torch, same arguments; with float64 inputs it must compute in float64.
        inputs: tensors and None. Those with ``requires_grad`` get their gradient checked, for one random output gradient.
        options: keyword arguments of both.
        reduction: R, the number of terms summed into one element; None if there is no sum.

    Returns:
        The measured errors by name, ``"output"``, ``"gradient of weight"``, for reports.

    Raises:
        ContractViolation: a wrong shape, dtype, a value that is not finite, or an error above the limit; it lists every
            output and gradient that fails with the worst coordinates and the values there.
    """
    options = options or {}
    eager = evaluate(reference, inputs, options)
    seeds = random_like(eager.outputs)
    eager = evaluate(reference, inputs, options, seeds)
    truth = evaluate(reference, [_wide(t) for t in inputs], _wide_options(options), [s.double() for s in seeds])
    if callable(actual):
        got = evaluate(actual, inputs, options, seeds)
    else:
        got = Results((actual,) if isinstance(actual, torch.Tensor) else tuple(actual), {})
    errors: dict[str, Errors] = {}
    failures = []
    for name, triple in _pairs(got, eager, truth, _names(reference, len(inputs))):
        try:
            errors[name] = compare(*triple, reduction=reduction)
        except ContractViolation as error:
            failures.append(f"{name} {error}")
    if failures:
        raise ContractViolation("\n".join(failures))
    return errors


def evaluate(
    fn: Callable[..., Any], inputs: Inputs, options: Mapping[str, Any], seeds: Sequence[torch.Tensor] | None = None
) -> Results:
    """Run ``fn`` on fresh leaves that share the inputs' memory, then backward from ``seeds``, one per output."""
    leaves = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs]
    made = fn(*leaves, **options)
    outputs = (made,) if isinstance(made, torch.Tensor) else tuple(o for o in made if o is not None)
    gradients: dict[int, torch.Tensor | None] = {}
    if seeds is not None:
        roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
        if roots:
            # as leaves that arrive from elsewhere would: one backward through all outputs
            torch.autograd.backward([o for o, _ in roots], [s.to(o.dtype) for o, s in roots])
            gradients = {i: t.grad for i, t in enumerate(leaves) if t is not None and t.requires_grad}
    return Results(tuple(o.detach() for o in outputs), gradients)


def random_like(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One normal random output gradient per output, always the same for the same shapes; 2 for a scalar.

    A scalar is a loss. Its gradients may be made in the forward and scaled in the backward, which rounds twice unless
    the factor is a power of two; in training it is 1.
    """
    generator = torch.Generator().manual_seed(1234)
    seeds = [torch.randn(o.shape, generator=generator) if o.dim() else torch.tensor(2.0) for o in outputs]
    return [seed.to(o.device, o.dtype) for seed, o in zip(seeds, outputs, strict=True)]


def compare(
    actual: torch.Tensor | None, eager: torch.Tensor, truth: torch.Tensor, *, reduction: int | None = None
) -> Errors:
    """Compare one tensor; see the module's docstring.

    Where the truth is not finite, ``actual`` must be the same; where only the eager result overflowed, nothing is asked.
    """
    if actual is None:
        raise ContractViolation("is missing: None")
    if (actual.shape, actual.dtype, actual.device) != (eager.shape, eager.dtype, eager.device):
        found, expected = (f"{t.dtype} {tuple(t.shape)} on {t.device}" for t in (actual, eager))
        raise ContractViolation(f"is {found}, expected {expected}")
    if actual.numel() == 0:
        return Errors(0.0, 0.0, 0.0, 0.0)
    got, plain, true = (_rows(t.double()) for t in (actual, eager, truth))
    special = ~true.isfinite()
    different = special & ~((got == true) | (got.isnan() & true.isnan()))
    lost = ~special & plain.isfinite() & ~got.isfinite()
    if bool((different | lost).any()):
        index = int((different | lost).reshape(-1).to(torch.uint8).argmax())
        raise ContractViolation("is not finite as the truth is" + _at(index, got, plain, true, actual.shape))
    counted = ~special & plain.isfinite()
    error, eager_error = (torch.where(counted, (t - true).abs(), 0.0) for t in (got, plain))
    size = torch.where(counted, true.abs(), 0.0)
    for rows in (True, False):
        _check(error, eager_error, size, (got, plain, true), actual, reduction, rows)
    if actual.element_size() == 2:
        _check_bias(got, plain, torch.where(counted, true, 0.0), actual.dtype)
    total, eager_total = error.reshape(1, -1), eager_error.reshape(1, -1)
    return Errors(float(total.max()), float(_rms(total)), float(eager_total.max()), float(_rms(eager_total)))


def _check(
    error: torch.Tensor,
    eager_error: torch.Tensor,
    size: torch.Tensor,
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    actual: torch.Tensor,
    reduction: int | None,
    rows: bool,
) -> None:
    """error, eager_error, size (rows, columns): raise for the row, or the tensor, that exceeds its limit most."""
    if not rows:
        error, eager_error, size = (t.reshape(1, -1) for t in (error, eager_error, size))
    floor = _floor(size.amax(-1), actual.dtype, reduction)
    for what, norm in (("largest", _largest), ("RMS", _rms)):
        found, plain = norm(error), norm(eager_error)
        if rows:
            plain = torch.maximum(plain, _usual(plain, size.amax(-1)))
        allowed = torch.maximum(FACTOR * plain, floor)
        row = int((found / allowed).argmax())
        if float(found[row]) > float(allowed[row]):
            worst = row * error.shape[1] + int(error[row].argmax())
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


def _check_bias(got: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    used = truth != 0
    count = int(used.sum())
    if count < BIAS_COUNT:
        return
    true, step = truth[used], ulp(truth[used].abs(), dtype)
    # clamped, so that elements that are small by cancellation do not outweigh the others
    found, plain = (((t[used] - true) * true.sign() / step).clamp(-1, 1).mean().item() for t in (got, eager))
    allowed = max(FACTOR * abs(plain), BIAS + 1 / math.sqrt(count))
    if abs(found) > allowed:
        raise ContractViolation(
            f"is biased: the mean error away from zero is {found:.2f} ulp (eager {plain:.2f}, allowed {allowed:.2f}); "
            f"is it truncated to {dtype} instead of rounded?"
        )


def _floor(size: torch.Tensor, dtype: torch.dtype, reduction: int | None) -> torch.Tensor:
    accumulation = torch.float64 if dtype == torch.float64 else torch.float32
    return ulp(size, dtype) + math.sqrt(reduction or 1) * ulp(size, accumulation)


def ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of neighbouring ``dtype`` values at ``magnitude`` (float64, not negative)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.clamp(info.smallest_normal, info.max))
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1)


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(-1).sqrt()


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)


def _at(index: int, got: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, shape: torch.Size) -> str:
    named = (("got", got), ("eager", eager), ("truth", truth))
    values = ", ".join(f"{name} {float(t.reshape(-1)[index]):.9g}" for name, t in named)
    coordinates = []
    for size in reversed(shape):
        index, position = divmod(index, size)
        coordinates.insert(0, position)
    return f"\n  worst at {tuple(coordinates)}: {values}"


def _pairs(
    got: Results, eager: Results, truth: Results, names: Sequence[str]
) -> list[tuple[str, tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]]]:
    if len(got.outputs) != len(eager.outputs):
        raise ContractViolation(f"{len(got.outputs)} outputs, expected {len(eager.outputs)}")
    out: list[tuple[str, tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]]] = []
    for i, triple in enumerate(zip(got.outputs, eager.outputs, truth.outputs, strict=True)):
        out.append(("output" if len(got.outputs) == 1 else f"output {i}", triple))
    for i, gradient in got.gradients.items():
        plain, true = eager.gradients.get(i), truth.gradients.get(i)
        if plain is not None and true is not None:
            out.append((f"gradient of {names[i]}", (gradient, plain, true)))
        elif gradient is not None and bool(gradient.any()):
            raise ContractViolation(f"gradient of {names[i]} is not zero, the reference does not depend on it")
    return out


def _names(reference: Callable[..., Any], count: int) -> list[str]:
    names = list(inspect.signature(reference).parameters)[:count]
    return names + [f"input {i}" for i in range(len(names), count)]


def _wide(t: torch.Tensor | None) -> torch.Tensor | None:
    if t is None or not t.dtype.is_floating_point:
        return t
    return t.detach().double().requires_grad_(t.requires_grad)


def _wide_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _wide(v) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
