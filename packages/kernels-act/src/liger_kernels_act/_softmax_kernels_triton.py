"""Kernels of softmax and log_softmax: rows that fit stay in registers, wider ones are read a second time.

The widest are shared by a team of programs (``liger._teams_triton``), none of which reads twice.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import exp
from liger._teams_triton import HEAR, TELL, hear, place, tell


@triton.jit
def _columns(V: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, inside):
    """COUNT columns from FIRST on, and where there are such in rows that are ``inside``."""
    cols = (FIRST + tl.arange(0, COUNT))[None, :]
    return cols, inside & (cols < V)


@triton.jit
def _result(z, total, LOG: tl.constexpr):
    """Softmax, or its logarithm, of z = x - max x."""
    if LOG:
        return z - tl.log(total)
    return exp(z) * (1.0 / total)


@triton.jit
def _weighted(y, dy, LOG: tl.constexpr):
    """The terms of the sum in the gradient."""
    if LOG:
        return dy
    return y * dy


@triton.jit
def _slope(y, dy, total, LOG: tl.constexpr):
    """dx, where total is the sum of ``_weighted``."""
    if LOG:
        return dy - exp(y) * total
    return y * (dy - total)


@triton.jit(do_not_specialize=["R"])
def _forward(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    HEAD: tl.constexpr,  # a row is HEAD columns and up to TAIL more: a power of two alone could be twice the row
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    LOG: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols, mask = _columns(V, 0, HEAD, rows < R)
    x = tl.load(x_ptr + rows * V + cols, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=1, keep_dims=True)
    if TAIL:
        tail_cols, tail_mask = _columns(V, HEAD, TAIL, rows < R)
        tail = tl.load(x_ptr + rows * V + tail_cols, mask=tail_mask, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(tail, axis=1, keep_dims=True))
        tail -= top
    x -= top
    total = tl.sum(exp(x), axis=1, keep_dims=True)
    if TAIL:
        total += tl.sum(exp(tail), axis=1, keep_dims=True)
        y = _result(tail, total, LOG)
        tl.store(y_ptr + rows * V + tail_cols, y.to(y_ptr.dtype.element_ty), mask=tail_mask)
    tl.store(y_ptr + rows * V + cols, _result(x, total, LOG).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["blocks"])
def _forward_wide(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    blocks,  # ceil(V / (DEPTH * LANES)); as a constant it makes LLVM unroll the loops until they spill
    V: tl.constexpr,
    DEPTH: tl.constexpr,  # a thread has the same lanes of each: one new maximum for DEPTH values
    LANES: tl.constexpr,
    LOG: tl.constexpr,
):
    start = tl.program_id(0) * tl.full((), V, tl.int64)
    within = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    top = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    for i in range(blocks):
        cols = i * (DEPTH * LANES) + within
        at = x_ptr + start + cols
        x = tl.load(at, mask=cols < V, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
        total = total * exp(top - base) + tl.sum(exp(x - base[None, :]), axis=0)
        top = higher
    highest = tl.max(top, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    sums = tl.sum(total * exp(top - base), axis=0)
    for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
        cols = (blocks - 1 - i) * (DEPTH * LANES) + within
        at = x_ptr + start + cols
        x = tl.load(at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = _result(x - highest, sums, LOG).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + start + cols, y, mask=cols < V, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["R"])
def _forward_shared(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    board_ptr,  # (R * PARTS + 1,) int64
    R,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    SEATS: tl.constexpr,  # the next power of two
    LOG: tl.constexpr,
    PHASE: tl.constexpr,
):
    row, part = place(board_ptr, R.to(tl.int64) * PARTS, PARTS, PHASE)
    cols = part * BLOCK + tl.arange(0, BLOCK)
    at = row * tl.full((), V, tl.int64) + cols
    x = tl.load(x_ptr + at, mask=cols < V, other=-float("inf")).to(tl.float32)
    words_ptr = board_ptr + row * tl.full((), PARTS, tl.int64)
    if PHASE != HEAR:
        top = tl.max(x, axis=0)
        base = tl.where(top == -float("inf"), 0.0, top)  # nothing but -inf: exp of -inf, not of nan
        tell(words_ptr + part, top, tl.sum(exp(x - base), axis=0))
    if PHASE != TELL:
        parts = tl.arange(0, SEATS)
        tops, totals = hear(words_ptr + parts, parts < PARTS, -float("inf"), 0.0, PHASE)
        top = tl.max(tops, axis=0)
        base = tl.where(top == -float("inf"), 0.0, top)
        total = tl.sum(totals * exp(tops - base), axis=0)
        tl.store(y_ptr + at, _result(x - top, total, LOG).to(y_ptr.dtype.element_ty), mask=cols < V)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V)
    dx_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    LOG: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    dy_ptr += rows * V
    y_ptr += rows * V
    dx_ptr += rows * V
    cols, mask = _columns(V, 0, HEAD, rows < R)
    dy = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(_weighted(y, dy, LOG), axis=1, keep_dims=True)
    if TAIL:
        tail_cols, tail_mask = _columns(V, HEAD, TAIL, rows < R)
        tail_dy = tl.load(dy_ptr + tail_cols, mask=tail_mask, other=0.0).to(tl.float32)
        tail_y = tl.load(y_ptr + tail_cols, mask=tail_mask, other=0.0).to(tl.float32)
        total += tl.sum(_weighted(tail_y, tail_dy, LOG), axis=1, keep_dims=True)
        tail = _slope(tail_y, tail_dy, total, LOG)
        tl.store(dx_ptr + tail_cols, tail.to(dx_ptr.dtype.element_ty), mask=tail_mask)
    tl.store(dx_ptr + cols, _slope(y, dy, total, LOG).to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R"])
def _backward_wide(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V); for the logarithm it is not read the first time
    dx_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    LOG: tl.constexpr,
):
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        at = row * tl.full((), V, tl.int64) + cols
        dy = tl.load(dy_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_last").to(tl.float32)
        y = tl.load(y_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_last").to(tl.float32)
        total = tl.sum(_weighted(y, dy, LOG), axis=0)
        # again, from the cache: both rows and their sums are more than the registers hold
        dy = tl.load(dy_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = tl.load(y_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dx = _slope(y, dy, total, LOG).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + at, dx, mask=cols < V, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["R"])
def _backward_shared(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V)
    dx_ptr,  # (R, V)
    board_ptr,  # (R * PARTS + 1,) int64
    R,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    SEATS: tl.constexpr,  # the next power of two
    LOG: tl.constexpr,
    PHASE: tl.constexpr,
):
    row, part = place(board_ptr, R.to(tl.int64) * PARTS, PARTS, PHASE)
    cols = part * BLOCK + tl.arange(0, BLOCK)
    at = row * tl.full((), V, tl.int64) + cols
    dy = tl.load(dy_ptr + at, mask=cols < V, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + at, mask=cols < V, other=0.0).to(tl.float32)
    words_ptr = board_ptr + row * tl.full((), PARTS, tl.int64)
    if PHASE != HEAR:
        total = tl.sum(_weighted(y, dy, LOG), axis=0)
        tell(words_ptr + part, total, total)
    if PHASE != TELL:
        parts = tl.arange(0, SEATS)
        totals, _ = hear(words_ptr + parts, parts < PARTS, 0.0, 0.0, PHASE)
        dx = _slope(y, dy, tl.sum(totals, axis=0), LOG)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=cols < V)
