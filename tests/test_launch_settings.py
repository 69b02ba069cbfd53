"""Launch settings of all kernels: where they were measured, tables that packages ship, and what a cold call costs."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from liger import settings
from liger.bench.rows import read
from liger.declare import Kernel
from liger.registry import registry

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from liger.testing.cases import Case, dtypes, typical  # noqa: E402
from liger.testing.contract import flat  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = {"NVIDIA H200": "sm90"}  # of the GPUs with results
KERNELS = [k for op in registry().ops for k in registry().kernels(op) if k.needs.interpreter]
COLD = 0.05  # s of the host beyond compilation, for a first call at a new shape
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[k.id for k in KERNELS])


# -- Measured ----------------------------------------------------------------------------------------------------------
def timed() -> dict[str, set[str]]:
    """Architectures by kernel, from the results in benchmarks/results."""
    found: dict[str, set[str]] = {}
    for folder in (ROOT / "benchmarks" / "results").iterdir():
        for row in read(folder) if folder.is_dir() else ():
            if row["kernel"] and row["status"] == "timed":
                found.setdefault(row["kernel"], set()).add(ARCHITECTURES[row["device"]])
    return found


@every_kernel
def test_what_is_declared_measured_has_results_and_the_reverse(kernel: Kernel) -> None:
    found = timed().get(kernel.id, set())
    assert set(kernel.measured) == found, (
        f"{kernel.id}: benchmarks/results is of {found or 'no GPU'}: fix Kernel.measured"
    )


def test_the_table_of_the_docs_is_what_is_declared() -> None:
    groups: dict[tuple[str, ...], list[str]] = {}
    for kernel in KERNELS:
        groups.setdefault(kernel.measured, []).append(kernel.op)
    lines = [
        f"| {', '.join(where) or 'not measured'} | {', '.join(f'`{op}`' for op in sorted(ops))} |"
        for where, ops in sorted(groups.items(), reverse=True)
    ]
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = text.partition("| launch settings measured on | Triton kernels of |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == lines, "docs/performance.md should say:\n" + "\n".join(lines)


# -- Shipped tables ----------------------------------------------------------------------------------------------------
def tables() -> list[Path]:
    return sorted((ROOT / "packages").glob("*/src/*/launches/*"))


def test_shipped_tables_are_right_and_say_where_they_are_from() -> None:
    for file in tables():
        assert file.suffix == ".json" and not settings.read(file).problems, file
        for entry in json.loads(file.read_text(encoding="utf-8"))["entries"]:
            assert entry["architecture"] == file.stem and {"date", "gpu", "versions", "before_ms", "after_ms"} <= set(
                entry
            )
            assert entry["function"].partition(".")[0] == file.parent.parent.name, file


# -- A cold call -------------------------------------------------------------------------------------------------------
@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Nothing is compiled or launched inside; what would be is counted."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    counts: Counter[str] = Counter()
    for kind in (InterpretedFunction, JITFunction):
        monkeypatch.setattr(kind, "run", lambda self, *args, **kwargs: counts.update([self.fn.__name__]))
    return counts


def run(case: Case) -> float:
    """Seconds of processor time for a forward and backward; how busy the machine is does not count."""
    tensors, options = case.make("meta")
    start = time.process_time()
    if outputs := [o for o in flat(case.public()(*tensors, **options)) if o.requires_grad]:
        torch.autograd.backward(outputs, [torch.empty_like(o) for o in outputs])
    return time.process_time() - start


@every_kernel
def test_a_first_call_at_a_new_shape_searches_nothing(kernel: Kernel, launches: Counter[str]) -> None:
    run(typical(kernel))  # imports
    new = Case(kernel=kernel, dtype=dtypes(kernel)[-1], sizes=registry().op(kernel.op).production[0])
    with settings.trying({}) as asked:
        run(new)
    assert asked, "no function under @settings decides how it is launched"
    settings.reset()
    launches.clear()
    seconds = run(new)
    cold = dict(launches)
    launches.clear()
    run(new)
    assert cold and cold == launches  # no launch more than a call that knows the shape
    assert seconds < COLD
