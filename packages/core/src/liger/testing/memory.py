"""Catch reads of uninitialised memory, writes outside an allocation and writes into the caller's tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from liger.errors import ContractViolation

GUARD = 65536  # bytes on either side: more than a program writes that forgets its mask; a multiple of any alignment
PATTERN = 0xFF  # NaN in every floating dtype, so that what is read there cannot pass for 0
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_FILLED = ("zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "ones", "ones_like", "new_ones")


def extent(t: torch.Tensor) -> int:
    """Elements from the first to the last one in memory, gaps included."""
    return sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0


class _Guarded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts every tensor that Python allocates between two guard bands, and NaN into those nobody initialised."""

    active: ClassVar[_Guarded | None] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.buffers: list[tuple[torch.Tensor, torch.Tensor, str]] = []
        self.placing = False  # the mode is on while it allocates for ``place``

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0] if func.namespace == "aten" else ""
        if self.placing or name not in _EMPTY + _FILLED or type(out) is not torch.Tensor or out.device.type == "meta":
            return out
        guarded = self._guard(out, name)
        return guarded if name in _EMPTY else guarded.copy_(out)  # the bands' pattern is the poison too

    def place(self, t: torch.Tensor) -> torch.Tensor:
        """A copy of ``t`` between guard bands: equal strides and alignment, and what lies between its elements."""
        self.placing = True
        copy = self._guard(t.detach(), "copy of an input", t.data_ptr() % 16)
        self.placing = False
        flat = (extent(t),), (1,)
        copy.as_strided(*flat).copy_(t.detach().as_strided(*flat))
        return copy.requires_grad_(t.requires_grad)

    def _guard(self, like: torch.Tensor, name: str, shift: int = 0) -> torch.Tensor:
        size, start = extent(like) * like.element_size(), GUARD + shift
        padded = -(-size // GUARD) * GUARD  # the band begins right behind the payload, rounding only enlarges it
        buffer = torch.full((start + padded + GUARD,), PATTERN, dtype=torch.uint8, device=like.device)
        payload = torch.empty(0, dtype=like.dtype, device=like.device)
        payload.set_(buffer.untyped_storage(), start // like.element_size(), like.shape, like.stride())
        self.buffers.append((buffer[:start], buffer[start + size :], f"{name} {like.dtype} {tuple(like.shape)}"))
        return payload

    def check(self) -> None:
        """Raise ContractViolation if a guard band has changed."""
        for before, after, what in self.buffers:
            for band, side in ((before, "before the start"), (after, "past the end")):
                changed = band != PATTERN
                if bool(changed.any()):
                    at = changed.nonzero().flatten()
                    first, last = int(at[0]), int(at[-1])
                    where = (
                        f"{first} to {last} bytes past the end"
                        if side == "past the end"
                        else f"{len(band) - first} bytes before the start"
                    )
                    raise ContractViolation(f"written {where} of the allocation {what}")


@contextmanager
def poisoned() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Inside the block, ``torch.empty`` and its relatives return NaN between guard bands, which are NaN too.

    A kernel that reads what it did not write, or beyond its memory, gives NaN; one that writes outside its allocation
    changes a band, and leaving the block raises. Backwards run inside the block are covered too. In integers all bits
    are 1. The block yields a function that copies a tensor, an input say, between such bands.

    Raises:
        ContractViolation: on leaving, naming the allocation and the distance.
    """
    if _Guarded.active:
        yield _Guarded.active.place
        return
    mode = _Guarded.active = _Guarded()
    try:
        with mode:
            yield mode.place
    finally:
        _Guarded.active = None
    mode.check()


@contextmanager
def no_writes(*tensors: torch.Tensor | None) -> Iterator[None]:
    """Raise if the memory behind ``tensors`` changes inside the block, also between the elements of a strided one.

    Raises:
        ContractViolation: on leaving, naming the position of the tensor and how many bytes changed.
    """
    views = [_bytes(t) if t is not None and t.device.type != "meta" else None for t in tensors]
    before = [None if v is None else v.clone() for v in views]
    yield
    for position, (view, saved) in enumerate(zip(views, before, strict=True)):
        if view is not None and saved is not None and not bool((view == saved).all()):
            count = int((view != saved).sum())
            t = tensors[position]
            assert t is not None
            raise ContractViolation(
                f"tensor {position}, {t.dtype} {tuple(t.shape)}, was written: {count} bytes of its storage changed"
            )


def _bytes(t: torch.Tensor) -> torch.Tensor:
    view = torch.empty(0, dtype=torch.uint8, device=t.device)
    storage = t.untyped_storage()
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all new tensors together, and elements of the largest."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known:
                self.bytes += t.nbytes
                self.largest = max(self.largest, t.numel())
        return out


def allocated(fn: Callable[[], Any]) -> int:
    """Bytes of all tensors that torch operations make while ``fn`` runs, results and temporaries."""
    with _Allocations() as mode:
        fn()
    return mode.bytes  # type: ignore[no-any-return]


@contextmanager
def largest_allocation() -> Iterator[Callable[[], int]]:
    """Elements of the largest tensor made in the block: ``with largest_allocation() as largest: ...; largest()``."""
    with _Allocations() as mode:
        yield lambda: mode.largest


def alive() -> list[torch.Tensor]:
    """Every ordinary tensor that Python holds; no fake ones, which compilers keep, or without numbers for sizes."""
    found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]
    return [t for t in found if not t._has_symbolic_sizes_strides]
