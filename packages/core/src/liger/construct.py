"""Patching before construction: ``autopatch("llama")``, ``autopatch(config)``, ``autopatch(LlamaForCausalLM)``.

One class attribute is changed, ``__init__`` of exactly that class. It only *marks* instances whose type is that class:
construction happens on the meta device and in the middle of subclasses, so planning and patching wait for the first
forward or for ``liger.autopatch(model)``, when weights, tying and subclass constructors are done.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from liger.candidates import unknown_reason
from liger.declare import ModelPatch
from liger.errors import AlreadyPatched, PatchRefused, WrongOrder
from liger.patch import PENDING, replace_attributes
from liger.planner import Choices
from liger.registry import registry
from liger.report import Report, Row, log
from liger.swap import Spec, own, swapped_class

PENDING_SPEC = Spec(fit="pending", op="", adapter="liger.construct:pending")


class Mark(NamedTuple):
    """A class whose constructor is wrapped."""

    choices: Choices
    undo: Callable[[], None]


_marks: dict[type, Mark] = {}


def mark(target: Any, choices: Choices) -> Report:
    """Wrap the constructor of the class that ``target`` names."""
    report, cls = _plan(target, choices)
    if cls is None:
        report.planned = False
        report._revert = lambda: None
        return report
    if cls in _marks:
        if _marks[cls].choices != choices:
            raise AlreadyPatched(
                f"{cls.__name__} is already marked with other options: revert() the report or the kit that did it, or "
                f"call liger.unpatch({cls.__name__}), first"
            )
        report.rows = [_row(cls, "skipped", "already marked with the same options")]
    else:
        _install(cls, choices)
        log(cls, report.rows[0].reason)
    report.planned = False
    ours = _marks[cls]
    report._revert = lambda: unmark(cls) if _marks.get(cls) is ours else None
    return report


def plan_type(target: Any, choices: Choices) -> Report:
    """What ``mark`` would do."""
    return _plan(target, choices)[0]


def unmark(target: Any) -> None:
    """Give the class its own ``__init__`` back; instances made meanwhile stay. No-op if not marked."""
    cls: Any = _resolve(target)[0]
    if cls is None or cls not in _marks:
        return
    _marks[cls].undo()
    del _marks[cls]


def pending(original: type, op: None) -> dict[str, Any]:
    """Adapter of a marked instance: its first forward plans and patches, then runs.

    accelerate's mixed precision keeps this function in a wrapper on the instance, so later calls may come here too.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if PENDING in self.__dict__:
            resolve(self)
        return type(self).forward(self, *args, **kwargs)

    return {"forward": own(forward, original)}


def resolve(model: Any) -> Report:
    """Patch a marked instance now, with the choices it was marked with."""
    import torch

    from liger.api import patch_model

    if torch.compiler.is_compiling():
        raise WrongOrder("a model marked before construction was compiled unpatched: call liger.autopatch(model) first")
    return patch_model(model, model.__dict__[PENDING])


def _install(cls: Any, choices: Choices) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (it becomes the class's own)
        original(self, *args, **kwargs)
        if type(self) is cls:
            self.__dict__[PENDING] = choices
            self.__class__ = swapped_class(cls, PENDING_SPEC)

    _marks[cls] = Mark(choices, replace_attributes(cls, {"__init__": __init__}, cls.__name__, "Liger's wrapper"))


def _plan(target: Any, choices: Choices) -> tuple[Report, type | None]:
    cls, reason = _resolve(target)
    if cls is None:
        if choices.strict:
            raise PatchRefused(reason)
        row = Row(
            path="", cls=str(getattr(target, "model_type", target)), fit="", op="", status="skipped", reason=reason
        )
        return Report([row], planned=True), None
    reason = "each new instance is patched at its first forward or by liger.autopatch(model)"
    return Report([_row(cls, "deferred", reason)], planned=True), cls


def _row(cls: type, status: Any, reason: str) -> Row:
    return Row(path="", cls=cls.__name__, fit="", op="__init__", status=status, reason=reason)


def _resolve(target: Any) -> tuple[type | None, str]:
    if isinstance(target, type):
        if not hasattr(target, "config_class"):
            return None, f"{target.__name__} is not a model class: mark the class of the whole model"
        if _recognises() or any(target.__module__ == patch.module for patch in registry().models.values()):
            return target, ""
        return None, f"no installed plugin declares the classes of {target.__module__}"
    model_type = target if isinstance(target, str) else getattr(target, "model_type", None)
    if not isinstance(model_type, str):
        raise TypeError(f"expected a model, a config, a model_type or a model class, got {type(target).__name__}")
    found = registry().models.get(model_type)
    if found is None:
        hint = "; pass the model or its class instead: its parts may be recognised" if _recognises() else ""
        return None, unknown_reason(model_type, registry()) + hint
    return _causal_lm(found), ""


def _recognises() -> bool:
    """Whether a plugin may know the parts of an undeclared model."""
    return any("liger_recognise_module" in info.hooks for info in registry().plugins.infos)


def _causal_lm(patch: ModelPatch) -> type:
    module = importlib.import_module(patch.module)
    names = [n for n in vars(module) if n.endswith("ForCausalLM") and vars(module)[n].__module__ == patch.module]
    if len(names) != 1:
        raise PatchRefused(f"{patch.module} has {names or 'no class'} ForCausalLM; name the class instead")
    return vars(module)[names[0]]  # type: ignore[no-any-return]
