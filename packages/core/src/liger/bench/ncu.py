"""``--ncu``: what NVIDIA's profiler says about one call of each kernel and mode."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from liger.bench.options import Options
from liger.bench.plan import Point, plan
from liger.bench.report import show
from liger.bench.worker import command
from liger.declare import Kernel

FOLDER = Path("build/ncu")  # git ignores build/
METRICS = {
    "gpu__time_duration.sum": "time",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
    "launch__registers_per_thread": "registers",
}


def run(options: Options) -> int:
    """Profile the middle point of each op's first sweep, print a table; 1 if a call could not be profiled.

    Raises:
        ValueError: the profiler is not installed.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ValueError("--ncu needs NVIDIA's profiler: there is no `ncu` on the PATH (it comes with Nsight Compute)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    out, failed = Table("kernel", "mode", "launch", *METRICS.values(), box=None, pad_edge=False), False
    for found in plan(options).values():
        point = found[0][len(found[0]) // 2]
        for kernel in point.kernels:
            for mode in point.moved:
                file = FOLDER / f"{kernel.id.replace('/', '-')}-{mode}.csv"
                done = subprocess.run(profiler(ncu, point, kernel, mode, file, options.smoke), check=False)
                failed |= done.returncode != 0
                for launch, values in launches(file):
                    out.add_row(kernel.id, mode, launch, *values)
    show(out)
    print(f"Written: {FOLDER}")
    return 1 if failed or not out.row_count else 0


def profiler(ncu: str, point: Point, kernel: Kernel, mode: str, file: Path, smoke: bool) -> list[str]:
    """The profiler's command line around a worker that makes one call."""
    child = command(smoke, "--profile", json.dumps({**point.spec(kernel), "mode": mode}))
    how = ["--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    how += ["--print-kernel-base", "function"]  # without template arguments
    return [ncu, *how, "--metrics", ",".join(METRICS), "--log-file", str(file), *child]


def launches(file: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Name and metrics, with their units, of each launch in the profiler's CSV."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    table = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))  # others are ncu's messages
    if len(table) < 2:
        return
    heads, units = table[0], dict(zip(table[0], table[1], strict=True))
    for line in table[2:]:
        row = dict(zip(heads, line, strict=True))
        yield row["Kernel Name"], [f"{row[m]} {units[m].replace('%', '')}".strip() for m in METRICS]
