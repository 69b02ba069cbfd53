"""Lets Liger see through PEFT's wrappers, known by their classes' names: importing it loads neither torch nor peft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import liger

if TYPE_CHECKING:
    from torch.nn import Module


@liger.hookimpl
def liger_unwrap_module(module: Module) -> Sequence[Module] | None:
    """Return the base model of a PeftModel, or the copies a ``modules_to_save`` wrapper dispatches between."""
    names = {c.__name__ for c in type(module).__mro__ if c.__module__.partition(".")[0] == "peft"}
    if "PeftModel" in names:
        return [module.get_base_model()]  # type: ignore[operator]
    if "ModulesToSaveWrapper" in names:
        return [module.original_module, *module.modules_to_save.values()]  # type: ignore[operator,list-item]
    return None
