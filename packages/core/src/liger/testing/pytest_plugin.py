"""The pytest plugin of ``liger-core``; active only in packages whose pyproject says ``[tool.liger] test = true``.

There it adds the fixtures of ``liger.testing.fixtures``, skips what is marked ``gpu`` or ``triton`` where there is
none, and without a GPU starts Triton's interpreter, which has to be on before triton is first imported. The user's
table of launch settings is left out, unless ``LIGER_LAUNCH_TABLE`` names one: tests are of what everybody gets.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

ACTIVE = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Switch on in packages that ask for it; the markers are known anywhere, for ``checks`` uses them."""
    config.addinivalue_line("markers", "gpu(n): needs n CUDA devices, by default one; skipped elsewhere")
    config.addinivalue_line("markers", "triton: runs a Triton kernel; skipped where triton is not installed")
    paths = [Path(str(arg).partition("::")[0]) for arg in config.args]
    starts = [config.invocation_params.dir / path for path in paths] or [config.rootpath]
    config.stash[ACTIVE] = any(asks_for_liger(start) for start in starts)
    if not config.stash[ACTIVE]:
        return
    os.environ.setdefault("LIGER_LAUNCH_TABLE", "")
    _prepare_interpreter()
    from liger.testing import fixtures

    config.pluginmanager.register(fixtures, "liger-fixtures")


def pytest_report_header(config: pytest.Config) -> str | None:
    """One line: device, interpreter, seed, part of the checks."""
    if not config.stash.get(ACTIVE, False):
        return None
    from liger.testing.fixtures import find_device, session_seed

    interpreter = "on" if os.environ.get("TRITON_INTERPRET") == "1" else "off"
    part = f", LIGER_TEST_PART={os.environ['LIGER_TEST_PART']}" if "LIGER_TEST_PART" in os.environ else ""
    return f"liger: device {find_device()}, triton interpreter {interpreter}, LIGER_TEST_SEED={session_seed()}{part}"


def asks_for_liger(start: Path) -> bool:
    """Whether the pyproject nearest to ``start`` says ``[tool.liger] test = true``."""
    start = start.resolve()
    for folder in (start, *start.parents):
        pyproject = folder / "pyproject.toml"
        if pyproject.is_file():
            table = tomllib.loads(pyproject.read_text(encoding="utf-8"))
            return bool(table.get("tool", {}).get("liger", {}).get("test", False))
    return False


def _prepare_interpreter() -> None:
    from liger.testing.fixtures import find_device

    if "TRITON_INTERPRET" not in os.environ and find_device() == "cpu":
        if "triton" in sys.modules:
            raise pytest.UsageError(
                "Triton kernels can only be tested on a CPU in triton's interpreter, which must be on before triton is "
                "imported, and something imported it already. Run pytest with TRITON_INTERPRET=1 in the environment."
            )
        os.environ["TRITON_INTERPRET"] = "1"
    if os.environ.get("TRITON_INTERPRET") == "1":
        try:
            import triton  # noqa: F401
        except ImportError:
            return  # packages without kernels, and systems without triton
        from liger.testing.interpreter import fix

        fix()
