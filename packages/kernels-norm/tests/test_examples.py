"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import liger_kernels_norm

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(liger_kernels_norm.__path__, "liger_kernels_norm.")
    if not found.name.rpartition(".")[2].startswith("_")  # kernels and peers need what may not be installed
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(name)).failed
