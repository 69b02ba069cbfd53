"""The numerical contract: a kernel may be at most twice as far from the truth as the eager reference of the same dtype.

Truth is the reference in float64. Compared are the largest and the RMS error, over the whole tensor and per row (the
last dimension), of each output and each gradient. Floor, at the largest truth magnitude of the row, or of the tensor:
one ulp of the result's dtype plus sqrt(R) ulp of the accumulation dtype (float32, or float64 for itself), where R is
the number of terms that are summed, and at least 4 ulp, since any chain of a few operations costs that. There is no
other tolerance anywhere.

One rounding error says little about how large rounding errors are, so where rows are short eager's error is measured on
several neighbours of the inputs, each value one ulp up or down, and each against its own truth. The RMS error is
compared over 64 elements or more. In float64 eager is the truth, to its own rounding errors; there what the neighbours'
results differ from it counts as eager's error.

A row in which eager is nearly exact by luck, because the roundings of its intermediates cancel, counts with the
relative error of the other rows, at their 99 % quantile. Measured on the fp16 dweight of linear_cross_entropy, where
logits, dlogits and the result are rounded: without this a kernel with the same roundings failed in 7 of 4097 rows.

Truncating a 16-bit result instead of rounding it doubles the RMS error at most, and so would pass. It is found by its
bias: the mean error away from zero, in ulp of each element, which is 0 for rounding and -0.5 for truncation. It is
looked for where eager rounds once; more roundings can bias a row by chance.

A result of integers, as an argmax, has no error. Each must be what eager or the truth finds, for the inputs or for one
of their neighbours, since a rounding can decide between equals.

Beside the values: shape, dtype, device, values that are finite where the truth is, and strides: contiguous, eager's, or
those of a copy of an input of that shape, so that nobody gets an expanded or gapped result. And nothing that the caller
sees is written (inputs, output gradients), no memory is read that nobody wrote, and the host never waits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.errors import ContractViolation
from liger.testing.compare import Errors, check_layout, compare
from liger.testing.memory import poisoned
from liger.testing.observe import strict

Inputs = Sequence[torch.Tensor | None]
ENOUGH = 256  # elements of a row that make its eager error a fair measure
FEW, NEIGHBOURS = 4, 16  # samples for such rows or more than a million inputs, and otherwise


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
    waits: bool = False,
) -> dict[str, Errors]:
    """Check a kernel against its reference by the contract above, forward and backward.

    Args:
        actual: the function under test, called as ``actual(*inputs, **options)``; or its outputs, which are all that is
            checked then.
        reference: the definition in plain torch, same arguments; with float64 inputs it must compute in float64.
        inputs: tensors and None. Gradients of those with ``requires_grad`` are checked, for one random output gradient.
        options: keyword arguments of both.
        reduction: R, the number of terms summed into one element; None if there is no sum.
        waits: whether ``actual`` may make the host wait for the device.

    Returns:
        The measured errors by name, ``"output"``, ``"gradient of weight"``, for reports.

    Raises:
        ContractViolation: a wrong shape, dtype or layout, a value that is not finite, or an error above the limit; it
            lists every output and gradient that fails with the worst coordinates and the values there. Also what
            ``strict`` raises.
    """
    options = options or {}
    seeds = random_like(flat(reference(*inputs, **options)), loss=1.0)
    samples = [sample(reference, inputs, options, seeds)]
    exact = all(t.dtype == torch.float64 for t in inputs if t is not None and t.dtype.is_floating_point)
    for index in range(1, _sample_count(inputs, samples[0][0])):
        eager, truth = sample(reference, *_neighbour(index, inputs, options, seeds))
        samples.append((eager, samples[0][1] if exact else truth))
    if callable(actual):
        with poisoned() as place:
            mine = [None if t is None else place(t) for t in inputs]
            dy = [place(seed) for seed in seeds]
            with strict(*mine, *dy, waits=waits):
                got = evaluate(actual, mine, options, dy)
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
    """Run ``fn`` on fresh leaves, then backward from ``seeds``, one per output; from ``random_like`` if None."""
    fresh = leaves(inputs)
    outputs = flat(fn(*fresh, **options))
    seeds = random_like(outputs, loss=1.0) if seeds is None else seeds
    wanted = {i: t for i, t in enumerate(fresh) if t is not None and t.requires_grad}
    roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    gradients: dict[int, torch.Tensor | None] = {}
    if roots and wanted:
        # not backward(): a leaf's .grad may be a copy in another layout than what the kernel returned
        found = torch.autograd.grad(
            [o for o, _ in roots], [*wanted.values()], [s.to(o.dtype) for o, s in roots], allow_unused=True
        )
        gradients = dict(zip(wanted, found, strict=True))
    return Results(tuple(o.detach() for o in outputs), gradients)


def flat(made: Any) -> list[torch.Tensor]:
    """What an op returned as a list of outputs, without those that are None."""
    return [made] if isinstance(made, torch.Tensor) else [o for o in made if o is not None]


def leaves(inputs: Inputs) -> list[torch.Tensor | None]:
    """New leaves that share the inputs' memory."""
    return [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs]


def random_like(outputs: Sequence[torch.Tensor], loss: float = -2.0) -> list[torch.Tensor]:
    """One normal random output gradient per output, always the same for the same shapes; ``loss`` for a scalar.

    A scalar is a loss. Its gradients may be made in the forward and scaled in the backward, which rounds twice unless
    the factor is a power of two. The contract has 1, as in training, where a kernel may have nothing left to do.
    """
    generator = torch.Generator().manual_seed(1234)
    seeds = [torch.randn(tuple(o.shape), generator=generator) if o.dim() else torch.tensor(loss) for o in outputs]
    return [seed.to(o.device, o.dtype) for seed, o in zip(seeds, outputs, strict=True)]


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


def wide(t: torch.Tensor | None) -> torch.Tensor | None:
    """The same values in float64, as a leaf; integers and None as they are."""
    if t is None or not t.dtype.is_floating_point:
        return t
    return t.detach().double().requires_grad_(t.requires_grad)


def sample(
    reference: Callable[..., Any], inputs: Inputs, options: Mapping[str, Any], seeds: Sequence[torch.Tensor]
) -> Sample:
    """The eager result and the truth."""
    eager = evaluate(reference, inputs, options, seeds)
    widened = {name: wide(v) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
    return eager, evaluate(reference, [wide(t) for t in inputs], widened, [s.double() for s in seeds])


def _sample_count(inputs: Inputs, eager: Results) -> int:
    results = [*eager.outputs, *(g for g in eager.gradients.values() if g is not None)]
    if all(t.dim() and t.shape[-1] >= ENOUGH for t in results if t.numel()):
        return FEW  # a row of softmax may have one value that counts, where eager's rounding is luck
    return NEIGHBOURS if sum(t.numel() for t in inputs if t is not None) <= 2**20 else FEW


def _neighbour(
    index: int, inputs: Inputs, options: Mapping[str, Any], seeds: Sequence[torch.Tensor]
) -> tuple[Inputs, Mapping[str, Any], list[torch.Tensor]]:
    """Inputs and output gradients with every floating value about one ulp larger or smaller, at random."""
    generator = torch.Generator().manual_seed(index)

    def nudge(t: torch.Tensor) -> torch.Tensor:
        if not t.dtype.is_floating_point:
            return t
        factor = 1 + torch.finfo(t.dtype).eps * (torch.randint(0, 2, t.shape, generator=generator).double() * 2 - 1)
        return (t.detach().double() * factor.to(t.device)).to(t.dtype).requires_grad_(t.requires_grad)

    return [None if t is None else nudge(t) for t in inputs], options, [nudge(s) for s in seeds]
