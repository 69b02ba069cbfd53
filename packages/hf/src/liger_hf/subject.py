"""A model on the meta device and what was found in it, for ``liger analyze``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from liger import Fit
from liger_hf.recognise import recognise_module

TOWERS = ("vision_config", "audio_config", "speech_config")


@dataclass(frozen=True)
class Subject:
    """A model on the meta device, and what was found in it.

    Attributes:
        found: path -> the fit that suits a module, or why none does; text and towers.
        towers: path of a tower -> the field of the config that describes it.
    """

    config: Any
    model: Any
    found: Mapping[str, Fit | str]
    towers: Mapping[str, str]

    def of(self, *ops: str, tower: bool = False) -> Iterator[tuple[str, Any, Fit]]:
        """Path, module and fit of the modules that meet one of ``ops``, of the text model or of its towers."""
        for path, fit in self.found.items():
            if isinstance(fit, Fit) and fit.op in ops and self.in_tower(path) == tower:
                yield path, self.model.get_submodule(path), fit

    def in_tower(self, path: str) -> bool:
        """Whether a module is a part of a tower."""
        return any(path == tower or path.startswith(f"{tower}.") for tower in self.towers)

    @functools.cached_property
    def layers(self) -> tuple[str, nn.ModuleList]:
        """The text model's list of layers and its path: of those with most entries the outermost."""
        lists = [(p, m) for p, m in self.model.named_modules() if isinstance(m, nn.ModuleList) and not self.in_tower(p)]
        if not lists:
            raise LookupError("it has no ModuleList")
        return max(lists, key=lambda one: (len(one[1]), -one[0].count(".")))


def subject(model: Any) -> Subject:
    """Look at each module of a model."""
    config = model.config
    towers: dict[str, str] = {}
    for name in TOWERS:
        kind = type(getattr(config, name, None))
        for path, module in model.named_modules():
            inside = any(path.startswith(f"{tower}.") for tower in towers)
            if path and not inside and kind is not type(None) and type(getattr(module, "config", None)) is kind:
                towers[path] = name
    asked = {path: recognise_module(module) for path, module in model.named_modules()}
    return Subject(config, model, {path: answer for path, answer in asked.items() if answer is not None}, towers)
