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
from liger import Report, Row
from liger.construct import resolve
from liger.errors import UnpatchConflict
from liger.patch import MISSING, PENDING

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
    classes: Iterable[type], patched: Callable[[Any], object] = lambda model: None, **choices: Any
) -> Report:
    """Patch every instance of these classes that is made from now on; ``report.revert()`` ends it.

    Args:
        classes: of whole models.
        patched: called with each model that is loaded or made from a config, once it is patched.
        choices: arguments of ``liger.autopatch``.

    Raises:
        AlreadyPatched: a class is marked with other choices. Nothing is marked then.
    """
    rows: list[Row] = []
    undo: list[Callable[[], None]] = []

    def revert() -> None:
        while undo:
            undo[-1]()
            undo.pop()

    try:
        for cls in classes:
            report = liger.autopatch(cls, **choices)
            rows += report.rows
            if report.rows[0].status == "deferred":  # not, if it was marked before
                undo += [report.revert, patch_when_loaded(cls, patched)]
    except BaseException:
        revert()
        raise
    return Report(rows, _revert=revert)


def patch_when_loaded(cls: Any, patched: Callable[[Any], object]) -> Callable[[], None]:
    """Wrap the methods of a class that ``liger.autopatch`` has marked, and call ``patched`` with each patched model.

    Returns what undoes it.
    """
    before = {name: cls.__dict__.get(name, MISSING) for name in METHODS}
    installed = {name: classmethod(_patching(getattr(cls, name).__func__, patched)) for name in METHODS}
    for name, method in installed.items():
        setattr(cls, name, method)

    def revert() -> None:
        for name, method in installed.items():
            if (found := cls.__dict__.get(name)) is not method:
                raise UnpatchConflict(f"{cls.__name__}.{name}: expected Liger's wrapper, found {found!r}")
        for name, original in before.items():
            if original is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, original)

    return revert


def _patching(original: Callable[..., Any], patched: Callable[[Any], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, *args, **kwargs)
        model = made[0] if isinstance(made, tuple) else made  # with output_loading_info
        if PENDING in model.__dict__:
            resolve(model)
            patched(model)
        return made

    return make
