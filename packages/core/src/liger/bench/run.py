"""One run: every point of the plan verified, then timed."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from liger.bench import cap
from liger.bench.inputs import Inputs
from liger.bench.measure import Values, allocated, arguments, host, make_runner, numbers, peaks, release
from liger.bench.models import called
from liger.bench.options import OUT, Options
from liger.bench.plan import Point, plan, point, toy
from liger.bench.providers import Provider, eager, ours, providers
from liger.bench.rows import EVERYONE, Row, expected, failures, unserved, write
from liger.bench.timing import copying, interleave, products
from liger.bench.verify import compare, contract, results
from liger.errors import ContractViolation

COMPILE_UNTIL = 0.6  # of the time; compilation takes more of it than everything else
HOST_CALLS = 200


@dataclass
class Run:
    """What is asked and what was found so far."""

    options: Options
    folder: Path
    started: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    peak: int = 0  # bytes allocated at most at the current point

    @property
    def spent(self) -> float:
        """The part of the time that is gone."""
        return (time.monotonic() - self.started) / self.options.seconds

    def add(self, point: Point, provider: str, mode: str | None, status: str, **values: Any) -> None:
        """Add a row."""
        kernels = {p.name: p.kernel.id for p in ours(point) if p.kernel}
        about_case = {"case": point.case, "sizes": dict(point.sizes), "variable": point.variable, "mode": mode}
        who: Row = {"op": point.op.name, "kernel": kernels.get(provider), "provider": provider}
        self.rows.append({**who, **about_case, "status": status, **values, **about(self.options.device)})

    def write(self) -> None:
        """Write what there is; after each point, so that a run that is stopped leaves something."""
        write(self.rows, self.folder)


@functools.cache
def about(device: str) -> Values:
    """What is the same in each row: commit, versions, device."""
    sha = os.environ.get("LIGER_SHA", "")
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    with contextlib.suppress(OSError):  # no git here
        sha = sha or subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in ("torch", "triton", "liger-core", "liger-kernel", "quack-kernels", "cut-cross-entropy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"sha": sha or "unknown", "versions": versions, "device": name}


# -- One point ---------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def problems(run: Run, point: Point, provider: Provider, mode: str | None = None) -> Iterator[None]:
    """A peer may fail in any way, and the others are still to be timed: what is raised becomes a row."""
    try:
        yield
    except Exception as error:
        status = {ContractViolation: "wrong", TimeoutError: "no time"}.get(type(error), "failed")
        run.add(point, provider.name, mode, status, problem=f"{type(error).__name__}: {str(error)[:300]}")


def verified(run: Run, point: Point, inputs: Inputs) -> list[Provider]:
    """The providers whose results are right; the others get a row that says why they are not timed."""
    device = run.options.device
    torch._dynamo.reset()
    truth = results(eager(point.op).fn, inputs.leaves())
    found = []
    for provider in providers(point, run.options):
        with problems(run, point, provider):
            if provider.compiled and run.spent > COMPILE_UNTIL:
                raise TimeoutError("left out for lack of time")
            if provider.kernel:
                contract(provider.kernel, point, device)
            compare(results(provider.fn, arguments(inputs, provider)), truth)
            found.append(provider)
    return found


def measure(run: Run, point: Point) -> None:
    """Verify all providers at one point, then time them in turn."""
    device = run.options.device
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    inputs = point.make(device)
    found = verified(run, point, inputs)
    run.peak, memory = allocated(device), {}
    for provider in list(found):
        with problems(run, point, provider):
            memory[provider.name] = peaks(provider, inputs, device)
        run.peak = max(run.peak, allocated(device))
    found = [p for p in found if p.name in memory]
    for mode in point.moved if found else ():
        time_mode(run, point, mode, [p for p in found if mode in p.modes], inputs, memory)
        run.peak = max(run.peak, allocated(device))
        release(device)


def time_mode(
    run: Run,
    point: Point,
    mode: str,
    found: Sequence[Provider],
    inputs: Inputs,
    memory: Mapping[str, Mapping[str, float | None]],
) -> None:
    """Time all in one mode, in turn with the limit that their rows quote."""
    device, amount, flops = run.options.device, point.moved[mode], point.flops.get(mode)
    runners = {}
    for provider in found:
        with problems(run, point, provider, mode):
            runners[provider.name] = make_runner(provider, mode, inputs, device)
    limit = "cuBLAS" if flops else "copy"
    runners[limit] = products(inputs, device) if flops else copying(amount, device)
    times = interleave(runners, run.options.repetitions)
    for who, values in times.items():
        row = {"method": runners[who].method, **numbers(values, times[limit], amount, flops), "limit": limit}
        run.add(point, who, mode, "timed", **row, peak_mib=memory.get(who, {}).get(mode))


# -- All points --------------------------------------------------------------------------------------------------------
def sweep(run: Run, series: Sequence[Point]) -> Iterator[Point]:
    """Time a series as far as time and memory allow; yields each point when it is done with."""
    before: Point | None = None
    for at in series:
        if run.spent > 1:
            run.add(at, EVERYONE, None, "no time", problem="left out for lack of time")
        elif why := cap.reason(at, before, run.peak, run.options.device):
            run.add(at, EVERYONE, None, "capped", problem=why)
        else:
            try:
                measure(run, at)
                before = at
            except torch.OutOfMemoryError as error:
                run.add(at, EVERYONE, None, "failed", problem=f"out of memory: {str(error)[:300]}")
            release(run.options.device)  # or what is cached would not count as free
        run.write()
        yield at


def add_host(run: Run, at: Point) -> None:
    """Measure the host's cost of an op and put it into its rows of mode "full"."""
    tiny = point(at.op, list(at.kernels), toy(at.op), toy(at.op).sizes[0], run.options)
    wrong = {r["provider"] for r in run.rows if r["op"] == at.op.name and r["status"] in ("wrong", "failed")}
    found = [p for p in providers(tiny, run.options) if p.name not in wrong]
    calls = 1 if run.options.smoke else HOST_CALLS
    costs = host(tiny, found, run.options.device, calls, run.options.repetitions)
    for row in run.rows:
        if (row["op"], row["mode"], row["status"]) == (at.op.name, "full", "timed"):
            row.update(costs.get(row["provider"], {}))
    run.write()


def everything(run: Run) -> list[str]:
    """Time the whole plan; returns why the run has failed, one line each.

    Raises:
        ValueError: nothing would be timed of what was named by hand.
    """
    planned = plan(run.options)
    wanted = expected((p for found in planned.values() for some in found for p in some), run.options)
    if missing := unserved(wanted, run.options):
        raise ValueError(
            f"there would be no row of {', '.join(missing)}: what is named has to be installed, to run on "
            f"{run.options.device} and to serve one of the chosen ops and modes"
        )
    total = sum(len(series) for found in planned.values() for series in found)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify and time", total=total)
        for op, found in planned.items():
            progress.update(task, description=op)
            for series in found:
                last = time.monotonic()
                for at in sweep(run, series):
                    progress.console.print(f"{op} {at.case}: {time.monotonic() - last:.1f} s", highlight=False)
                    progress.advance(task)
                    last = time.monotonic()
            if "full" in run.options.modes and run.spent <= 1:
                add_host(run, next(at for series in found for at in series))
    return failures(run.rows, wanted)


@contextlib.contextmanager
def ready(options: Options) -> Iterator[None]:
    """Ready the process for all that is timed inside.

    Raises:
        ValueError: there is no GPU.
    """
    if not options.smoke and not torch.cuda.is_available():
        raise ValueError("there is no GPU; --smoke runs in toy sizes on a CPU")
    if options.smoke:
        from liger.testing.interpreter import fix

        fix()
    # capturing needs another stream than the default one, for all that autograd has ever seen too
    stream = None if options.smoke else torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # a compiled backward is timed again and again on one forward
    with functorch.patch(donated_buffer=False), torch.cuda.stream(stream):
        yield


def folder(options: Options) -> Path:
    """Where results go: ``benchmarks/results/<gpu>``, below it ``<model>`` if one is named."""
    if options.out:
        return options.out
    if options.smoke:
        return OUT
    name = "-".join(word for word in torch.cuda.get_device_name().lower().split() if word != "nvidia")
    return Path("benchmarks/results", name, *([called(options.model)] if options.model else []))


def run(options: Options) -> int:
    """Run, write, print; 1 if anything has failed."""
    from liger.bench.plots import draw
    from liger.bench.report import markdown, table
    from liger.bench.rows import read

    with ready(options):
        done = Run(options, folder(options))
        failed = everything(done)
    done.write()
    kept = read(done.folder)  # with the ops of earlier runs
    (done.folder / "table.md").write_text(markdown(kept), encoding="utf-8")
    pictures = draw(done.rows, done.folder)
    print(table(done.rows))
    print(f"\nWritten: {done.folder}: one JSON per op, table.md, {len(pictures)} plots")
    for line in failed:
        print(f"FAILED {line}")
    sys.stdout.flush()
    return 1 if failed else 0
