"""Fixtures that ``liger.testing.pytest_plugin`` adds to packages with ``[tool.liger] test = true``."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@functools.cache
def find_device() -> str:
    """``cuda`` if torch sees one, else ``cpu``."""
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def session_seed() -> int:
    """From LIGER_TEST_SEED, 0 by default. Every test draws from it and its own name, so order does not matter."""
    return int(os.environ.get("LIGER_TEST_SEED", "0"))


@pytest.fixture(scope="session")
def device() -> str:
    """The device tests run on."""
    return find_device()


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed Python's and torch's generators; the number depends on LIGER_TEST_SEED and the test alone."""
    value = session_seed() + zlib.crc32(f"{request.path.name}::{request.node.name}".encode())
    random.seed(value)
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(value)
    return value


@pytest.fixture
def generator(seed: int) -> torch.Generator:
    """A CPU generator with this test's seed."""
    import torch

    return torch.Generator().manual_seed(seed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``gpu`` where there is none, and ``triton`` where it is not installed (macOS, Windows)."""
    lacking = {
        "gpu": None if find_device() == "cuda" else "needs a CUDA device",
        "triton": None if importlib.util.find_spec("triton") else "needs triton, which is not installed",
    }
    for item in items:
        if any(_is_triton(value) for value in getattr(item, "callspec", _NO_PARAMETERS).params.values()):
            item.add_marker("triton")
        for name, reason in lacking.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


_NO_PARAMETERS = SimpleNamespace(params={})


def _is_triton(value: object) -> bool:
    """Whether a test's parameter chooses a Triton kernel: ``"triton"``, ``"rms_norm/triton"``, a tuple with either."""
    if isinstance(value, tuple):
        return any(map(_is_triton, value))
    return isinstance(value, str) and value.rpartition("/")[2] == "triton"


def pytest_sessionstart() -> None:
    """Hypothesis: no deadline (interpreted kernels are slow), the same examples for the same LIGER_TEST_SEED."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis import settings

    derandomize = "LIGER_TEST_SEED" not in os.environ
    settings.register_profile("liger", deadline=None, max_examples=25, print_blob=True, derandomize=derandomize)
    settings.load_profile("liger")
