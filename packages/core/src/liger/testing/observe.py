"""Count what ran: ops, kernels, launches, host synchronisations."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from liger.dispatch import LOG
from liger.errors import ContractViolation
from liger.testing.memory import no_writes, poisoned


@contextmanager
def count_ops() -> Iterator[Counter[tuple[str, str]]]:
    """Count calls by (op, kernel) inside the block: ``{("rms_norm", "triton"): 3}``; compiled ones when traced."""
    counts: Counter[tuple[str, str]] = Counter()

    def observe(op: str, kernel: str) -> None:
        counts[op, kernel] += 1

    LOG.observers.append(observe)
    try:
        yield counts
    finally:
        LOG.observers.remove(observe)


@contextmanager
def launches() -> Iterator[Counter[str]]:
    """Count launches of Triton kernels by function name inside the block, interpreted or on a GPU."""
    counts: Counter[str] = Counter()
    with _interpreted(counts) if os.environ.get("TRITON_INTERPRET") == "1" else _hooked(counts):
        yield counts


@contextmanager
def _interpreted(counts: Counter[str]) -> Iterator[None]:
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts[self.fn.__name__] += 1
        return run(self, *args, **kwargs)

    InterpretedFunction.run = counted
    try:
        yield
    finally:
        InterpretedFunction.run = run


@contextmanager
def _hooked(counts: Counter[str]) -> Iterator[None]:
    import triton

    def enter(metadata: Any) -> None:
        counts[metadata.get()["name"]] += 1

    chain = triton.knobs.runtime.launch_enter_hook
    chain.add(enter)
    try:
        yield
    finally:
        chain.remove(enter)


_SYNCHRONISING = frozenset(
    (
        "_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim",
        "unique_consecutive", "item", "bincount", "repeat_interleave", "allclose",
    )
)  # fmt: skip
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_TO_HOST = ("tolist", "numpy", "cpu", "__array__")  # methods that call no operation on a CPU tensor


class _Syncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.partition(".")[0]
        masked = name in _INDEXING and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
        if func.namespace == "aten" and (name in _SYNCHRONISING or masked or _copies_to_host(name, args, kwargs)):
            raise ContractViolation(f"aten.{func.__name__} makes the host wait for the device")
        return func(*args, **kwargs)


def _copies_to_host(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    def far(t: torch.Tensor) -> bool:
        return t.device.type not in ("cpu", "meta")

    device = kwargs.get("device")
    if name == "_to_copy":
        return device is not None and torch.device(device).type == "cpu" and far(args[0])
    return name == "copy_" and args[0].device.type == "cpu" and far(args[1])


def _refused(name: str) -> Callable[..., Any]:
    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if caller not in ("torch", "triton"):  # triton's interpreter calls them on its own behalf
            raise ContractViolation(f"Tensor.{name} makes the host wait for the device")
        return original(self, *args, **kwargs)

    return method


@contextmanager
def no_sync() -> Iterator[None]:
    """Raise on what makes the host wait for the device inside the block: ``.item()``, masks as indices, ``.cpu()``, ...

    Checked by what is called, so a CPU run finds it too; on CUDA torch's own check is on as well.

    Raises:
        ContractViolation: at the call, so that the traceback shows it.
    """
    cuda = torch.cuda.is_available()
    mode = torch.cuda.get_sync_debug_mode() if cuda else 0
    if cuda:
        torch.cuda.set_sync_debug_mode("error")
    methods: dict[str, Any] = {name: _refused(name) for name in _TO_HOST}
    try:
        with mock.patch.multiple(torch.Tensor, **methods), _Syncs():  # type: ignore[no-untyped-call]
            yield
    finally:
        if cuda:
            torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def strict(*tensors: torch.Tensor | None, waits: bool = False) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """What no op may do, all in one: write into ``tensors``, read memory nobody wrote, write outside it, wait.

    ``waits`` allows the last. The block yields what ``poisoned`` yields.

    Raises:
        ContractViolation: as ``no_writes``, ``poisoned`` and ``no_sync`` do.
    """
    with no_writes(*tensors), poisoned() as place, nullcontext() if waits else no_sync():
        yield place
