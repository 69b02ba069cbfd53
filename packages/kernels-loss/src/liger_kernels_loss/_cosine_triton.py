"""Triton kernel of cosine_distance: two rows, read for three sums, and again for the gradient."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger_kernels_loss._blocks_triton import block_sum, clear, columns, load
from liger_kernels_loss.cosine_distance import LEAST

NORM = tl.constexpr(LEAST)


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _row(
    s_ptr,  # (V,) student
    t_ptr,  # (V,) teacher
    loss_ptr,  # () fp32 or None
    d_ptr,  # (V,)
    factor,  # upstream gradient
    blocks,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = columns(DEPTH, THREADS, EACH)
    ss = tl.zeros((THREADS,), tl.float32)
    tt = tl.zeros((THREADS,), tl.float32)
    st = tl.zeros((THREADS,), tl.float32)
    for i in range(blocks):
        cols = i * BLOCK + within
        s, t = load(s_ptr, cols, cols < V, 0.0, False), load(t_ptr, cols, cols < V, 0.0, False)
        ss += block_sum(s * s)
        tt += block_sum(t * t)
        st += block_sum(s * t)
    # rounded to nearest, and the launch fuses nothing: what cancels in a row of one class is 0 then
    length = tl.sqrt_rn(tl.sum(ss, axis=0))
    s_norm = tl.maximum(length, NORM)
    t_norm = tl.maximum(tl.sqrt_rn(tl.sum(tt, axis=0)), NORM)
    cos = tl.div_rn(tl.div_rn(tl.sum(st, axis=0), s_norm), t_norm)
    if loss_ptr is not None:
        tl.store(loss_ptr, 1.0 - cos)
    if GRADIENT:
        # not products of norms, which may leave the range
        away = tl.div_rn(tl.div_rn(factor, s_norm), t_norm)
        along = tl.where(length < NORM, 0.0, tl.div_rn(tl.div_rn(factor * cos, s_norm), s_norm))
        for i in range(blocks):
            cols = (blocks - 1 - i) * BLOCK + within
            s, t = load(s_ptr, cols, cols < V, 0.0, True), load(t_ptr, cols, cols < V, 0.0, True)
            d = s * along - t * away
            tl.store(d_ptr + cols, d.to(d_ptr.dtype.element_ty), mask=cols < V, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["R", "blocks", "dy_stride", "ignore_index"])
def cosines(
    student_ptr,  # (R, V)
    teacher_ptr,  # (R, V)
    target_ptr,  # (R,) int64 or None
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number; or None for ones
    loss_ptr,  # (R,) fp32 or None
    d_ptr,  # (R, V) or None
    R,
    blocks,  # ceil(V / (DEPTH * THREADS * EACH)); as a constant it makes LLVM unroll the loops until they spill
    dy_stride,
    ignore_index,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        ignored = False
        if target_ptr is not None:
            ignored = tl.load(target_ptr + row) == ignore_index
        if ignored:
            if loss_ptr is not None:
                tl.store(loss_ptr + row, 0.0)
            if GRADIENT:
                clear(d_ptr + start, 0, blocks, V, DEPTH, THREADS, EACH)
        else:
            factor = tl.full((), 1.0, tl.float32)
            if dy_ptr is not None:
                factor = tl.load(dy_ptr + row * dy_stride)
            _row(
                student_ptr + start, teacher_ptr + start, loss_ptr + row if loss_ptr is not None else None,
                d_ptr + start if GRADIENT else None, factor, blocks, V, DEPTH, THREADS, EACH, GRADIENT,
            )  # fmt: skip
