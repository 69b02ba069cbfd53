"""A registry whose only plugin is ``planted.py``, for tests that need an op without installing a kernel package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # planted.py and interpreted.py, in every import mode


@pytest.fixture
def planted() -> Iterator[None]:
    """Replace the process's registry and forget dispatch decisions, before and after."""
    dispatch = pytest.importorskip("liger.dispatch", exc_type=ImportError)
    from liger import registry
    from liger.plugins import GROUP, Plugins

    previous = registry.use(registry.Registry(Plugins([EntryPoint("planted", "planted", GROUP)])))
    dispatch.reset()
    yield
    registry.use(previous)
    dispatch.reset()
