"""Code written for liger-kernel, answered by Liger: the peer's names, our ops and our ``autopatch``.

This is not liger-kernel. The first three numbers of ``__version__`` are those of the interface that is answered, the
others Liger's. Importing it loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liger_kernel import _beside, _names

if TYPE_CHECKING:
    from liger_kernel._apply import last_report

__version__ = "0.8.5.0.1.0"
__all__ = ["last_report"]

_beside.refuse()
_names.install()


def __getattr__(name: str) -> Any:
    if name in __all__:
        from liger_kernel import _apply

        return getattr(_apply, name)
    raise AttributeError(f"module 'liger_kernel' has no attribute {name!r}")
