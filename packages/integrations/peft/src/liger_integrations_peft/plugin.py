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
    names = _classes(module)
    if "PeftModel" in names:
        return [module.get_base_model()]  # type: ignore[operator]
    if "ModulesToSaveWrapper" in names:
        return [module.original_module, *module.modules_to_save.values()]  # type: ignore[operator,list-item]
    return None


@liger.hookimpl
def liger_rowwise_head(module: Module) -> bool | None:
    """Return True for a Linear with adapters on it, unless one of them looks at other rows too.

    Of LoRA's variants only DoRA is known to be right on some rows at a time.
    """
    if "BaseTunerLayer" not in _classes(module) or "Linear" not in _classes(module.get_base_layer(), "torch"):  # type: ignore[operator]
        return None
    variants = getattr(module, "lora_variant", {})
    return all(type(variant).__name__ == "DoraLinearVariant" for variant in dict(variants).values())


def _classes(module: Module, package: str = "peft") -> set[str]:
    """Names of the module's class and its bases, as far as ``package`` defines them."""
    return {c.__name__ for c in type(module).__mro__ if c.__module__.partition(".")[0] == package}
