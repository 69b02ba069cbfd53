"""A point that would not fit into the memory is left out before it is tried."""

from __future__ import annotations

import torch

from liger.bench.plan import Point

SHARE = 0.8  # of the free memory; the estimate knows nothing of fragmentation and of what compilation holds
GIB = 2**30


def available(device: str) -> int | None:
    """Bytes that are free on the device; None where there is no telling."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else None


def reason(point: Point, before: Point | None, peak: int, device: str) -> str | None:
    """Why the point does not fit, or None if it does.

    Args:
        point: to be timed next.
        before: the last point of the series that was timed, if any.
        peak: bytes allocated at most at that point.
        device: where.
    """
    free = available(device)
    if free is None:
        return None
    grown = growth(point, before) if before else 1.0
    needed = max(point.held, peak * grown) if before else point.held
    if needed <= SHARE * free:
        return None
    how = f"{peak / GIB:.3g} GiB at {before.case}, times {grown:.3g}" if before else "the inputs alone"
    room = f"{SHARE * free / GIB:.3g} GiB ({SHARE:.0%} of what is free)"
    return f"needs about {needed / GIB:.3g} GiB ({how}), available are {room}"


def growth(point: Point, before: Point) -> float:
    """Ratio of the inputs, or of the bytes moved, which count what is made on the way (logits); the larger one."""
    moved, last = sum(point.moved.values()), sum(before.moved.values())
    return max(point.held / before.held, moved / last if last else 1.0)
