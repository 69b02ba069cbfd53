"""Verify every Triton kernel, then time it beside its peers.

    python benchmarks/run.py --out bench.json [--ops rms_norm ...] [--seconds 170] [--smoke]

Rows have: op, provider, kernel, case, direction (forward, backward, both), ms p20, p50, p80 of the repetitions, method,
bytes, gbps, share (% of the limit: a copy of the same bytes, or for products cuBLAS, in the same repetitions), peak_mib
above the inputs, sha, versions. Rows with the direction "host" have us and above_empty_us instead. What gives wrong
results is not timed. The exit status is 1 if one of our kernels is wrong. ``--smoke`` runs all of it in toy sizes on a
CPU, in triton's interpreter; its times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as in the tests; triton 3.10 changes the default

import torch
import torch._functorch.config as functorch

from inputs import Inputs, backward, forward, make, ring, seeds
from liger.declare import Kernel, Op, load
from liger.registry import registry
from providers import Provider, kernels, providers
from table import table
from timing import Empty, Runner, copying, host_us, interleave, products, quantiles, runner
from verify import compare, contract, results

Row = dict[str, Any]


@dataclass
class Run:
    """One run: where, how long, and what it has found."""

    device: str
    smoke: bool
    seconds: float
    out: Path | None
    names: Sequence[str] | None = None
    started: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)
    wrong: bool = False

    @property
    def spent(self) -> float:
        """The part of the time that is gone."""
        return (time.monotonic() - self.started) / self.seconds

    @property
    def repetitions(self) -> int:
        """Repetitions of each measurement."""
        return 1 if self.smoke else 5

    def add(self, **values: Any) -> None:
        """Add a row."""
        self.rows.append({**values, **about(self.device)})

    def write(self) -> None:
        """Write what there is; after each case, so that a run that is stopped leaves something."""
        if self.out:
            self.out.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")


@functools.cache
def about(device: str) -> dict[str, Any]:
    """What is the same in each row: commit, versions, device."""
    sha = os.environ.get("LIGER_SHA", "")
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):  # no git here
        sha = sha or subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in ("torch", "triton", "liger-core", "liger-kernel"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"sha": sha or "unknown", "versions": versions, "device": name}


# -- Verify ------------------------------------------------------------------------------------------------------------
def verified(run: Run, op: Op, kernel: Kernel, sizes: Mapping[str, int], inputs: Inputs) -> list[Provider]:
    """The providers whose results are right; the others get a row that says why they are not timed."""
    expected = results(load(op.reference), inputs.leaves())
    found = []
    for provider in providers(op, kernel, run.device):
        if run.names and provider.name not in run.names:
            continue
        with problems(run, op, provider, sizes):
            if provider.compiled and run.spent > 0.6:
                raise TimeoutError("left out for lack of time")
            if provider.kernel:
                contract(provider.kernel, op, sizes, run.device)
            compare(results(provider.fn, arguments(inputs, provider)), expected)
            found.append(provider)
    return found


@contextlib.contextmanager
def problems(run: Run, op: Op, provider: Provider, sizes: Mapping[str, int]) -> Iterator[None]:
    """A peer may fail in any way, and the others are still to be timed: what is raised becomes a row."""
    try:
        yield
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:300]}"
        run.wrong |= provider.kernel is not None
        row = {"op": op.name, "provider": provider.name, "kernel": provider.kernel and provider.kernel.id}
        run.add(**row, case=name(sizes), direction="verify", problem=problem)


def arguments(inputs: Inputs, provider: Provider) -> Inputs:
    """Leaves for one call of the provider."""
    return inputs.copy() if provider.overwrites else inputs.leaves()


# -- Time --------------------------------------------------------------------------------------------------------------
def timed(run: Run, provider: Provider, direction: str, inputs: Inputs) -> Runner:
    """A runner of forwards, backwards, or both."""
    copies = ring(inputs, own=provider.overwrites)
    fn = provider.fn
    calls: Sequence[Callable[[], Any]] = [functools.partial(forward, fn, copy) for copy in copies]
    if direction == "forward":
        return runner(calls, run.device, provider.capture)
    graphs = [forward(fn, copy) for copy in copies]
    given = [seeds(outputs) for outputs in graphs]
    if direction == "backward":
        parts = zip(graphs, copies, given, strict=True)
        calls = [functools.partial(backward, outputs, copy, seed, True) for outputs, copy, seed in parts]
    else:
        del graphs
        calls = [functools.partial(both, fn, copy, seed) for copy, seed in zip(copies, given, strict=True)]
    return runner(calls, run.device, provider.capture)


def both(fn: Callable[..., Any], inputs: Inputs, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Forward and backward."""
    return backward(forward(fn, inputs), inputs, gradients)


def peaks(provider: Provider, inputs: Inputs, device: str) -> dict[str, float | None]:
    """Peak MiB above the inputs in the forward, and until the end of the backward."""
    if device != "cuda":
        return dict.fromkeys(("forward", "backward", "both"))
    own = arguments(inputs, provider)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    def highest() -> float:
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    outputs = forward(provider.fn, own)
    after_forward = highest()
    backward(outputs, own, seeds(outputs))
    return {"forward": after_forward, "backward": highest(), "both": highest()}


def case(run: Run, op: Op, kernel: Kernel, sizes: Mapping[str, int]) -> None:
    """Verify and time all providers at one shape."""
    inputs = make(op, sizes, run.device)
    found = verified(run, op, kernel, sizes, inputs)
    memory = {p.name: peaks(p, inputs, run.device) for p in found}
    moved = load(kernel.bytes)(inputs.tensors, inputs.options) if kernel.bytes else {}
    flops = load(kernel.flops)(inputs.tensors, inputs.options) if kernel.flops else {}
    for direction, amount in moved.items():
        runners = {}
        for provider in found:
            with problems(run, op, provider, sizes):
                runners[provider.name] = timed(run, provider, direction, inputs)
        limit = "cuBLAS" if direction in flops else "copy"
        runners[limit] = products(inputs, run.device) if direction in flops else copying(amount, run.device)
        times = interleave(runners, run.repetitions)
        for who, values in times.items():
            row: Row = {"op": op.name, "provider": who, "kernel": kernel.id if who == "ours" else None}
            row |= {"case": name(sizes), "direction": direction, "method": runners[who].method}
            row |= measured(values, times[limit], amount, flops.get(direction))
            run.add(**row, limit=limit, peak_mib=memory.get(who, {}).get(direction))
        del runners
        release(run.device)


def release(device: str) -> None:
    """Give memory back, that of graphs too."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measured(values: Sequence[float], limit: Sequence[float], amount: int, flops: int | None) -> Row:
    """The numbers of a row."""
    p20, p50, p80 = quantiles(values)
    out: Row = {"p20": p20, "p50": p50, "p80": p80, "repetitions": list(values), "bytes": amount}
    out |= {"gbps": amount / p50 / 1e6, "share": 100 * quantiles(limit)[1] / p50, "flops": flops}
    return out | {"tflops": flops / p50 / 1e9 if flops else None}


def name(sizes: Mapping[str, int]) -> str:
    """``R=16384 H=4096``."""
    return " ".join(f"{k}={v}" for k, v in sizes.items())


# -- Host --------------------------------------------------------------------------------------------------------------
def host(run: Run, op: Op, kernel: Kernel) -> None:
    """µs of the host for a forward and backward of a tiny case, and how much of it is above an empty Function."""
    sizes = toy(op)
    inputs = make(op, sizes, run.device)
    outputs = forward(load(op.reference), inputs)
    given = seeds(outputs)
    gradients = tuple(None if t is None or not t.requires_grad else t.detach() for t in inputs.tensors)
    empty = functools.partial(Empty.apply, len(outputs), gradients)
    if outputs[0].shape != inputs.tensors[0].shape:  # type: ignore[union-attr]
        return  # a loss
    steps = {"empty Function": functools.partial(both, empty, Inputs(inputs.tensors, {}), given)}
    for provider in providers(op, kernel, run.device):
        if provider.capture and not provider.compiled and not (run.names and provider.name not in run.names):
            own = arguments(inputs, provider)
            steps[provider.name] = functools.partial(both, provider.fn, own, given)
    times = host_us(steps, run.device, 2 if run.smoke else 200, run.repetitions)
    for who, us in times.items():
        row = {"op": op.name, "provider": who, "kernel": kernel.id if who == "ours" else None, "case": name(sizes)}
        run.add(**row, direction="host", us=us, above_empty_us=us - times["empty Function"])


def toy(op: Op) -> dict[str, int]:
    """The middle of each dimension's test sizes."""
    return {k: sorted(values)[len(values) // 2] for k, values in op.sizes.items()}


# -- Main --------------------------------------------------------------------------------------------------------------
def everything(run: Run, ops: Sequence[str] | None) -> None:
    """All kernels, all shapes, as far as the time allows."""
    for kernel in kernels():
        op = registry().op(kernel.op)
        if ops and op.name not in ops:
            continue
        for sizes in (toy(op),) if run.smoke else [p for sweep in op.sweeps for p in sweep.points()] or op.production:
            start = time.monotonic()
            if run.spent > 1:
                row = {"op": op.name, "provider": "all", "kernel": None, "case": name(sizes)}
                run.add(**row, direction="verify", problem="left out for lack of time")
                continue
            case(run, op, kernel, sizes)
            run.write()
            print(f"{kernel.id} {name(sizes)}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        host(run, op, kernel)
        run.write()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the rows, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the rows to this file, as JSON")
    parser.add_argument("--ops", nargs="*", help="names of ops; all by default")
    parser.add_argument("--providers", nargs="*", help="names of providers; all by default")
    parser.add_argument("--seconds", type=float, default=170.0, help="what comes later is left out, compilation first")
    parser.add_argument("--smoke", action="store_true", help="toy sizes on a CPU")
    options = parser.parse_args(arguments)
    run = Run("cpu" if options.smoke else "cuda", options.smoke, options.seconds, options.out, options.providers)
    if options.smoke:
        from liger.testing.interpreter import fix

        fix()
    elif not torch.cuda.is_available():
        parser.error("there is no GPU; --smoke runs in toy sizes on a CPU")
    functorch.donated_buffer = False  # a compiled backward is timed again and again on one forward
    # capturing needs another stream than the default one, for all that autograd has ever seen too
    stream = None if options.smoke else torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        everything(run, options.ops)
    run.write()
    print(table(run.rows))
    return 1 if run.wrong or not run.rows else 0


if __name__ == "__main__":
    sys.exit(main())
