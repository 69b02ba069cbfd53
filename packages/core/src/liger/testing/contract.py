"""The numerical contract: a kernel may be at most twice as far from the truth as the eager reference of the same dtype.

Truth is the reference in float64. Compared are the largest and the RMS error, over the whole tensor and per row (the
last dimension), of each output and each gradient. Floor, at the largest truth magnitude of the row, or of the tensor:
one ulp of the result's dtype plus sqrt(R) ulp of the accumulation dtype (float32, or float64 for itself), where R is
the number of terms that are summed, and at least 4 ulp, since any chain of a few operations costs that. There is no
other tolerance anywhere.

One rounding error says little about how large rounding errors are, so where rows are short eager's error is measured on
several neighbours of the inputs, each value one ulp up or down, and each against its own truth. The RMS error is
compared over 64 elements or more.

A row in which eager is nearly exact by luck, because the roundings of its intermediates cancel, counts with the
relative error of the other rows, at their 99 % quantile. Measured on the fp16 dweight of linear_cross_entropy, where
logits, dlogits and the result are rounded: without this a kernel with the same roundings failed in 7 of 4097 rows.

Truncating a 16-bit result instead of rounding it doubles the RMS error at most, and so would pass. It is found by its
bias: the mean error away from zero, in ulp of each element, which is 0 for rounding and -0.5 for truncation. It is
looked for where eager rounds once; more roundings can bias a row by chance.

Beside the values: shape, dtype, device, values that are finite where the truth is, and strides: contiguous, eager's, or
those of a copy of an input of that shape, so that nobody gets an expanded or gapped result. And nothing that the caller
sees is written (inputs, output gradients), no memory is read that nobody wrote, and the host never waits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.errors import ContractViolation
from liger.testing.observe import strict

Inputs = Sequence[torch.Tensor | None]
FACTOR = 2.0
CHAIN = 4.0  # ulp
ONE_ROUNDING = 0.35  # RMS in ulp; 0.29 for one rounding, 0.41 for two
BIAS = 0.25  # ulp; half of what truncation causes
ENOUGH = 256  # elements of a row that make its eager error a fair measure
NEIGHBOURS = 16  # otherwise: this many, or 4 for inputs of more than a million elements
RMS_COUNT = 64
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


Sample = tuple[Results, Results]
"""The eager result and the truth for the same inputs."""


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
        actual: the function under test, called as ``actual(*inputs, **options)``; or its outputs, which are all that is
            checked then.
        reference: the definition in plain torch, same arguments; with float64 inputs it must compute in float64.
        inputs: tensors and None. Gradients of those with ``requires_grad`` are checked, for one random output gradient.
        options: keyword arguments of both.
        reduction: R, the number of terms summed into one element; None if there is no sum.

    Returns:
        The measured errors by name, ``"output"``, ``"gradient of weight"``, for reports.

    Raises:
        ContractViolation: a wrong shape, dtype or layout, a value that is not finite, or an error above the limit; it
            lists every output and gradient that fails with the worst coordinates and the values there. Also what
            ``strict`` raises.
    """
    options = options or {}
    seeds = random_like(evaluate(reference, inputs, options).outputs)
    samples = [_sample(reference, inputs, options, seeds)]
    for index in range(1, _sample_count(inputs, samples[0][0])):
        samples.append(_sample(reference, *_neighbour(index, inputs, options, seeds)))
    if callable(actual):
        with strict(*inputs, *seeds):
            got = evaluate(actual, inputs, options, seeds)
    else:
        got = Results((actual,) if isinstance(actual, torch.Tensor) else tuple(actual), {})
    errors: dict[str, Errors] = {}
    failures = []
    for name, value, pairs in _named(got, samples, _names(reference, len(inputs))):
        try:
            errors[name] = compare(value, *pairs[0], neighbours=pairs[1:], reduction=reduction)
            check_layout(value, pairs[0][0], inputs)
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
        wanted = {i: t for i, t in enumerate(leaves) if t is not None and t.requires_grad}
        roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
        if roots and wanted:
            # not backward(): a leaf's .grad may be a copy in another layout than what the kernel returned
            found = torch.autograd.grad(
                [o for o, _ in roots], [*wanted.values()], [s.to(o.dtype) for o, s in roots], allow_unused=True
            )
            gradients = dict(zip(wanted, found, strict=True))
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
    actual: torch.Tensor | None,
    eager: torch.Tensor,
    truth: torch.Tensor,
    *,
    neighbours: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    reduction: int | None = None,
    per_row: bool = True,
) -> Errors:
    """Compare one tensor; see the module's docstring. ``neighbours`` are (eager, truth) of neighbouring inputs.

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


def check_layout(actual: torch.Tensor | None, eager: torch.Tensor, inputs: Inputs) -> None:
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


def _named(
    got: Results, samples: Sequence[Sample], names: Sequence[str]
) -> list[tuple[str, torch.Tensor | None, list[tuple[torch.Tensor, torch.Tensor]]]]:
    """Name, actual value and (eager, truth) of each sample, for each output and gradient."""
    count = len(samples[0][0].outputs)
    if len(got.outputs) != count:
        raise ContractViolation(f"{len(got.outputs)} outputs, expected {count}")
    out: list[tuple[str, torch.Tensor | None, list[tuple[torch.Tensor, torch.Tensor]]]] = []
    for i, value in enumerate(got.outputs):
        out.append(
            ("output" if count == 1 else f"output {i}", value, [(e.outputs[i], t.outputs[i]) for e, t in samples])
        )
    for i, gradient in got.gradients.items():
        pairs = [(e.gradients.get(i), t.gradients.get(i)) for e, t in samples]
        known = [(e, t) for e, t in pairs if e is not None and t is not None]
        if known:
            out.append((f"gradient of {names[i]}", gradient, known))
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


def _sample(
    reference: Callable[..., Any], inputs: Inputs, options: Mapping[str, Any], seeds: Sequence[torch.Tensor]
) -> Sample:
    """The eager result and the truth."""
    eager = evaluate(reference, inputs, options, seeds)
    wide = [_wide(t) for t in inputs], _wide_options(options), [s.double() for s in seeds]
    return eager, evaluate(reference, *wide)


def _sample_count(inputs: Inputs, eager: Results) -> int:
    results = [*eager.outputs, *(g for g in eager.gradients.values() if g is not None)]
    if all(t.dim() and t.shape[-1] >= ENOUGH for t in results if t.numel()):
        return 4 if any(t.element_size() == 2 for t in results) else 1  # 4 for the bias
    return NEIGHBOURS if sum(t.numel() for t in inputs if t is not None) <= 2**20 else 4


def _neighbour(
    index: int, inputs: Inputs, options: Mapping[str, Any], seeds: Sequence[torch.Tensor]
) -> tuple[Inputs, Mapping[str, Any], list[torch.Tensor]]:
    """Inputs and output gradients with every floating value about one ulp larger or smaller, at random."""
    generator = torch.Generator().manual_seed(index)

    def nudge(t: torch.Tensor) -> torch.Tensor:
        if not t.dtype.is_floating_point:
            return t
        factor = 1 + torch.finfo(t.dtype).eps * (torch.randint(0, 2, t.shape, generator=generator) * 2.0 - 1)
        return (t.detach().double() * factor.to(t.device)).to(t.dtype).requires_grad_(t.requires_grad)

    return [None if t is None else nudge(t) for t in inputs], options, [nudge(s) for s in seeds]
