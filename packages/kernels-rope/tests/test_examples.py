"""The example in the docstring of each op runs and prints what it says."""

from __future__ import annotations

import doctest

import pytest

from liger import Op
from liger.declare import load
from liger_kernels_rope.plugin import liger_register_ops

OPS = [declared for declared in liger_register_ops() if isinstance(declared, Op)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_example(op: Op) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(load(op.public), op.name, globs={})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 1 and result.failed == 0
