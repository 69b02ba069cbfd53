"""The examples in the docstrings run, on the CPU with the reference."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import liger_kernels_rope

MODULES = [m.name for m in pkgutil.iter_modules(liger_kernels_rope.__path__) if not m.name.endswith("_triton")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"liger_kernels_rope.{name}")
    assert doctest.testmod(module).failed == 0


def test_every_op_has_an_example() -> None:
    from liger.declare import Op, load
    from liger_kernels_rope.plugin import liger_register_ops

    ops = [found for found in liger_register_ops() if isinstance(found, Op)]
    assert ops and not [op.name for op in ops if ">>> " not in load(op.public).__doc__]
