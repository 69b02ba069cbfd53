"""Fixtures that ``liger.testing.pytest_plugin`` adds to packages with ``[tool.liger] test = true``."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch


@functools.cache
def count_gpus() -> int:
    """CUDA devices that torch sees."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def find_device() -> str:
    """``cuda`` if torch sees one, else ``cpu``."""
    return "cuda" if count_gpus() else "cpu"


def session_seed() -> int:
    """From LIGER_TEST_SEED, 0 by default. Every test draws from it and its own name, so order does not matter."""
    return int(os.environ.get("LIGER_TEST_SEED", "0"))


@pytest.fixture
def strict() -> Callable[..., AbstractContextManager[Callable[[torch.Tensor], torch.Tensor]]]:
    """``with strict(x, dy): ...`` fails on writes into these tensors, reads of memory nobody wrote, and waiting."""
    from liger.testing.observe import strict

    return strict


@pytest.fixture(scope="session")
def device() -> str:
    """The device tests run on, with float32 as exact as on a CPU: cuDNN's convolutions take TF32 if nobody says no."""
    found = find_device()
    if found == "cuda":
        import torch

        torch.backends.cudnn.allow_tf32 = False
    return found


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
    """Skip what is marked ``gpu`` where there are too few, and ``triton`` where there is none (macOS, Windows)."""
    triton = importlib.util.find_spec("triton") is not None
    for item in items:
        if any(_is_triton(value) for value in getattr(item, "callspec", _NO_PARAMETERS).params.values()):
            item.add_marker("triton")
        if item.get_closest_marker("triton") and not triton:
            item.add_marker(pytest.mark.skip(reason="needs triton, which is not installed"))
        gpu = item.get_closest_marker("gpu")
        needed = (*gpu.args, 1)[0] if gpu else 0
        if needed > count_gpus():
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device{'s' if needed > 1 else ''}"))


_NO_PARAMETERS = SimpleNamespace(params={})


def _is_triton(value: object) -> bool:
    """Whether a test's parameter chooses a Triton kernel: ``"triton"``, ``"rms_norm/triton"``, a tuple with either."""
    if isinstance(value, tuple):
        return any(map(_is_triton, value))
    return isinstance(value, str) and value.rpartition("/")[2] == "triton"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where every test was skipped nothing was tested, so that must not look like success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.OK and reporter and reporter.stats.get("skipped") and not _ran(reporter.stats):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        reporter.write_line("every test was skipped, so nothing was tested", red=True)


def _ran(stats: Mapping[str, Any]) -> bool:
    return any(stats.get(outcome) for outcome in ("passed", "failed", "error", "xfailed", "xpassed"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how a failure is run again."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"random numbers were drawn from LIGER_TEST_SEED={session_seed()}")


def pytest_sessionstart() -> None:
    """Hypothesis: no deadline (interpreted kernels are slow), the same examples for the same LIGER_TEST_SEED."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis import core, settings

    if "LIGER_TEST_SEED" in os.environ:
        core.global_force_seed = session_seed()  # type: ignore[assignment]  # as --hypothesis-seed does

    derandomize = "LIGER_TEST_SEED" not in os.environ
    settings.register_profile("liger", deadline=None, max_examples=25, print_blob=True, derandomize=derandomize)
    settings.load_profile("liger")
