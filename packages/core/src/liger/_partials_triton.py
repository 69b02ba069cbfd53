"""Partial sums, one per program of a kernel, added in a fixed order: how weights get the same gradient each time."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from liger.launch import Launch, ceil_div, next_power_of_2, prepare


@triton.jit(do_not_specialize=["P", "M"])
def _add_partials(
    parts_ptr,  # (1 or 2, P, M) fp32
    first_ptr,  # (M,)
    second_ptr,  # (M,) or None
    P,
    M,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
):
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    parts_ptr += tl.program_id(1).to(tl.int64) * P * M
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, P, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < P)[:, None] & (cols < M)[None, :]
        total += tl.load(parts_ptr + rows.to(tl.int64)[:, None] * M + cols[None, :], mask=mask, other=0.0)
    total = tl.sum(total, axis=0)
    if tl.program_id(1) == 0:
        tl.store(first_ptr + cols, total.to(first_ptr.dtype.element_ty), mask=cols < M)
    if second_ptr is not None:  # noqa: SIM102  (known when it is compiled, the next is not)
        if tl.program_id(1) == 1:
            tl.store(second_ptr + cols, total.to(second_ptr.dtype.element_ty), mask=cols < M)


@functools.cache
def _plan(M: int) -> tuple[Launch, int]:
    """The launch, and its programs along M columns.

    About 256 programs share what is little work; 64 bytes of a row are the least that memory gives.
    """
    cols = min(128, max(16, next_power_of_2(M // 256)))
    return prepare(_add_partials, num_warps=4, COLS=cols, ROWS=1024 // cols), ceil_div(M, cols)


def add_partials(parts: torch.Tensor, first: torch.Tensor, second: torch.Tensor | None = None) -> None:
    """first = parts.sum(0), or first = parts[0].sum(0) and second = parts[1].sum(0), each rounded once.

    Args:
        parts: (P, ...), or (2, P, ...) with ``second``, fp32 and contiguous; P may be 0.
        first, second: (...), contiguous, of any floating dtype; they are written.
    """
    M, sums = first.numel(), 1 if second is None else 2
    if M == 0:
        return
    add, across = _plan(M)
    add((across, sums), (parts, first, second), (parts.numel() // (M * sums), M))
