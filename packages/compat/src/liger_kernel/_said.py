"""Warnings that are given once in a process, as a trainer builds the same thing again and again."""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

_said: set[str] = set()


class CompatWarning(UserWarning):
    """Something that code written for the peer asks for has no effect here."""


def once(message: str) -> None:
    """Warn at the line that called this package, unless this was said before."""
    if message not in _said:
        _said.add(message)
        frames = enumerate(traceback.walk_stack(sys._getframe()), 1)
        outside = next((level for level, (frame, _) in frames if not _is_between(frame.f_globals)), 1)
        warnings.warn(f"liger_kernel: {message}", CompatWarning, stacklevel=outside)


def _is_between(module: dict[str, Any]) -> bool:
    """Whether this is code of ours, or torch's that calls a module's forward."""
    return str(module.get("__name__")).startswith(("liger_kernel.", "torch.nn.modules."))


def idle(where: str, why: str, **given: tuple[Any, Any]) -> None:
    """Say of arguments, each (value, default), that their value changes nothing."""
    for name, (value, default) in given.items():
        if value is not default and value != default:
            once(f"{where}: {name}={value!r} does nothing: {why}")
