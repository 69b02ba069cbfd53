"""Instances of a class to compare with what is to replace it, built before any model is."""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import liger
from liger import Fit, ModelPatch
from liger.declare import Probe, load
from liger.errors import PatchRefused
from liger.patch import Action
from liger.planner import Choices, parts_of
from liger.plugins import describe
from liger.registry import registry
from liger.swap import Part
from liger.upstream import SMALL
from liger.verify import differ, verify_fit
from liger_hf.recognise import as_source, recognise_module

WIDTH = 32
"""Of hidden states, where a constructor asks for sizes."""
DTYPES = (torch.float32, torch.bfloat16)
MADE: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Modules that were built here to look at them: an error's traceback may keep them alive, and no user has them."""


class Unbuildable(Exception):
    """No instance of a class can be made, or no inputs for its forward are known; the message says why."""


class Sample(NamedTuple):
    """An instance with random weights, how another class is made like it, and inputs of its forward, if known.

    ``option``: of the constructor, where it has another value than by default.
    """

    module: Any
    make: Callable[[type], Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    option: str = ""


def samples(cls: Any, config: Any, example: Callable[..., Any] | None, runs: bool) -> list[Sample]:
    """Instances of a class: an example's, or those in the small model of a declared type, or one made by its signature.

    Args:
        config: of the model around it, if known.
        example: as in ``LigerPatch``.
        runs: whether inputs are needed.

    Raises:
        Unbuildable: there is no way.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if example is not None:
            return [_exemplary(cls, example)]
        declared = [patch for patch in registry().models.values() if patch.module == cls.__module__]
        if declared and (found := _in_mini(cls, max(declared, key=lambda patch: patch.images is not None))):
            return found
        return _by_signature(cls, config, runs)


def made_here(model: nn.Module) -> Any:
    """The model as upstream has it, for its class may be patched from now on; its modules are remembered as ours."""
    liger.unpatch(model)
    for module in model.modules():
        MADE.add(module)
    return model


def _exemplary(cls: Any, example: Callable[..., Any]) -> Sample:
    try:
        module, inputs = example(cls)
        made_here(module)
    except Exception as error:
        raise ValueError(
            f"example= of a LigerPatch failed with {describe(error)}; it is f(cls) -> (instance, inputs of its forward)"
        ) from error
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return Sample(_random(module), lambda other: example(other)[0], args, {})


def _in_mini(cls: Any, patch: ModelPatch) -> list[Sample]:
    """One instance for each set of shapes, with what it gets when the model runs, images included if it sees them."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    made: dict[int, tuple[Any, Any, Any]] = {}
    original = cls.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        made[id(self)] = self, args, kwargs
        original(self, *args, **kwargs)

    auto = AutoModelForCausalLM if patch.images is None else AutoModelForImageTextToText
    with mock.patch.object(cls, "__init__", record):
        model: Any = made_here(auto.from_config(load(patch.mini)()))  # type: ignore[no-untyped-call]
    inputs: dict[int, tuple[Any, Any]] = {}

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        inputs[id(module)] = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), (args, kwargs))

    inside = [m for m in model.modules() if type(m) is cls]
    hooks = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in inside]
    ids = torch.arange(3, 27).view(2, 12)
    with torch.no_grad():
        model(**({"input_ids": ids} if patch.images is None else load(patch.images)(ids)))
    for hook in hooks:
        hook.remove()
    found: dict[Any, Sample] = {}
    for module in inside:
        shapes = tuple((n, tuple(p.shape)) for n, p in module.named_parameters())
        _, args, kwargs = made[id(module)]
        if id(module) in inputs and shapes not in found:
            make = lambda other, args=args, kwargs=kwargs: other(*args, **kwargs)  # noqa: E731
            found[shapes] = Sample(_random(module), make, *inputs[id(module)])
    return list(found.values())


def _by_signature(cls: Any, config: Any, runs: bool) -> list[Sample]:
    """An instance whose sizes are all ``WIDTH``; if it is to run, one more for each option that can be varied."""
    required, optional = parameters(cls.__init__)
    arguments = [_argument(p.name, config) for p in required]
    try:
        found = [_sample(cls, arguments, {})]
    except Exception as error:
        names = ", ".join(p.name for p in required)
        raise Unbuildable(f"{cls.__name__}({names}) failed with {describe(error)}") from error
    if not runs:
        return found
    takes = [p.name for p in parameters(cls.forward)[0]]
    if len(takes) != 1:
        raise Unbuildable(f"its forward takes ({', '.join(takes)}), and only hidden states can be made up")
    for option in optional:
        if isinstance(option.default, (bool, float)):
            other = not option.default if isinstance(option.default, bool) else option.default * 8 or 0.5
            with contextlib.suppress(Exception):  # no value that upstream takes
                found.append(_sample(cls, arguments, {option.name: other}))
    return found


def _sample(cls: Any, arguments: list[Any], options: Mapping[str, Any]) -> Sample:
    """With hidden states (3, 2, width)."""
    module = made_here(cls(*arguments, **options))
    first = next(module.parameters(), None)
    scale = torch.tensor([1e-3, 1.0, 30.0]).view(3, 1, 1)  # an epsilon shows in small rows
    x = torch.randn(3, 2, WIDTH if first is None else first.shape[-1]) * scale
    option = ", ".join(f"{name}={value}" for name, value in options.items())
    return Sample(_random(module), lambda other: other(*arguments, **options), (x,), {}, option)


def parameters(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Of a method after ``self``: those without a default, and those with one."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = [p for p in list(inspect.signature(function).parameters.values())[1:] if p.kind not in kinds]
    return [p for p in every if p.default is p.empty], [p for p in every if p.default is not p.empty]


def _argument(name: str, config: Any) -> Any:
    if "config" in name:
        if config is None:
            raise Unbuildable(f"it is built with {name!r}, and no model_name_or_path or model_family says which")
        small = copy.deepcopy(config)
        for field, value in SMALL.items():
            if hasattr(small, field):
                setattr(small, field, value)
        return small
    return 0 if "idx" in name or "index" in name else WIDTH


def _random(module: nn.Module) -> nn.Module:
    """The module with other weights than upstream's first ones, which may be all 0 or all 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module.eval()


# -- Comparing ---------------------------------------------------------------------------------------------------------
def refuse_fit(module: Any, fit: Fit) -> str | None:
    """Why a fit does not suit a module, with the numbers where it can be run."""
    try:
        parts_of(module, fit)
    except PatchRefused as refusal:
        suits = as_source(module)
        return f"{refusal}{_numbers(module, _renamed(fit, module))}" + (f"\nwhat suits it: {suits}" if suits else "")
    return None


def _renamed(fit: Fit, module: Any) -> Fit:
    """The fit with the module's own name of epsilon, so that its maths can be compared whatever that is called."""
    suits = recognise_module(module)
    eps = suits.options.get("eps") if isinstance(suits, Fit) else None
    return replace(fit, options={**fit.options, "eps": eps}) if eps and "eps" in fit.options else fit


def _numbers(module: Any, fit: Fit) -> str:
    """How far the patched module would be from upstream's; empty where it cannot even run."""
    action = Action("", module, Choices().spec(fit, Part(module, fit.adapter)), {})
    try:
        status, reason = verify_fit(module, fit, [action])
    except Exception:  # the fit reads what the module does not have, which the refusal says
        return ""
    return f"; {reason}" if status == "refused" else ""


def refuse_class(sample: Sample, cls: type) -> str | None:
    """Why a class does not compute what the sample's does, with the numbers: weights, forward and gradients."""
    try:
        other = sample.make(cls).eval()
    except Exception as error:  # who asks for an option that the class does not have is told when it is built
        return None if sample.option else f"building it failed with {describe(error)}"
    reason = _other_state(sample.module, other)
    for dtype in () if reason else DTYPES:
        module = copy.deepcopy(sample.module).to(dtype)
        same = other.to(dtype)
        same.load_state_dict(module.state_dict())
        try:
            probe = _probe(sample, dtype)
            reason = differ(module, same, probe)
            reason = f"a result {reason}" if reason else _other_results(module, same, sample, probe)
        except Exception as error:
            reason = f"running it failed with {describe(error)}"
        if reason:
            reason = f"in {dtype} {reason}"
            break
    return f"with {sample.option} {reason}" if reason and sample.option else reason


def _other_state(module: Any, other: Any) -> str | None:
    """Why the state of one module does not suit another."""
    wanted, found = ({n: tuple(t.shape) for n, t in m.state_dict().items()} for m in (module, other))
    if wanted != found:
        return f"its parameters are {found}, expected {wanted}, or checkpoints do not load"
    wanted_grad, found_grad = ([n for n, p in sorted(m.named_parameters()) if p.requires_grad] for m in (module, other))
    if wanted_grad != found_grad:
        return f"the parameters that it trains are {found_grad}, expected {wanted_grad}"
    return None


def _other_results(module: Any, other: Any, sample: Sample, probe: Probe) -> str | None:
    """What differs beside the numbers of an evaluation: what is returned, and what training does to it."""
    wanted, found = (_form(m, sample, probe.inputs[0].dtype) for m in (module, other))
    if wanted != found:
        return f"it returns {found}, expected {wanted}"
    wanted_mode, found_mode = (_trains_otherwise(m, probe) for m in (module, other))
    if wanted_mode != found_mode:
        which = "the original" if wanted_mode else "the replacement"
        return f"only {which} computes something else in training, as dropout does"
    return None


def _form(module: Any, sample: Sample, dtype: torch.dtype) -> Any:
    """Shapes and dtypes of what the forward returns."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (sample.args, dict(sample.kwargs))
    )
    with torch.no_grad():
        returned = module.forward(*args, **kwargs)
    return pytree.tree_map_only(Tensor, lambda t: f"{t.dtype} {tuple(t.shape)}", returned)


def _trains_otherwise(module: Any, probe: Probe) -> bool:
    """Whether results in training are others than in evaluation."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return not torch.equal(*(probe.run(copy.deepcopy(module).train(on), *probe.inputs) for on in (False, True)))


def _probe(sample: Sample, dtype: torch.dtype) -> Probe:
    """The sample's inputs in a dtype; what is returned is one tensor, all floating ones in a row."""
    values, spec = pytree.tree_flatten((sample.args, dict(sample.kwargs)))
    floating = [isinstance(v, Tensor) and v.is_floating_point() for v in values]
    inputs = [v.detach().to(dtype).requires_grad_() for v, float_ in zip(values, floating, strict=True) if float_]
    inputs = inputs or [torch.zeros(1, dtype=dtype, requires_grad=True)]  # of an embedding: none that counts

    def run(module: Any, *tensors: Tensor) -> Tensor:
        given = iter(tensors)
        filled = [next(given) if float_ else v for v, float_ in zip(values, floating, strict=True)]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        returned = pytree.tree_leaves(module.forward(*args, **kwargs))
        return torch.cat([t.flatten() for t in returned if isinstance(t, Tensor) and t.is_floating_point()])

    return Probe(run, tuple(inputs))
