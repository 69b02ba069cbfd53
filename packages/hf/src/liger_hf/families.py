"""Which family of models a name, a path or a config means, and what can be patched in it before one is built."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

import liger
from liger import Row
from liger.candidates import unknown_reason
from liger.declare import load
from liger.plugins import describe
from liger.registry import registry
from liger_hf.commands import find_config, meta_model
from liger_hf.kit_options import plain
from liger_hf.loading import model_classes
from liger_hf.samples import made_here


@dataclass(frozen=True, slots=True)
class Family:
    """A model type.

    Attributes:
        model_type: as in ``config.model_type``.
        config: of the model; a small or default one where only its type is known.
        target: what the command line knows it by.
        classes: its whole models.
        rows: of a plan for the config, made on the meta device.
    """

    model_type: str
    config: Any
    target: str
    classes: list[type]
    rows: list[Row]

    @property
    def route(self) -> str:
        """``"family"`` if a package declares it, else ``"recognised"``."""
        return "family" if self.model_type in registry().models else "recognised"

    def ops(self) -> set[str]:
        """The ops that could be patched."""
        return {row.op for row in self.rows if row.status == "applied"}

    def commands(self) -> list[str]:
        """Commands that check the family."""
        declared = [f"liger validate model {self.model_type}"] if self.route == "family" else []
        return [f"liger plan {self.target}", *declared]

    def lacks(self) -> list[str]:
        """What is not installed for it."""
        found = [] if self.route == "family" else [unknown_reason(self.model_type, registry())]
        found += sorted({row.reason for row in self.rows if "is not installed" in row.reason})
        if self.route == "family" and find_spec("pytest") is None:
            found.append("liger validate needs pytest: pip install 'liger-core[testing]'")
        return found


def find_family(target: Any, model_type: str | None) -> Family | None:
    """The family of a model type, directory, hub id, config or model class; ``model_type`` overrides what it says.

    Returns:
        None if neither is given.

    Raises:
        ValueError: neither names one, or they contradict each other.
        TypeError: ``target`` is nothing of these.
    """
    if target is None and model_type is None:
        return None
    if model_type is not None and not isinstance(model_type, str):
        raise TypeError(f"model_family is {model_type!r}, expected a model type such as 'llama'")
    config = None
    if target is not None:
        try:
            config = _config(target)
        except ValueError as error:
            if model_type is None:
                raise ValueError(f"{error}\nName its family: model_family='llama', for one") from error
    if config is not None and model_type is not None:
        config = _part(config, model_type)
    named = config is not None and isinstance(target, (str, os.PathLike))
    if model_type is None:
        model_type = str(config.model_type)  # type: ignore[union-attr]
    config = config or _default(model_type)
    return Family(
        model_type=model_type,
        config=config,
        target=os.fspath(target) if named else model_type,
        classes=_classes(model_type, target),
        rows=liger.plan(_on_meta(config)).rows,
    )


def _classes(model_type: str, target: Any) -> list[type]:
    """The classes of a model type, and the target where it is one that a user derived from them."""
    classes = model_classes(model_type, _types(model_type))
    derived = isinstance(target, type) and target not in classes and issubclass(target, tuple(classes))
    return [*classes, target] if derived else classes


def _config(target: Any) -> Any:
    from transformers import AutoConfig

    if isinstance(target, (str, os.PathLike)):
        return find_config(os.fspath(target))[0]
    if isinstance(target, type) and getattr(target, "config_class", None) is not None:
        return target.config_class()  # type: ignore[attr-defined]
    if isinstance(target, Mapping) and "model_type" in target:
        return AutoConfig.for_model(**plain(target))
    if isinstance(getattr(target, "model_type", None), str) and not isinstance(target, type):
        return target
    raise TypeError(
        f"model_name_or_path is {target!r}, expected a model type, a directory, a hub id, a config or a model class"
    )


def _part(config: Any, model_type: str) -> Any:
    """The config of a model type that is this one or inside it; None where the outer one is of somebody's own type.

    Raises:
        ValueError: it is of a declared type or one of transformers, and has no such part.
    """
    inside = [one for one in _configs(config) if getattr(one, "model_type", None) == model_type]
    known = config.model_type in registry().models or type(config).__module__.startswith("transformers.models.")
    if not inside and known:
        parts = ", ".join(str(getattr(one, "model_type", "?")) for one in _configs(config))
        raise ValueError(f"model_family is {model_type!r}, but the config is of {parts}: leave one of the two out")
    return inside[0] if inside else None


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if (inner := getattr(config, name, None)) is not None:
            yield from _configs(inner)


def _default(model_type: str) -> Any:
    """A small config of a declared type, upstream's own of another."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type in registry().models:
        return load(registry().models[model_type].mini)()
    if model_type not in CONFIG_MAPPING:
        raise ValueError(
            f"model_family is {model_type!r}, which the installed transformers does not know: "
            f"{unknown_reason(model_type, registry())}"
        )
    return CONFIG_MAPPING[model_type]()


def _types(model_type: str) -> set[str]:
    """The model type, and those of text models that a package declares beside it in the same module."""
    models = registry().models
    patch = models.get(model_type)
    beside = [t for t in models if t.startswith(model_type) and patch is not None and models[t].module == patch.module]
    return {model_type, *beside}


def _on_meta(config: Any) -> Any:
    """The richest model of a config on the meta device; an encoder has no language model.

    Raises:
        ValueError: upstream makes none.
    """
    from transformers import AutoModel

    try:
        return made_here(meta_model(config))
    except ValueError:
        pass
    try:
        with torch.device("meta"):
            return made_here(AutoModel.from_config(config))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ValueError(f"upstream makes no model of {config.model_type!r}: {describe(error)}") from error
