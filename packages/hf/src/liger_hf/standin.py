"""Whether a module computes what a fit says: upstream's method and the adapter, on a stand-in, compared bit by bit."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdRef

from liger.declare import load
from liger.errors import ContractViolation
from liger.registry import registry
from liger.swap import original_class, quiet
from liger.testing.compare import compare
from liger.testing.contract import random_like
from liger_hf.stub import Stub

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAGNITUDES = (1e-3, 1.0, 30.0, 0.0, 1e5)
ROWS = len(MAGNITUDES)


class Run(NamedTuple):
    """One comparison: dtypes of inputs and of parameters, and how the module is used.

    ``training``: with gradients, where dropout shows, on several positions; else without, on one, as in generation.
    ``flat``: rows without a batch around them, as tokens come to an expert.
    """

    dtype: torch.dtype
    weights: torch.dtype
    training: bool = True
    flat: bool = False

    @property
    def optional(self) -> bool:
        """Whether it only counts for modules that can be used so."""
        return self.dtype != self.weights or self.dtype == torch.float16 or self.flat

    def __str__(self) -> str:
        how = " on rows without a batch" if self.flat else " in training" if self.training else " in evaluation"
        return f"{self.dtype} with {self.weights} parameters differs{how}"


RUNS = (
    Run(torch.float32, torch.float32),
    Run(torch.float32, torch.float32, training=False),
    Run(torch.bfloat16, torch.bfloat16),
    Run(torch.bfloat16, torch.bfloat16, training=False),
    Run(torch.float16, torch.float16),
    Run(torch.float32, torch.float32, flat=True),
    Run(torch.bfloat16, torch.float32),
    Run(torch.float32, torch.bfloat16),
)


def differs(
    module: nn.Module,
    options: Mapping[str, Any],
    *,
    op: str,
    adapter: Any,
    inputs: Sequence[tuple[int, ...]],
    keep: Collection[str] = (),
    mixed: bool = True,
    narrow: bool = True,
    positions: bool = True,
) -> str | None:
    """Why upstream's forward is not what ``adapter`` makes of the op's reference, or None.

    Args:
        options: of the fit.
        adapter: one made by ``liger.swap.forward``.
        inputs: shapes of the tensors that forward takes: rows, positions, and more.
        keep: children that stay as they are; the others are replaced by a function that both sides call.
        mixed: whether parameters of another dtype than the inputs' are compared as well.
        narrow: whether 16-bit inputs are.
        positions: whether the second dimension is one of positions, which may also be one or missing.
    """
    shapes = tuple((n, p if p is None else tuple(p.shape)) for n, p in module._parameters.items())
    kept = tuple(repr(getattr(module, name)) for name in keep)
    at = getattr(module, "layer_idx", None)
    cls: Any = original_class(module)
    key = (cls, cls.forward, op, adapter, tuple(inputs), *options.items(), held(module), at, shapes, kept)
    if key not in _compared:
        runs = [
            run
            for run in RUNS
            if (mixed or run.dtype == run.weights)
            and (narrow or run.dtype == torch.float32)
            and (positions or (run.training and not run.flat))
        ]
        _compared[key] = _compare(module, options, op, adapter.__liger_adapter__, inputs, keep, runs)
    return _compared[key]


def plain(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """Numbers and words, its config's too, that may decide what forward does; not which layer it is, nor the mode."""
    kept, config = (bool, int, float, str), module.__dict__.get("config")
    settings = {} if config is None else getattr(config, "__dict__", {})
    return tuple(
        (n, v)
        for values in (vars(module), settings)
        for n, v in values.items()
        if isinstance(v, kept) and n not in ("layer_idx", "training")
    )


def held(module: nn.Module) -> tuple[Any, ...]:
    """The same with everything else that it holds: functions, lists, tensors, buffers that stay as they are."""
    kept = {n: b for n, b in module._buffers.items() if b is not None and not b.is_floating_point()}
    config = getattr(module.__dict__.get("config"), "__dict__", {})
    values = {n: v for n, v in vars(module).items() if n not in NOT_HELD and not n.startswith("_liger_")}
    return tuple((n, _identity(v)) for values in (values, config, kept) for n, v in values.items())


NOT_HELD = frozenset((*vars(nn.Module()), "config", "layer_idx", "forward", "_hf_hook", "_old_forward"))
"""Attributes that the stand-in replaces, or that upstream's method does not read."""


def _identity(value: Any) -> Any:
    """Equal for values that are known to be equal: an object that cannot be looked into equals itself alone."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value), *map(_identity, value)
    if isinstance(value, dict):
        return dict, *((_identity(k), _identity(v)) for k, v in value.items())
    try:
        return WeakIdRef(value)
    except TypeError:  # a dtype, a slice
        return repr(value)


_compared: dict[tuple[Any, ...], str | None] = {}


def _compare(
    module: nn.Module,
    options: Mapping[str, Any],
    op: str,
    adapter: Callable[..., Tensor],
    inputs: Sequence[tuple[int, ...]],
    keep: Collection[str],
    runs: Sequence[Run],
) -> str | None:
    cls: Any = original_class(module)
    reference = load(registry().op(op).reference)
    generator = torch.Generator().manual_seed(0)
    formula = f"its forward does not compute {op} {said(options)}"
    for use in runs:
        copy = stand_in(module, use.weights, generator, keep)
        copy.training = use.training
        tensors = [_rows(shape, generator, use) for shape in inputs]
        if reason := _differs_in(use, copy, functools.partial(adapter, reference, copy, **options), tensors, formula):
            return reason
    copy = stand_in(module, torch.float32, generator, keep)
    if copy._modules and len(inputs) == 1:
        with autocast(), torch.no_grad():
            x = _rows(inputs[0], generator)
            if not same(cls.forward(copy, x), adapter(reference, copy, x, **options)):
                return "its forward turns autocast off or on for its projections"
    names = [name for name, value in copy._parameters.items() if value is not None and value.is_floating_point()]

    def run(forward: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        copy._parameters.update(zip(names, tensors[len(inputs) :], strict=True))
        return forward(*tensors[: len(inputs)])

    return gradients_differ(
        functools.partial(run, functools.partial(cls.forward, copy)),
        functools.partial(run, functools.partial(adapter, reference, copy, **options)),
        [*(_rows(shape, generator) for shape in inputs), *(copy._parameters[name] for name in names)],
    )


def _differs_in(
    use: Run, copy: Any, ours: Callable[..., Tensor], tensors: Sequence[Tensor], formula: str
) -> str | None:
    """What upstream's forward does otherwise than ``ours`` in one run; None also where it cannot be run so."""
    cls: Any = original_class(copy)
    given = [t.clone() for t in tensors]
    with torch.set_grad_enabled(use.training):
        try:
            expected, effect = _watched(functools.partial(cls.forward, copy, *given), copy)
        except Exception as error:
            return None if use.optional else f"a probe of its forward failed with {type(error).__name__}: {error}"
        if not isinstance(expected, Tensor):
            return f"its forward returns a {type(expected).__name__}, expected a tensor"
        if not same(ours(*tensors), expected):
            return f"{formula}: {use}"
    return effect if all(map(same, given, tensors)) else "its forward changes its input"


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors have one dtype, shape and bits; all NaNs are one."""
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and torch.allclose(
        found, expected, rtol=0.0, atol=0.0, equal_nan=True
    )


def _watched(function: Callable[[], Any], module: nn.Module) -> tuple[Any, str | None]:
    """The result of ``function``, and what it did beside computing it, which an op would not do.

    Random numbers are put back; a stand-in of ``module`` may be left changed.
    """
    before, drawn = _state(module), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            start = torch.random.get_rng_state()
            result = function()
            draws = random.getstate() != drawn or not torch.equal(torch.random.get_rng_state(), start)
    finally:
        random.setstate(drawn)
    changed = sorted({name for name, *_ in _state(module) - before})
    if changed:
        return result, f"its forward changes {', '.join(changed)} of the module"
    return result, "its forward draws random numbers" if draws else None


def _state(module: nn.Module) -> set[tuple[Any, ...]]:
    """What a module holds, and how often its buffers were written."""
    return {*held(module), *((n, b._version) for n, b in module._buffers.items() if b is not None)}


def gradients_differ(upstream: Callable[..., Any], ours: Callable[..., Any], leaves: Sequence[Tensor]) -> str | None:
    """Why upstream's gradients of ``leaves``, fp32, are not those of the op within the contract, or None.

    Args:
        upstream, ours: functions of all leaves, which return one tensor or several.
        leaves: what to differentiate; the truth is ``ours`` in fp64.
    """

    def gradients(function: Callable[..., Any], dtype: torch.dtype) -> Sequence[Tensor | None]:
        tensors = [t.detach().to(dtype).requires_grad_() for t in leaves]
        with torch.enable_grad():
            out = function(*tensors)
            outputs = [out] if isinstance(out, Tensor) else list(out)
            if not any(output.requires_grad for output in outputs):
                return [None] * len(tensors)
            return torch.autograd.grad(outputs, tensors, random_like(outputs), allow_unused=True)

    kinds = [(upstream, torch.float32), (ours, torch.float32), (ours, torch.float64)]
    for found, expected, truth in zip(*(gradients(*kind) for kind in kinds), strict=True):
        if expected is None or truth is None:
            if found is not None:
                return "it has a gradient that the op does not have"
            continue
        try:
            compare(found, expected, truth, reduction=truth.numel(), per_row=False)
        except ContractViolation as violation:
            return f"a gradient of its forward {violation}"
    return None


def said(options: Mapping[str, Any]) -> str:
    """The options of a fit, for a message."""
    return f"with {', '.join(f'{n}={v!r}' for n, v in options.items())}" if options else "as the fit has it"


def stand_in(module: nn.Module, dtype: torch.dtype, generator: torch.Generator, keep: Collection[str] = ()) -> Any:
    """A copy of the module on the CPU with random parameters of ``dtype``, whose children but ``keep`` are stubs."""
    copy = quiet(module)

    def noise(t: Tensor | None) -> Tensor | None:
        if t is None or not t.is_floating_point():
            return t if t is None else t.clone()  # a forward that counts must not count this
        return nn.Parameter(torch.randn(t.shape, generator=generator).to(dtype), requires_grad=False)

    for kind in ("_parameters", "_buffers"):
        copy.__dict__[kind] = {name: noise(t) for name, t in copy.__dict__[kind].items()}
    copy.__dict__["_modules"] = {
        name: child if child is None or name in keep else Stub(functools.partial(_project, at + 1))
        for at, (name, child) in enumerate(copy._modules.items())
    }
    return copy


def place(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where a module's weights are, and the dtype to probe it in: that of the first floating one, fp32 if none is.

    Quantised weights are of integers; the scales beside them may be buffers of the dtype that is computed in.
    """
    weights = [*module.parameters(), *module.buffers()]
    dtype = next((t.dtype for t in weights if t.is_floating_point()), torch.float32)
    return (weights[0].device if weights else torch.device("cpu")), dtype


def _rows(shape: tuple[int, ...], generator: torch.Generator, run: Run = RUNS[0]) -> Tensor:
    """Random, the rows of the magnitudes in turn, so that an epsilon and a limit show; as a run wants them."""
    if not run.training or run.flat:
        shape = shape[0], *(() if run.flat else (1,)), *shape[2:]
    scale = torch.tensor(MAGNITUDES)[torch.arange(shape[0]) % len(MAGNITUDES)]
    rows = torch.randn(shape, generator=generator) * scale.view(-1, *[1] * (len(shape) - 1))
    return rows.clamp(torch.finfo(run.dtype).min, torch.finfo(run.dtype).max).to(run.dtype)


def _project(at: int, x: Tensor) -> Tensor:
    """(..., H) -> (..., 2 H): stands in for a projection, another one for each ``at`` and under autocast."""
    shift = at + sum(torch.is_autocast_enabled(device) for device in AUTOCAST)
    return torch.cat((x * at, x.flip(-1) - 0.25 * shift), dim=-1)


AUTOCAST = ("cpu", "cuda")


@contextmanager
def autocast() -> Iterator[None]:
    """As inside ``torch.autocast`` of both devices, which also works where one is missing."""
    before = [torch.is_autocast_enabled(device) for device in AUTOCAST]
    try:
        for device in AUTOCAST:
            torch.set_autocast_enabled(device, True)
        yield
    finally:
        for device, enabled in zip(AUTOCAST, before, strict=True):
            torch.set_autocast_enabled(device, enabled)


def readable(weight: Tensor, name: str) -> str | None:
    """Why an op must not read ``weight`` directly: quantised and other tensor subclasses mean something else."""
    kind = type(weight)
    if kind not in (nn.Parameter, Tensor) and kind.__name__ != "DTensor":
        return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a plain parameter"
    if not weight.dtype.is_floating_point:
        return f"{name} has dtype {weight.dtype}, not a floating one"
    return None
