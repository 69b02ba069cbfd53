"""Patching every model of a family that is made from now on.

``liger.autopatch(cls)`` marks a class, whose instances are patched at their first forward. Those that are loaded or
made from a config are patched at once, for what trains them wraps them next, in PEFT, FSDP or ``torch.compile``, with
no forward before it: two class methods of exactly the marked class are wrapped, and put back by ``revert``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

import liger
from liger import Report
from liger.construct import resolve
from liger.patch import PENDING, replace_attributes

METHODS = ("from_pretrained", "_from_config")


def model_classes(model_type: str, types: Collection[str]) -> list[type]:
    """The classes of whole models, of any of ``types``, in the modeling module of a model type.

    Raises:
        ValueError: the installed transformers has no such model type.
    """
    from transformers import PreTrainedModel
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    package = model_type_to_module_name(model_type)
    try:
        module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    except ModuleNotFoundError as error:
        raise ValueError(f"the installed transformers has no model type {model_type!r}") from error
    found: list[Any] = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, PreTrainedModel)]
    return [
        c
        for c in found
        if c.__module__ == module.__name__
        and getattr(c.config_class, "model_type", None) in types
        and not c.__name__.endswith("PreTrainedModel")
    ]


def patch_from_now_on(
    classes: Iterable[type], finish: Callable[[Report, Any], Report] = lambda report, model: report, **choices: Any
) -> Report:
    """Patch every instance of these classes that is made from now on; ``report.revert()`` ends it.

    Args:
        classes: of whole models.
        finish: called with the report of each model that is loaded or made from a config, and the model; the rows of
            what it returns are added to the report.
        choices: arguments of ``liger.autopatch``.

    Raises:
        AlreadyPatched: a class is marked with other choices. Nothing is marked then.
    """
    undo: list[Callable[[], None]] = []

    def revert() -> None:
        while undo:
            undo[-1]()
            undo.pop()

    report = Report([], _revert=revert)

    def loaded(model: Any, done: Report) -> None:
        report.rows += finish(done, model).rows

    try:
        for cls in classes:
            marked = liger.autopatch(cls, **choices)
            report.rows += marked.rows
            if marked.rows[0].status == "deferred":  # not, if it was marked before
                undo += [marked.revert, patch_when_loaded(cls, loaded)]
    except BaseException:
        revert()
        raise
    return report


def patch_when_loaded(cls: Any, patched: Callable[[Any, Report], object]) -> Callable[[], None]:
    """Wrap the methods of a class that ``liger.autopatch`` has marked; returns what undoes it.

    Args:
        cls: the class.
        patched: called with each patched model and its report.
    """
    methods = {name: classmethod(_patching(getattr(cls, name).__func__, patched)) for name in METHODS}
    return replace_attributes(cls, methods, cls.__name__, "Liger's wrapper")


def _patching(original: Callable[..., Any], patched: Callable[[Any, Report], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, *args, **kwargs)
        model = made[0] if isinstance(made, tuple) else made  # with output_loading_info
        if PENDING in model.__dict__:
            patched(model, resolve(model))
        return made

    return make
