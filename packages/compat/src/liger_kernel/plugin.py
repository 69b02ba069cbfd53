"""So that ``liger doctor`` and ``liger plugins`` say it when the peer is installed beside this package.

The peer has no such module. Where it was installed last, its ``__init__`` runs and not ours, and only this file is left
to notice.
"""

from __future__ import annotations

import importlib


def _refuse() -> None:
    importlib.import_module("liger_kernel._beside").refuse()


_refuse()
