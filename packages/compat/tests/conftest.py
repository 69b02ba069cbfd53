"""What every test of liger-compat begins with."""

import pytest

from liger_kernel import _said


@pytest.fixture(autouse=True)
def nothing_said():
    """Warnings are given once in a process; each test is the first to be told, whatever ran before it."""
    _said._said.clear()
