"""Choices made by ``with``: which kernel, which options. One module-level object, so that dynamo can guard on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Context:
    """``prefer``: op or ``"*"`` -> kernel name. ``options``: op -> option -> value."""

    __slots__ = ("options", "prefer")

    def __init__(self) -> None:
        self.prefer: dict[str, str] = {}
        self.options: dict[str, dict[str, Any]] = {}


CONTEXT = Context()


def as_prefer(prefer: str | Mapping[str, str] | None) -> dict[str, str]:
    """Normalise a preference: a bare kernel name counts for every op that has such a kernel."""
    from liger.registry import registry

    if prefer is not None and not isinstance(prefer, (str, Mapping)):
        raise TypeError(
            f"prefer is {prefer!r}, expected a kernel's name such as 'reference', or a mapping from op to kernel name"
        )
    chosen = {} if prefer is None else {"*": prefer} if isinstance(prefer, str) else dict(prefer)
    registry().check_prefer(chosen)
    return chosen


@contextmanager
def prefer(choice: str | Mapping[str, str]) -> Iterator[None]:
    """Choose kernels by hand inside the block: ``"reference"`` or ``{"rms_norm": "triton"}``.

    Raises:
        TypeError: ``choice`` is neither a name nor a mapping.
        KernelUnavailable: no such kernel; raised again at the call if the kernel cannot serve it.
    """
    previous = CONTEXT.prefer
    CONTEXT.prefer = {**previous, **as_prefer(choice)}
    try:
        yield
    finally:
        CONTEXT.prefer = previous


@contextmanager
def options(**ops: Mapping[str, Any]) -> Iterator[None]:
    """Set options of ops inside the block: ``liger.options(linear_cross_entropy={"workspace_mb": 512})``.

    An explicit argument wins over the block, the block over ``autopatch(options=...)``, that over the default.
    """
    from liger.registry import registry

    registry().check_options(ops)
    previous = CONTEXT.options
    CONTEXT.options = {**previous, **{op: {**previous.get(op, {}), **values} for op, values in ops.items()}}
    try:
        yield
    finally:
        CONTEXT.options = previous
