"""The examples in the docstrings of the public functions run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import liger_kernels_norm

PUBLIC = [m.name for m in pkgutil.iter_modules(liger_kernels_norm.__path__) if not m.name.startswith("_")]
OPS = [name for name in PUBLIC if name not in ("declare", "modules", "plugin")]


@pytest.mark.parametrize("name", OPS)
def test_example(name: str) -> None:
    module = importlib.import_module(f"liger_kernels_norm.{name}")
    found = doctest.testmod(module)
    assert found.attempted, f"the public function of {name} has no example"
    assert not found.failed
