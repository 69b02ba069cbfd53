"""Coordinate descent over launch settings.

One function that decides settings is tuned after another, and of its constants one at a time: a step up or down in the
values it lists, as far as that helps, until nothing does or time is up. New settings have to compile without spilling
registers and to pass the contract of the op before they are timed, in turn with the best so far, and are better if the
95 % interval of the ratio of both times lies below 0.98. What was found is timed once more against what was there at
the start, and kept if that still holds.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from liger import launch, settings
from liger.bench.inputs import Inputs, backward, forward, make, seeds
from liger.bench.measure import make_runner, release
from liger.bench.options import Options
from liger.bench.plan import Point, Series, point
from liger.bench.providers import Provider, eager, ours
from liger.bench.run import about, ready
from liger.bench.stats import Ratio, ratio
from liger.bench.timing import Runner, interleave
from liger.bench.verify import compare, few, results
from liger.declare import Kernel, Op
from liger.registry import registry
from liger.settings import Request
from liger.testing.cases import Case, dtypes

GAIN = 0.02  # a smaller part of the time is not worth an entry
REPETITIONS = 5

Constants = dict[str, int]
Changes = Mapping[Request, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel at one size: what is run, and what its results must be."""

    point: Point
    kernel: Kernel
    dtype: str
    device: str
    inputs: Inputs
    truth: list[torch.Tensor]

    @property
    def provider(self) -> Provider:
        """The op with this kernel."""
        return next(ours(self.point))

    def verify(self) -> None:
        """Hold the kernel to the contract on few rows, and compare with eager in full size.

        Raises:
            ContractViolation: a result is wrong. Or whatever the kernel raises.
        """
        sizes, variant = few(self.point), self.point.variant
        Case(kernel=self.kernel, dtype=self.dtype, sizes=sizes, variant=variant).check(self.device)
        compare(results(self.provider.fn, self.inputs.leaves()), self.truth)


Timer = Callable[[Subject, str, Sequence[Changes]], list[list[float]]]
"""ms of interleaved repetitions of a mode of the benchmarks, for each of several changes."""


@dataclass(slots=True)
class Found:
    """What became of one request: constants and ms before and after, and what was tried with what came of it."""

    request: Request
    case: str
    mode: str
    start: Constants
    best: Constants
    times: tuple[list[float], list[float]] | None = None  # of both, where they differ
    tried: list[str] = field(default_factory=list)

    @property
    def gain(self) -> Ratio | None:
        """The new time over the old one."""
        return ratio(self.times[1], self.times[0]) if self.times else None

    @property
    def better(self) -> bool:
        """Whether it is worth an entry."""
        return self.gain is not None and self.gain.high < 1 - GAIN

    def entry(self, device: str) -> dict[str, Any]:
        """The entry of a table."""
        assert self.times is not None
        known = settings.RULES[self.request.function].tunable
        constants = {name: value for name, value in self.best.items() if name in known}
        changed = words({name: value for name, value in self.start.items() if self.best[name] != value})
        before, after = (round(statistics.median(values), 5) for values in self.times)
        made = about(device)
        return {
            "function": self.request.function,
            "architecture": self.request.architecture,
            "arguments": self.request.named,
            "constants": constants,
            "reason": f"{self.gain} of the time with {changed}: {self.mode} at {self.case}",
            "before_ms": before,
            "after_ms": after,
            "date": datetime.date.today().isoformat(),
            "gpu": made["device"],
            "versions": made["versions"],
        }


def words(constants: Mapping[str, int]) -> str:
    """``num_warps=8, STAGES=2``."""
    return ", ".join(f"{name}={value}" for name, value in constants.items())


# -- What is tuned -----------------------------------------------------------------------------------------------------
def tune(
    ops: Sequence[str],
    file: Path,
    *,
    sizes: Mapping[str, int] | None = None,
    dtype: str = "bfloat16",
    seconds: float = 60.0,
    device: str = "cuda",
    timer: Timer | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Found]:
    """Tune the Triton kernels of ops and merge what is faster into a table.

    Args:
        ops: their names.
        file: the table, made if it is not there.
        sizes: named dimensions to tune at; by default those of the op's sweeps.
        dtype: of the inputs.
        seconds: for everything; what comes later is left out.
        device: ``cuda``, or ``cpu`` for triton's interpreter.
        timer: measures; by default in CUDA graphs where that is possible, as the benchmarks do.
        say: is told what is going on.

    Raises:
        ValueError: there is no GPU, no such kernel or size, or the file is no table.
        KernelUnavailable: an op is not installed.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU: launch settings can only be timed on the GPU that they are for")
    chosen = [(op, kernel_of(op, dtype)) for op in dict.fromkeys(ops)]
    points = [(kernel, at) for op, kernel in chosen for at in points_of(registry().op(op), kernel, sizes)]
    settings.write(file, [])  # before an hour is spent on what cannot be written
    deadline = time.monotonic() + seconds
    found: dict[Request, Found] = {}
    with ready(Options(smoke=device != "cuda")):
        for kernel, at in points:
            if time.monotonic() > deadline:
                say(f"{at.op.name} {at.case}: left out for lack of time")
                continue
            say(f"{at.op.name} {at.case}")
            try:
                for one in tune_point(make_subject(kernel, at, dtype, device), deadline, timer or time_in_turn, found):
                    found[one.request] = one
                    if one.better:
                        settings.write(file, [one.entry(device)])
            except torch.OutOfMemoryError as error:
                say(f"{at.op.name} {at.case}: left out, out of memory: {str(error)[:200]}")
            release(device)
    return list(found.values())


def kernel_of(op: str, dtype: str) -> Kernel:
    """The Triton kernel of the highest rank that takes the dtype.

    Raises:
        ValueError: there is none.
    """
    kernels = registry().kernels(registry().op(op).name)
    for kernel in kernels:
        if kernel.needs.interpreter and dtype in dtypes(kernel):
            return kernel
    known = ", ".join(f"{k.id} ({', '.join(dtypes(k))})" for k in kernels if k.needs.interpreter)
    raise ValueError(f"{op} has no Triton kernel for {dtype}, so there is nothing to tune; it has {known or 'none'}")


def points_of(op: Op, kernel: Kernel, sizes: Mapping[str, int] | None) -> Iterator[Point]:
    """The sizes given, or those of the op's sweeps, each once.

    Raises:
        ValueError: a dimension is missing, unknown, or not positive.
    """
    if sizes is not None:
        if sizes.keys() != op.sizes.keys() or min(sizes.values(), default=1) < 1:
            given = words(sizes) or "nothing"
            raise ValueError(f"sizes of {op.name} are {', '.join(op.sizes)}, each 1 or more; got {given}")
        yield point(op, [kernel], Series("", "", ()), dict(sizes), Options())
        return
    every = [(sweep.variant, at) for sweep in op.sweeps for at in sweep.points()]
    for variant, at in {repr(one): one for one in every}.values():
        yield point(op, [kernel], Series("", variant, ()), at, Options())


def make_subject(kernel: Kernel, at: Point, dtype: str, device: str) -> Subject:
    """Inputs on the device, and the results of eager."""
    inputs = make(at.op, at.sizes, device, at.variant, getattr(torch, dtype))
    return Subject(at, kernel, dtype, device, inputs, results(eager(at.op).fn, inputs.leaves()))


def requests(subject: Subject) -> dict[Request, tuple[str, Constants]]:
    """What a forward and backward ask for: the mode in which it is timed, and the constants now."""
    fn, inputs = subject.provider.fn, subject.inputs.leaves()
    with settings.trying({}) as first:
        outputs = forward(fn, inputs)
    with settings.trying({}) as second:
        backward(outputs, inputs, seeds(outputs))
    out = {}
    for request, constants in {**first, **second}.items():
        mode = "full" if request in first and request in second else "forward" if request in first else "backward"
        out[request] = (mode if mode in subject.point.moved else "full", dict(constants))
    return out


# -- Search ------------------------------------------------------------------------------------------------------------
def tune_point(subject: Subject, deadline: float, timer: Timer, skip: Mapping[Request, Any]) -> Iterator[Found]:
    """Tune all that is asked for at this size and was not tuned at another; each with the best of those before it."""
    better: dict[Request, Constants] = {}
    for request, (mode, start) in requests(subject).items():
        if request in skip:
            continue
        found = Found(request, subject.point.case, mode, start, start)
        search = Search(subject, found, functools.partial(timer, subject, mode), better, deadline)
        search.run()
        if found.better:
            better[request] = found.best
        yield found


@dataclass(slots=True)
class Search:
    """Coordinate descent of one request; ``others`` were tuned before it and keep their new constants."""

    subject: Subject
    found: Found
    timer: Callable[[Sequence[Changes]], list[list[float]]]
    others: Mapping[Request, Constants]
    deadline: float
    seen: list[Constants] = field(default_factory=list)

    def run(self) -> None:
        """Until nothing is faster, or time is up; then once more against the start."""
        names = [name for name in settings.RULES[self.found.request.function].tunable if name in self.found.start]
        self.seen.append(self.found.start)
        moved = True
        while moved:
            moved = sum(self.walk(name, step) for name in names for step in (1, -1)) > 0
        if self.found.best != self.found.start:
            before, after = self.timer([self.changes(self.found.start), self.changes(self.found.best)])
            self.found.times = before, after

    def walk(self, name: str, step: int) -> bool:
        """Change one constant in one direction as long as that helps; whether it did."""
        went = False
        while (new := self.next(name, step)) is not None and self.faster(new):
            self.found.best, went = new, True
        return went

    def next(self, name: str, step: int) -> Constants | None:
        """The best so far with the next larger or smaller value of a constant, if there is one that was not tried."""
        now = self.found.best[name]
        values = settings.RULES[self.found.request.function].tunable[name]
        beyond = [v for v in values if v > now] if step > 0 else [v for v in reversed(values) if v < now]
        new = {**self.found.best, name: beyond[0]} if beyond else None
        return new if new not in self.seen and time.monotonic() < self.deadline else None

    def faster(self, new: Constants) -> bool:
        """Whether new settings are right and faster than the best so far, beyond doubt; says in ``tried`` why not."""
        self.seen.append(new)
        what = words({k: v for k, v in new.items() if self.found.best[k] != v})
        if why := unfit(self.subject, self.changes(new)):
            self.found.tried.append(f"{what}: {why}")
            return False
        times = self.timer([self.changes(self.found.best), self.changes(new)])
        found = ratio(times[1], times[0])
        self.found.tried.append(f"{what}: {found} of the time")
        return found.high < 1 - GAIN

    def changes(self, constants: Constants) -> Changes:
        """These constants, with those found for what was tuned before."""
        return {**self.others, self.found.request: constants}


def unfit(subject: Subject, changes: Changes) -> str:
    """Why settings cannot be used, or "": they do not compile, need too much, spill, or give wrong results."""
    before = set(launch._compiled)
    try:
        with settings.trying(changes):
            subject.verify()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever triton's compiler and driver raise
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    spilled = sum(getattr(launch._compiled[key], "n_spills", 0) or 0 for key in launch._compiled.keys() - before)
    return f"spills {spilled} registers" if spilled else ""


def time_in_turn(subject: Subject, mode: str, several: Sequence[Changes]) -> list[list[float]]:
    """ms of each in interleaved repetitions."""
    runners = {str(i): _runner(subject, mode, changes) for i, changes in enumerate(several)}
    times = interleave(runners, REPETITIONS)
    release(subject.device)
    return [times[name] for name in runners]


def _runner(subject: Subject, mode: str, changes: Changes) -> Runner:
    with settings.trying(changes):
        made = make_runner(subject.provider, mode, subject.inputs, subject.device)
    if made.method == "graph":  # its launches are fixed
        return made

    def play() -> None:
        with settings.trying(changes):
            made.play()

    return dataclasses.replace(made, play=play)
