"""Triton kernels of jsd and tvd: two rows of logits, read for their statistics, for the loss, and for the gradient.

Logarithms are to base 2. A row's statistics are its largest logit and total = sum exp2((z - top) * scale), apart:
log2 p = (z - top) * scale - log2(total) is accurate however large the logits are, and so are differences of such.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import LN2
from liger_kernels_loss._blocks_triton import block_sum, clear, columns, load, log2

# KL of beta = 0, tvd, KL of beta = 1, the others; the gradients of the last two hold logarithms
FORWARD, VARIATION, REVERSE, BETWEEN = (tl.constexpr(i) for i in range(4))
FAR = tl.constexpr(126.0)  # log2 p - log2 q where one of the two is 0, or both: it stands beside a factor 0
NUMBERS = ["blocks", "dy_stride", "ignore_index", "beta", "scale", "slope"]


# -- One row -----------------------------------------------------------------------------------------------------------
@triton.jit
def _grow(z, top, total, scale):
    """The running statistics (THREADS,) with a block z more."""
    higher = tl.maximum(top, tl.max(tl.max(z, axis=2), axis=0))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
    return higher, total * tl.exp2((top - base) * scale) + block_sum(tl.exp2((z - base[None, :, None]) * scale))


@triton.jit
def _whole(top, total, scale):
    """The statistics of the threads -> of the row: top, log2(total)."""
    highest = tl.max(top, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    return highest, tl.log2(tl.sum(total * tl.exp2((top - base) * scale), axis=0))


@triton.jit
def _mixture(apart, beta):
    """log2 p - log2 q -> log2 m - log2 q, m = beta * p + (1 - beta) * q."""
    return log2((1.0 - beta) + beta * tl.exp2(apart))


@triton.jit
def _terms(lq, lp, beta, FORM: tl.constexpr):
    """-> the terms of the loss, and q * g, whose sum the gradient needs; logarithms to base 2.

    BETWEEN: of the teacher's part of the loss without beta, and of the student's, without 1 - beta.
    """
    if FORM == FORWARD:
        p = tl.exp2(lp)
        loss = tl.where(p == 0.0, 0.0, p * (lp - lq))
        pull = loss  # not needed
    elif FORM == REVERSE:
        q = tl.exp2(lq)
        loss = tl.where(q == 0.0, 0.0, q * (lq - lp))
        pull = loss
    elif FORM == BETWEEN:
        apart = tl.maximum(lp - lq, -FAR)
        apart = tl.where(apart < FAR, apart, FAR)  # of a nan too, as p and q are 0
        m = _mixture(apart, beta)
        loss, pull = tl.exp2(lp) * (apart - m), tl.exp2(lq) * -m
    else:
        q, p = tl.exp2(lq), tl.exp2(lp)
        loss = 0.5 * tl.abs(q - p)
        pull = q * _sign(lq, lp)
    return loss, pull


@triton.jit
def _sign(lq, lp):
    """Half the sign of q - p."""
    return tl.where(lq > lp, 0.5, tl.where(lq < lp, -0.5, 0.0))


@triton.jit
def _gradient(lq, lp, pull, beta, factor, FORM: tl.constexpr):
    """dloss/dz * temperature * factor, logarithms to base 2; pull is the sum of q * g."""
    if FORM == FORWARD:
        d = (tl.exp2(lq) - tl.exp2(lp)) * factor
    elif FORM == REVERSE:
        q = tl.exp2(lq)
        d = tl.where(q == 0.0, 0.0, q * ((lq - lp) - pull)) * factor
    elif FORM == BETWEEN:
        apart = lp - lq
        m = _mixture(tl.where(apart < FAR, apart, FAR), beta)  # of a nan too, as p and q are 0
        d = tl.exp2(lq) * ((pull + m) * -factor)
    else:
        d = tl.exp2(lq) * ((_sign(lq, lp) - pull) * factor)
    return d


@triton.jit
def _row(
    q_ptr,  # (V,) student
    p_ptr,  # (V,) teacher
    loss_ptr,  # () fp32 or None
    d_ptr,  # (V,)
    factor,  # upstream gradient / temperature
    blocks,
    beta,
    scale,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    FORM: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    unit = LN2 if FORM >= REVERSE else 1.0  # of the gradient
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = columns(DEPTH, THREADS, EACH)
    q_top = tl.full((THREADS,), -float("inf"), tl.float32)
    p_top = tl.full((THREADS,), -float("inf"), tl.float32)
    q_total = tl.zeros((THREADS,), tl.float32)
    p_total = tl.zeros((THREADS,), tl.float32)
    for i in range(blocks):
        cols = i * BLOCK + within
        zq, zp = load(q_ptr, cols, cols < V, -float("inf"), False), load(p_ptr, cols, cols < V, -float("inf"), False)
        q_top, q_total = _grow(zq, q_top, q_total, scale)
        p_top, p_total = _grow(zp, p_top, p_total, scale)
    q_high, q_log = _whole(q_top, q_total, scale)
    p_high, p_log = _whole(p_top, p_total, scale)
    losses = tl.zeros((THREADS,), tl.float32)
    pulls = tl.zeros((THREADS,), tl.float32)
    if FORM != FORWARD or not GRADIENT:
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * BLOCK + within
            lq = (load(q_ptr, cols, cols < V, -float("inf"), False) - q_high) * scale - q_log
            lp = (load(p_ptr, cols, cols < V, -float("inf"), False) - p_high) * scale - p_log
            loss, pull = _terms(lq, lp, beta, FORM)
            losses += block_sum(loss)
            pulls += block_sum(pull)
    wrong = 0.0 * (q_log + p_log)  # nan if a logit is nan or inf, which comparisons above would hide
    pull = tl.sum(pulls, axis=0) + wrong
    loss = tl.sum(losses, axis=0)
    if FORM == BETWEEN:
        loss = beta * loss + (1.0 - beta) * pull
        factor *= 1.0 - beta
    if GRADIENT:
        for i in range(blocks):
            cols = (i if FORM != FORWARD else blocks - 1 - i) * BLOCK + within
            lq = (load(q_ptr, cols, cols < V, -float("inf"), True) - q_high) * scale - q_log
            lp = (load(p_ptr, cols, cols < V, -float("inf"), True) - p_high) * scale - p_log
            d = _gradient(lq, lp, pull, beta, factor * unit, FORM)
            tl.store(d_ptr + cols, d.to(d_ptr.dtype.element_ty), mask=cols < V, eviction_policy="evict_first")
            if FORM == FORWARD and loss_ptr is not None:
                losses += block_sum(_terms(lq, lp, beta, FORM)[0])
    if FORM == FORWARD and GRADIENT:
        loss = tl.sum(losses, axis=0)
    if loss_ptr is not None:
        tl.store(loss_ptr, loss * (1.0 if FORM == VARIATION else LN2) + wrong)


# -- Rows --------------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=NUMBERS)
def divergences(
    student_ptr,  # (R, V)
    teacher_ptr,  # (R, V)
    target_ptr,  # (R,) int64 or None
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number; or None for ones
    loss_ptr,  # (R,) fp32 or None
    d_ptr,  # (R, V) or None
    blocks,  # ceil(V / (DEPTH * THREADS * EACH)); as a constant it makes LLVM unroll the loops until they spill
    dy_stride,
    ignore_index,
    beta,
    scale,  # log2(e) / temperature
    slope,  # 1 / temperature
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,  # columns side by side of one thread: a load of 16 bytes
    FORM: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    row = tl.program_id(0)
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
        factor = slope
        if dy_ptr is not None:
            factor = slope * tl.load(dy_ptr + row * dy_stride)
        _row(
            student_ptr + start, teacher_ptr + start, loss_ptr + row if loss_ptr is not None else None,
            d_ptr + start if GRADIENT else None, factor,
            blocks, beta, scale, V, DEPTH, THREADS, EACH, FORM, GRADIENT,
        )  # fmt: skip
