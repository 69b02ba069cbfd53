"""Compile every launch of every Triton kernel, at the sizes of real models, for GPUs that are not here.

    python tools/compile_gate.py [--kernels rms_norm/triton ...] [--targets sm90 ...] [--jobs N] [--json FILE]

The public ops run forward and backward on meta tensors under a driver that launches nothing, so what is compiled is
what would be launched: the same constants, the same number of warps. Fails on what `tools/compile_limits.py` forbids
and `tools/compile_budget.toml` does not allow, on what could not be measured, on what was never compiled, and if
everything takes too long. Needs triton, no GPU, and TRITON_INTERPRET unset.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as at a launch; triton 3.10 changes the default
os.environ["LIGER_LAUNCH_TABLE"] = ""  # the launches that everybody gets

import torch

from compile_limits import TARGETS, Budget, Launch, read_budgets, unneeded
from dry_launches import dry_launches
from liger.declare import Kernel
from liger.registry import registry
from liger.testing.cases import Case, option_values
from liger.testing.contract import flat
from liger.testing.kernels import in_part

ROWS = 2048  # more than there are programs at a time on any GPU
DTYPES = ("bfloat16", "float32")
ALLOWED_SECONDS = 400  # of processor time for each target: 200 on two cores, however busy the machine is


@dataclass(slots=True)
class Result:
    """What became of one kernel on one target."""

    kernel: str
    target: str
    launches: list[Launch] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


# -- Cases -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Step:
    """A forward and backward on meta tensors; ``gradients``: of these inputs alone, by position, or of none."""

    case: Case
    gradients: tuple[int, ...] | None = None

    @property
    def id(self) -> str:
        """Readable and unique."""
        return self.case.id + ("" if self.gradients is None else f"-gradients={list(self.gradients)}")

    def make(self) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
        """Tensors and options of the call."""
        tensors, options = self.case.make("meta")
        for i, t in enumerate(tensors):
            if t is not None and self.gradients is not None:
                t.requires_grad_(i in self.gradients)
        return tensors, options

    def run(self) -> None:
        """Do it."""
        tensors, options = self.make()
        outputs = flat(self.case.public()(*tensors, **options))
        if roots := [o for o in outputs if o.requires_grad]:
            torch.autograd.backward(roots, [torch.empty_like(o) for o in roots])


def steps(kernel: Kernel) -> Iterator[Step]:
    """Every production size in bf16 and fp32, the largest sizes of ``needs``, and all else that changes a launch.

    With the first and the widest size that is each option in both dtypes, each variant, each argument in float32, no
    gradient, and the gradient of one input at a time; with no more than ``ROWS`` rows, for an option can make a launch
    of each row.
    """
    op = registry().op(kernel.op)
    rows = next(iter(op.sizes), "")
    wide = max(op.production, key=lambda sizes: math.prod(size for name, size in sizes.items() if name != rows))
    for sizes, dtype in itertools.product(op.production, DTYPES):
        yield Step(Case(kernel=kernel, dtype=dtype, sizes=sizes))
    for name, limit in kernel.needs.max_size.items():
        yield Step(Case(kernel=kernel, dtype=DTYPES[0], sizes={**op.production[0], name: limit}))
    options = [(name, value) for name, value in option_values(kernel) if not op.options[name].waits]
    first = op.production[0]
    for sizes in (first, wide) if wide != first else (first,):
        few = {name: min(size, ROWS) if name == rows else size for name, size in sizes.items()}
        for dtype, (name, value) in itertools.product(DTYPES, options):  # on meta there is nothing to wait for
            yield Step(Case(kernel=kernel, dtype=dtype, sizes=few, options={name: value}))
        yield from _kinds(Case(kernel=kernel, dtype=DTYPES[0], sizes=few))


def _kinds(case: Case) -> Iterator[Step]:
    """Each variant, each argument in float32, no gradient, and the gradient of one input at a time."""
    yield from (Step(case.replace(variant=variant)) for variant in case.op.variants)
    yield from (Step(case.replace(mixed=name)) for name in case.op.mixed)
    leaves = [i for i, t in enumerate(Step(case).make()[0]) if t is not None and t.requires_grad]
    yield Step(case, gradients=())
    yield from (Step(case, gradients=(leaf,)) for leaf in leaves)


def gate(kernel: Kernel, target: str, begin: Callable[[str], None] = lambda case: None) -> Result:
    """Compile all launches of a kernel for a target; ``begin`` is told each case before it runs."""
    result, start = Result(kernel.id, target), time.perf_counter()
    if not registry().op(kernel.op).production:
        result.faults.append(f"op {kernel.op} declares no production sizes")
        return result
    failed: dict[str, list[str]] = {}  # message -> cases
    with dry_launches(target) as recorder:
        recorder.kernel = kernel.id
        for step in steps(kernel):
            recorder.case = step.id
            begin(step.id)
            try:
                step.run()
            except Exception as error:
                failed.setdefault(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", []).append(step.id)
    for message, (first, *more) in failed.items():
        result.faults.append(f"{first}{f' and {len(more)} more' if more else ''}: {message}")
    result.launches = list(recorder.launches.values())
    result.faults += undeclared(kernel, {launch.function for launch in result.launches})
    result.seconds = time.perf_counter() - start
    return result


def undeclared(kernel: Kernel, functions: Collection[str]) -> list[str]:
    """Where what was launched differs from the kernel's profile, if it has one."""
    if not functions:
        return ["launched nothing"]
    if kernel.profile is None:
        return []
    declared = kernel.profile.grid.keys()
    never = [f"{name} is in the profile and was never compiled" for name in sorted(declared - functions)]
    return never + [f"{name} was launched and is not in the profile" for name in sorted(functions - declared)]


# -- Processes ---------------------------------------------------------------------------------------------------------
def work(pipe: Connection, kernel: Kernel, target: str) -> None:
    """Body of a worker: sends the case that begins, and at the end the Result."""
    pipe.send(gate(kernel, target, begin=pipe.send))


def gate_all(kernels: Sequence[Kernel], targets: Sequence[str], jobs: int) -> Iterator[Result]:
    """``gate`` for all, in a process each, as they finish. A process that dies is a fault that names its case."""
    context = get_context("fork")  # a process with torch in it at once; there are no threads yet
    todo = [(kernel, t) for kernel, t in itertools.product(kernels, targets) if in_part(f"{kernel.id} {t}")][::-1]
    running: dict[Connection, tuple[ForkProcess, Result]] = {}
    while todo or running:
        while todo and len(running) < jobs:
            kernel, target = todo.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(there, kernel, target))
            process.start()
            there.close()
            running[here] = (process, Result(kernel.id, target))
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            process, result = running[pipe]
            try:
                message = pipe.recv()
            except EOFError:
                process.join()
                result.faults[-1:] = [f"{''.join(result.faults)}: the process ended with status {process.exitcode}"]
                message = result
            if isinstance(message, Result):
                del running[pipe]
                process.join()
                yield message
            else:
                result.faults = [message]  # where it was, should it die


# -- Command -----------------------------------------------------------------------------------------------------------
def show(result: Result, budgets: Sequence[Budget], everything: bool) -> int:
    """Print the faults, or all launches, and a line for the kernel; return the number of faults."""
    bad = len(result.faults)
    for fault in result.faults:
        print(f"  FAULT {result.kernel} {result.target} {fault}")
    for launch in result.launches:
        faults = "; ".join(launch.faults(budgets))
        bad += bool(faults)
        if faults or everything:
            print(f"  {'FAULT' if faults else 'ok'} {launch.function} {launch.constants}: {faults}, {launch.case}")
    worst = {name: max((getattr(x, name) or 0 for x in result.launches), default=0) for name in ("registers", "shared")}
    used = ", ".join(f"{name} <= {value}" for name, value in worst.items())
    count = f"{len(result.launches):3} launches, {used}, {result.seconds:.0f} s"
    print(f"{result.kernel:28} {result.target:7} {count}, {bad} bad", flush=True)
    return bad


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[Kernel]]:
    """The options and the kernels they choose; exits with status 2 where they make no sense."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", nargs="+", help="ids, all Triton kernels by default")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes, one per processor by default")
    parser.add_argument("--json", help="write every launch to this file")
    parser.add_argument("--verbose", action="store_true", help="print every launch")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("unset TRITON_INTERPRET: the interpreter compiles nothing")
    known = [k for op in registry().ops for k in registry().kernels(op) if k.needs.interpreter]
    if not known:
        parser.error("no package with a Triton kernel is installed, so there is nothing to compile")
    if unknown := set(options.kernels or ()) - {k.id for k in known}:
        parser.error(f"no kernel {', '.join(sorted(unknown))}; Triton kernels: {', '.join(k.id for k in known)}")
    return options, [k for k in known if not options.kernels or k.id in options.kernels]


def processor_seconds() -> float:
    """Of this process, its workers and theirs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per launch that fails and a summary per kernel; return the exit status."""
    start, busy = time.perf_counter(), processor_seconds()
    options, kernels = parse(arguments)
    budgets = read_budgets()
    launches: list[Launch] = []
    bad = 0
    for result in gate_all(kernels, options.targets, max(1, options.jobs)):
        launches += result.launches
        bad += show(result, budgets, options.verbose)
    everything = set(options.targets) == set(TARGETS) and "LIGER_TEST_PART" not in os.environ
    if everything:
        ids = {kernel.id for kernel in kernels}
        idle = unneeded([b for b in budgets if b.kernel in ids or not options.kernels], launches)
        print("".join(f"  FAULT {line}\n" for line in idle), end="")
        bad += len(idle)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(launch) for launch in launches], file, indent=1)
    seconds = time.perf_counter() - start
    busy = processor_seconds() - busy
    allowed = ALLOWED_SECONDS * len(options.targets)
    slow = not options.kernels and busy > allowed
    print(
        f"{len(launches)} launches of {len(kernels)} kernels for {len(options.targets)} targets: {bad} bad; "
        f"{seconds:.0f} s with {options.jobs} processes, {busy:.0f} s of processor time "
        f"({'FAULT: ' if slow else ''}{allowed} allowed for everything)"
    )
    return 1 if bad or slow or not launches else 0


if __name__ == "__main__":
    sys.exit(main())
