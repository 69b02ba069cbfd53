"""Times of the device and of the host.

An event pair around one small call measures the host. So calls are captured in a CUDA graph, or, where that is not
possible, queued behind a kernel that keeps the device busy until the host has queued them all.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.bench.inputs import COLD, COPIES, Inputs

Call = Callable[[], Any]
SPAN = 3.0  # ms that one sample should take; the smallest op is a hundredth of it
LONG = 10.0  # ms from which on a call is not worth a graph
SAMPLES = 3  # of each repetition, whose median counts; one by the clock, where times mean nothing
LAUNCH, CALL = 1_000_000, 600_000  # cycles to keep the device busy: while a graph is launched, and for each call queued


@dataclass(frozen=True, slots=True)
class Runner:
    """``play`` makes ``count`` calls; ``method`` is graph, queued or clock. ``calls`` own a graph's memory."""

    method: str
    count: int
    play: Call
    calls: Sequence[Call]

    def sample(self) -> float:
        """ms of one call."""
        if self.method == "clock":
            start = time.perf_counter()
            self.play()
            return 1e3 * (time.perf_counter() - start) / self.count
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        cycles = LAUNCH if self.method == "graph" else CALL * min(self.count, 50)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        begin.record()
        self.play()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / self.count

    def repetition(self) -> float:
        """The median of a few samples."""
        return statistics.median(self.sample() for _ in range(1 if self.method == "clock" else SAMPLES))


def runner(calls: Sequence[Call], device: str, capture: bool = True) -> Runner:
    """A runner that goes round through ``calls``, which do the same on different memory."""
    if device != "cuda":
        return Runner("clock", len(calls), lambda: [call() for call in calls], calls)
    calls[0]()  # compiles
    torch.cuda.synchronize()
    once = Runner("queued", 1, calls[0], calls).sample()
    rounds = max(1, round(SPAN / once / len(calls)))
    if capture and once < LONG:
        with contextlib.suppress(RuntimeError):  # it waits for the device, say: method tells that it was queued instead
            return Runner("graph", rounds * len(calls), _capture(calls, rounds).replay, calls)
    rounds = min(rounds, -(-20 // len(calls)))
    return Runner("queued", rounds * len(calls), lambda: _go_round(calls, rounds), calls)


def _go_round(calls: Sequence[Call], rounds: int) -> None:
    results = [None] * len(calls)  # kept for a round, or each call would write into the cached memory of the last one
    for _ in range(rounds):
        for i, call in enumerate(calls):
            results[i] = call()


def _capture(calls: Sequence[Call], rounds: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.disable()  # freeing something that is not part of the capture would spoil it
    try:
        graph.capture_begin(capture_error_mode="thread_local")  # backwards launch from autograd's thread
        try:
            _go_round(calls, rounds)
        finally:
            graph.capture_end()
    finally:
        gc.enable()
    torch.cuda.synchronize()
    return graph


def interleave(runners: Mapping[str, Runner], repetitions: int) -> dict[str, list[float]]:
    """ms of one call for each runner and repetition; all take turns, so that clock and heat are the same for all."""
    out: dict[str, list[float]] = {name: [] for name in runners}
    for r in runners.values():
        if r.method != "clock":
            r.sample()  # warms up
    for _ in range(repetitions):
        for name, r in runners.items():
            out[name].append(r.repetition())
    return out


# -- Limits ------------------------------------------------------------------------------------------------------------
def copying(amount: int, device: str) -> Runner:
    """A copy that moves ``amount`` bytes, half of them read and half written, with cold caches too.

    The faster of two: at some sizes torch's ``copy_`` uses the copy engine, which on an H200 moves 2.8 of 4.3 TB/s, and
    then a kernel that reads and writes each element is the limit.
    """
    elements = max(1, amount // 8)  # of 4 bytes, so that a thread's load of 4 takes 16
    count = max(1, min(COPIES if device == "cuda" else 2, -(-COLD // (4 * elements))))
    pairs = [[torch.zeros(elements, dtype=torch.int32, device=device) for _ in range(2)] for _ in range(count)]
    ways: list[list[Call]] = [[functools.partial(b.copy_, a) for a, b in pairs]]
    if device == "cuda":
        ways.append([functools.partial(torch.bitwise_not, a, out=b) for a, b in pairs])
    return min((runner(calls, device) for calls in ways), key=Runner.sample)


def products(inputs: Inputs, device: str) -> Runner:
    """The products of a linear layer and its needed gradients; inputs begin with hidden (N, H), weight (V, H)."""
    hidden, weight = (t for t in inputs.tensors[:2] if t is not None)
    x, w = hidden.detach(), weight.detach()
    z, dx, dw = x @ w.t(), torch.empty_like(x), torch.empty_like(w)

    def call() -> None:
        torch.mm(x, w.t(), out=z)
        if hidden.requires_grad:
            torch.mm(z, w, out=dx)
        if weight.requires_grad:
            torch.mm(z.t(), x, out=dw)

    return runner([call], device)


# -- Host --------------------------------------------------------------------------------------------------------------
def host_us(steps: Mapping[str, Call], device: str, calls: int, repetitions: int) -> dict[str, float]:
    """Median µs the host needs for one call of each; the device works on tiny tensors and is never waited for."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions + 1):  # the first one warms up
        for name, step in steps.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                step()
            times[name].append(1e6 * (time.perf_counter() - start) / calls)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


class Empty(torch.autograd.Function):
    """Does nothing, with as many arguments, outputs and gradients as an op: what autograd itself costs."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Sequence[torch.Tensor], gradients: tuple[torch.Tensor | None, ...], *tensors: Any
    ) -> Any:
        """Outputs made beforehand."""
        ctx.gradients = gradients
        made = tuple(o.detach() for o in outputs)
        return made[0] if len(made) == 1 else made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients made beforehand."""
        return (None, None, *ctx.gradients)
