"""``liger.ops.<name>``: the public function of any installed op, loaded on first use."""

from __future__ import annotations

from typing import Any

from liger.declare import load
from liger.registry import registry


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    known = registry().ops
    if name not in known:
        raise AttributeError(f"no op {name!r}; {registry().hint(name)}")
    fn = load(known[name].public)
    globals()[name] = fn
    return fn


def __dir__() -> list[str]:
    return sorted(registry().ops)
