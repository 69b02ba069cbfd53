"""Liger: fused GPU kernels for Hugging Face models, applied and undone automatically.

    report = liger.autopatch(model)   # in place; print(report) says what changed, what did not, and why
    liger.unpatch(model)              # exactly as it was

Importing this package loads neither torch nor triton nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liger.context import options, prefer
from liger.declare import Call, Fit, Kernel, ModelPatch, Needs, Op, Option, Profile, Sweep
from liger.hookspecs import hookimpl
from liger.plugins import PLUGIN_API

if TYPE_CHECKING:
    from liger import nn, ops
    from liger.api import autopatch, is_patched, patched, plan, supports, unpatch
    from liger.explanation import explain
    from liger.report import Report, Row

__version__ = "0.1.0"

__all__ = [
    "PLUGIN_API",
    "Call",
    "Fit",
    "Kernel",
    "ModelPatch",
    "Needs",
    "Op",
    "Option",
    "Profile",
    "Report",
    "Row",
    "Sweep",
    "autopatch",
    "explain",
    "hookimpl",
    "is_patched",
    "nn",
    "ops",
    "options",
    "patched",
    "plan",
    "prefer",
    "supports",
    "unpatch",
]

_LAZY = {
    **dict.fromkeys(("autopatch", "is_patched", "patched", "plan", "supports", "unpatch"), "liger.api"),
    **dict.fromkeys(("Report", "Row"), "liger.report"),
    "explain": "liger.explanation",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("nn", "ops"):
        return importlib.import_module(f"liger.{name}")
    raise AttributeError(f"module 'liger' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
