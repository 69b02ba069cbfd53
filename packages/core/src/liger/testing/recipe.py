"""Whether a recipe patches what it says, and trains the same.

    def test_my_recipe():
        check_recipe(
            apply=lambda: LigerKernelKit().apply("llama"),
            build=lambda: MyModel(small_config),
            batches=[{"input_ids": ids, "labels": ids}] * 3,
        )

For the tests of those who write recipes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.errors import ContractViolation
from liger.patch import swapped_modules
from liger.testing.convergence import ALLOWED, RATE
from liger.testing.models import expect
from liger.testing.observe import count_ops

Loss = Callable[[Any, Mapping[str, Any]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RecipeReport:
    """What was found: the losses of each side, modules patched and calls made in the first step, by op."""

    plain: list[float]
    patched: list[float]
    modules: dict[str, int]
    calls: dict[str, int]


def check_recipe(
    apply: Callable[[], Any],
    build: Callable[[], Any],
    batches: Sequence[Mapping[str, Any]],
    *,
    wiring: Mapping[str, int] | None = None,
    loss: Loss = lambda model, batch: model(**batch).loss,
) -> RecipeReport:
    """Train a model without and with a recipe, and compare.

    Args:
        apply: patches, and returns what has a ``revert()``: a ``liger.kit.KitResult``, a kit, a report.
        build: makes the model, in the same way each time; random numbers begin with the same seed.
        batches: one for each step, as keyword arguments of the model.
        wiring: op -> modules that must be patched with it, exactly; by default the ops of the result, any number.
        loss: of a model and a batch.

    Raises:
        ContractViolation: an op that should be patched is not, or is not called; a loss differs by more than the
            contract of trainings allows (in 16 bits: is further from the training in fp32 than twice the unpatched
            one); or something of the recipe is left after ``revert()``.
        ValueError: no batches, or ``build`` makes other weights each time.
    """
    if not batches:
        raise ValueError("check_recipe: batches is empty, expected one for each step")
    plain = _seeded(build)
    expect(
        not _patched(plain), "the model is patched before the recipe is applied: build() does it, or an older recipe"
    )
    weights = _weights(plain)
    losses, _ = _train(plain, batches, loss)
    del plain  # a kit refuses to be applied while one is there
    result = apply()
    try:
        model = _seeded(build)
        _same_weights(weights, _weights(model))
        found, calls = _train(model, batches, loss)
        modules = _patched(model)
    finally:
        result.revert()
    report = RecipeReport(losses, found, modules, calls)
    _check_wiring(report, wiring, getattr(result, "ops", ()))
    _check_losses(report, weights, build, batches, loss)
    left = _seeded(build)
    again, calls = _train(left, batches[:1], loss)
    expect(not calls and again == losses[:1], f"after revert() a new model still calls {calls}: loss {again[0]}")
    return report


def _seeded(build: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().train()


def _weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _same_weights(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    other = [n for n in wanted.keys() | found.keys() if n not in wanted or n not in found]
    other += [n for n in wanted.keys() & found.keys() if not torch.equal(wanted[n], found[n])]
    if other:
        raise ValueError(
            f"check_recipe: build() makes other weights each time, first in {min(other)}: draw them from torch's "
            "default generator, or load them"
        )


def _train(model: Any, batches: Sequence[Mapping[str, Any]], loss: Loss) -> tuple[list[float], dict[str, int]]:
    """The loss of each step, and the calls of the first by op."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, eps=1e-5)
    losses: list[float] = []
    calls: Counter[str] = Counter()
    torch.manual_seed(0)  # for dropout and for routers that draw
    for batch in batches:
        with count_ops() as counts:
            value = loss(model, batch)
        if not losses:
            for (op, _), n in counts.items():
                calls[op] += n
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(value.detach()))
    return losses, dict(calls)


def _patched(model: Any) -> dict[str, int]:
    """Op -> modules that are patched with it."""
    specs: Iterator[Any] = (type(m).__liger_spec__ for _, m in swapped_modules(model))  # type: ignore[attr-defined]
    return dict(Counter(spec.op for spec in specs if spec.op))


def _check_wiring(report: RecipeReport, wiring: Mapping[str, int] | None, ops: Sequence[str]) -> None:
    if wiring is not None and dict(wiring) != report.modules:
        raise ContractViolation(f"patched are {report.modules or 'no modules'}, expected {dict(wiring)}")
    expect(bool(report.modules or report.calls), "the recipe patched no module of the model that build() makes")
    for op in wiring or ops:
        expect(op in report.modules, f"no module is patched with {op}; patched are {report.modules}")
        expect(op in report.calls, f"{op} is patched and was not called in the first step; called were {report.calls}")


def _check_losses(
    report: RecipeReport,
    weights: Mapping[str, torch.Tensor],
    build: Callable[[], Any],
    batches: Sequence[Mapping[str, Any]],
    loss: Loss,
) -> None:
    """As ``liger.testing.convergence`` compares trainings."""
    if all(w.dtype in (torch.float32, torch.float64) for w in weights.values() if w.is_floating_point()):
        for step, (plain, found) in enumerate(zip(report.plain, report.patched, strict=True), 1):
            off = abs(found - plain) / max(abs(plain), 1e-30)
            expect(
                off <= ALLOWED["loss"],
                f"the loss of step {step} is {found:.9g} with the recipe and {plain:.9g} without: off by {off:.1e}, "
                f"allowed {ALLOWED['loss']:.0e}",
            )
        return
    truth, _ = _train(_seeded(build).float(), batches, loss)
    for step, (true, plain, found) in enumerate(zip(truth, report.plain, report.patched, strict=True), 1):
        allowed = 2 * abs(plain - true) + abs(true) * 2**-8
        expect(
            abs(found - true) <= allowed,
            f"the loss of step {step} is {found:.6g} with the recipe, {plain:.6g} without and {true:.6g} in fp32: "
            f"off by {abs(found - true):.1e}, allowed {allowed:.1e}",
        )
