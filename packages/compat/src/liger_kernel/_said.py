"""Warnings that are given once in a process, as a trainer builds the same thing again and again."""

from __future__ import annotations

import warnings
from typing import Any

_said: set[str] = set()


class CompatWarning(UserWarning):
    """Something that code written for the peer asks for has no effect here."""


def once(message: str) -> None:
    """Warn, unless this was said before."""
    if message not in _said:
        _said.add(message)
        warnings.warn(f"liger_kernel: {message}", CompatWarning, stacklevel=4)


def idle(where: str, why: str, **given: tuple[Any, Any]) -> None:
    """Say of arguments, each (value, default), that their value changes nothing."""
    for name, (value, default) in given.items():
        if value is not default and value != default:
            once(f"{where}: {name}={value!r} does nothing: {why}")
