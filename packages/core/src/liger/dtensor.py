"""DTensors in an op that does not take them apart itself: kernels read memory, which a DTensor has none of its own.

Plain torch knows how to compute with them, so the reference serves; it must be given nothing else. Known by name, for
importing the class takes a second, which tensors of one process need not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liger.errors import KernelUnavailable


def is_dtensor(tensor: Any) -> bool:
    """Whether it is one."""
    return type(tensor).__name__ == "DTensor"


def reference_only(op: str, tensors: Sequence[Any], by_hand: str | None) -> str | None:
    """The kernel to choose: the reference if the tensors are DTensors, else ``by_hand``.

    Raises:
        ValueError: some tensors are DTensors, others are not.
        KernelUnavailable: another kernel was chosen by hand.
    """
    if not any(map(is_dtensor, tensors)):
        return by_hand
    given = [is_dtensor(t) for t in tensors if t is not None]
    if not all(given):
        which = [i for i, found in enumerate(given) if found]
        raise ValueError(
            f"{op}: tensors {which} of {len(given)} are DTensors, and others are not; pass all as DTensors, or local "
            "or full tensors. A parameter that FSDP2 or tensor parallelism has sharded is whole only in the forward "
            "of its model"
        )
    if by_hand not in (None, "reference"):
        raise KernelUnavailable(
            f"{op}: kernel {by_hand!r} takes no DTensors; pass local tensors, or leave it to choose"
        )
    return "reference"
