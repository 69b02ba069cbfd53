"""Time, memory and host cost of one provider at one point."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from liger.bench import MODES
from liger.bench.inputs import Inputs, backward, forward, ring, seeds
from liger.bench.plan import Point
from liger.bench.providers import Provider, eager
from liger.bench.stats import quantiles
from liger.bench.timing import Empty, Runner, host_us, runner

MIB = 2**20
Values = dict[str, Any]


def arguments(inputs: Inputs, provider: Provider) -> Inputs:
    """Leaves for one call of the provider."""
    return inputs.copy() if provider.overwrites else inputs.leaves()


def make_runner(provider: Provider, mode: str, inputs: Inputs, device: str) -> Runner:
    """A runner of forwards, backwards, or both."""
    copies = ring(inputs, own=provider.overwrites)
    fn = provider.fn
    calls: Sequence[Callable[[], Any]] = [functools.partial(forward, fn, copy) for copy in copies]
    if mode == "forward":
        return runner(calls, device, provider.capture)
    graphs = [forward(fn, copy) for copy in copies]
    given = [seeds(outputs) for outputs in graphs]
    if mode == "backward":
        parts = zip(graphs, copies, given, strict=True)
        calls = [functools.partial(backward, outputs, copy, seed, True) for outputs, copy, seed in parts]
    else:
        del graphs
        calls = [functools.partial(full, fn, copy, seed) for copy, seed in zip(copies, given, strict=True)]
    return runner(calls, device, provider.capture)


def full(fn: Callable[..., Any], inputs: Inputs, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Forward and backward."""
    return backward(forward(fn, inputs), inputs, gradients)


def peaks(provider: Provider, inputs: Inputs, device: str) -> dict[str, float | None]:
    """Peak MiB above the inputs by mode; a backward's includes what the forward has left."""
    if device != "cuda":
        return dict.fromkeys(MODES)
    own = arguments(inputs, provider)
    gc.collect()  # what is freed meanwhile would be taken off the peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    def highest() -> float:
        return (torch.cuda.max_memory_allocated() - before) / MIB

    torch.cuda.reset_peak_memory_stats()
    outputs = forward(provider.fn, own)
    first = highest()
    torch.cuda.reset_peak_memory_stats()
    backward(outputs, own, seeds(outputs))
    second = highest()
    return {"forward": first, "backward": second, "full": max(first, second)}


def allocated(device: str) -> int:
    """Bytes allocated at most since the last reset of torch's counter; 0 where it has none."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def release(device: str) -> None:
    """Give memory back, that of graphs too."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def numbers(values: Sequence[float], limit: Sequence[float], amount: int, flops: int | None) -> Values:
    """The numbers of a row from its repetitions in ms and those of its limit."""
    p20, p50, p80 = quantiles(values)
    out: Values = {"p20": p20, "p50": p50, "p80": p80, "repetitions": list(values), "bytes": amount}
    out |= {"gbps": amount / p50 / 1e6, "share": 100 * quantiles(limit)[1] / p50, "flops": flops}
    return out | {"tflops": flops / p50 / 1e9 if flops else None}


def host(point: Point, found: Sequence[Provider], device: str, calls: int, repetitions: int) -> dict[str, Values]:
    """µs of the host for a forward and backward at a tiny point, by provider, and how much is above an empty Function.

    Left out is what waits for the device, torch.compile, which would compile once more, and peers that refuse the size.
    """
    inputs = point.make(device)
    outputs = forward(eager(point.op).fn, inputs)
    given = seeds(outputs)
    gradients = tuple(None if t is None or not t.requires_grad else t.detach() for t in inputs.tensors)
    empty = functools.partial(Empty.apply, [o.detach() for o in outputs], gradients)
    steps: dict[str, Callable[[], Any]] = {"": functools.partial(full, empty, Inputs(inputs.tensors, {}), given)}
    for p in found:
        if p.capture and not p.compiled:
            step = functools.partial(full, p.fn, arguments(inputs, p), given)
            with contextlib.nullcontext() if p.kernel else contextlib.suppress(Exception):
                step()
                steps[p.name] = step
    times = host_us(steps, device, calls, repetitions)
    nothing = times.pop("")
    return {who: {"host_us": us, "host_above_us": us - nothing} for who, us in times.items()}
