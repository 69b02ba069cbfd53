"""Models of a marked class that are loaded or made from a config are patched at once, not at their first forward.

What is written for the peer wraps such a model next, in PEFT, FSDP or ``torch.compile``, with no forward before it.
Two class methods of exactly the marked class are wrapped, and put back by ``revert``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from liger import Report
from liger.construct import resolve
from liger.errors import UnpatchConflict
from liger.patch import MISSING, PENDING

METHODS = ("from_pretrained", "_from_config")


def patch_when_loaded(cls: Any, patched: Callable[[Any, Report], object]) -> Callable[[], None]:
    """Wrap the methods of a class that ``liger.autopatch`` has marked; returns what undoes it.

    Args:
        cls: the class.
        patched: called with each patched model and its report.
    """
    before = {name: cls.__dict__.get(name, MISSING) for name in METHODS}
    installed = {name: classmethod(_patching(getattr(cls, name).__func__, patched)) for name in METHODS}
    for name, method in installed.items():
        setattr(cls, name, method)

    def revert() -> None:
        for name, method in installed.items():
            if (found := cls.__dict__.get(name)) is not method:
                raise UnpatchConflict(f"{cls.__name__}.{name}: expected Liger's wrapper, found {found!r}")
        for name, original in before.items():
            if original is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, original)

    return revert


def _patching(original: Callable[..., Any], patched: Callable[[Any, Report], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, *args, **kwargs)
        model = made[0] if isinstance(made, tuple) else made  # with output_loading_info
        if PENDING in model.__dict__:
            patched(model, resolve(model))
        return made

    return make
