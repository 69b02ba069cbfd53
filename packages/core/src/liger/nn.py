"""``liger.nn.<name>``: the modules of the installed kernel packages, loaded on first use."""

from __future__ import annotations

from typing import Any

from liger.declare import load
from liger.registry import registry


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    for target in _targets():
        if target.rpartition(":")[2] == name:
            return load(target)
    raise AttributeError(f"no module {name!r}; installed: {', '.join(__dir__()) or 'none'}")


def __dir__() -> list[str]:
    return sorted(target.rpartition(":")[2] for target in _targets())


def _targets() -> list[str]:
    return [op.module for op in registry().ops.values() if op.module]
