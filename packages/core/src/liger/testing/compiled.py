"""Checks under ``torch.compile`` and of the private library ops it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from liger.errors import ContractViolation
from liger.testing.compare import compare
from liger.testing.contract import Inputs, evaluate


def check_compile(
    fn: Callable[..., Any],
    calls: Sequence[tuple[Inputs, Mapping[str, Any]]],
    *,
    upstream: Callable[..., Any] | None = None,
    backend: str = "aot_eager",
) -> int:
    """Compile ``fn`` with ``fullgraph=True`` and run it, forward and backward, on each of ``calls`` in turn.

    Results must equal eager's bit for bit; those of inductor, which sums in another order, up to the floor of the
    contract. Past its recompilation limit torch runs eager silently, therefore the graphs
    are counted: there may be no more than ``upstream`` (or one per call) needs for the same calls.

    Returns:
        The number of graphs compiled.

    Raises:
        ContractViolation: a result differs, nothing was compiled, or there were too many graphs.
    """
    allowed = len(calls) if upstream is None else _compile(upstream, calls, backend)[1]
    results, graphs = _compile(fn, calls, backend)
    if not 0 < graphs <= allowed:
        raise ContractViolation(f"{graphs} graphs for {len(calls)} calls, expected 1 to {allowed}")
    for index, ((inputs, options), got) in enumerate(zip(calls, results, strict=True)):
        for position, (a, b) in enumerate(zip(got, run(fn, inputs, options), strict=True)):
            if backend == "inductor":
                compare(a, b, b, reduction=max(1, b.numel()))
            elif not same_bits(a, b):
                raise ContractViolation(f"call {index}: result {position} compiled by {backend} differs from eager")
    return graphs


def _compile(
    fn: Callable[..., Any], calls: Sequence[tuple[Inputs, Mapping[str, Any]]], backend: str
) -> tuple[list[list[torch.Tensor]], int]:
    with count_graphs() as graphs:
        compiled = torch.compile(fn, fullgraph=True, backend=backend)
        results = [run(compiled, inputs, options) for inputs, options in calls]
    return results, graphs()


def run(fn: Callable[..., Any], inputs: Inputs, options: Mapping[str, Any]) -> list[torch.Tensor]:
    """Outputs and gradients of one forward and backward, in one flat list."""
    results = evaluate(fn, inputs, options)
    return [*results.outputs, *(g for g in results.gradients.values() if g is not None)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and values, NaN equal to NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, tuple[Any, Sequence[Any], Mapping[str, Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "liger":
            self.calls.setdefault(str(func), (func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def opcheck(fn: Callable[..., Any], inputs: Inputs, options: Mapping[str, Any]) -> list[str]:
    """Run ``torch.library.opcheck`` on each private library op that ``fn`` calls while being compiled.

    Returns:
        The names of the ops checked; empty if the function uses none.
    """
    is_compiling = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True
    try:
        with _Recorder() as recorder:
            run(fn, inputs, options)
    finally:
        torch.compiler.is_compiling = is_compiling
    for func, args, kwargs in recorder.calls.values():
        clean = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        torch.library.opcheck(func, clean, dict(kwargs))
    return list(recorder.calls)


@contextmanager
def count_graphs() -> Iterator[Callable[[], int]]:
    """Forget everything compiled so far, then count graphs: ``with count_graphs() as graphs: ...; graphs()``."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch._dynamo.pgo.reset_code_state()  # otherwise shapes seen earlier change the count
    counters.clear()
    yield lambda: int(counters["stats"]["unique_graphs"])
