"""Triton kernels of the norms, for rows that a program can hold: rms_norm, layer_norm and what is made of them.

One kernel each way. What an op does not have is passed as None, and the compiler leaves it out. Of one product less
another the compiler may fuse either; which one changes with what else is asked for, and so would the bits of dx. Hence
``tl.fma`` where dx is centred, in all norms.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

NO_CAST = tl.constexpr(2)


@triton.jit
def square(x, CAST: tl.constexpr, dtype: tl.constexpr):
    """x^2, rounded where nothing is cast."""
    if CAST == NO_CAST:
        return (x * x).to(dtype).to(tl.float32)
    return x * x


@triton.jit
def reciprocal_root(sum_of_squares, eps, TERMS: tl.constexpr, CAST: tl.constexpr, dtype: tl.constexpr):
    """1 / sqrt(sum / TERMS + eps); each step rounded where nothing is cast."""
    mean = sum_of_squares / TERMS
    if CAST == NO_CAST:
        mean = mean.to(dtype).to(tl.float32)
        shifted = (mean + eps).to(dtype).to(tl.float32)
        return tl.rsqrt(shifted).to(dtype).to(tl.float32)
    return tl.rsqrt(mean + eps)


@triton.jit
def normalise(x, rstd, CAST: tl.constexpr, dtype: tl.constexpr):
    """x / rms(x), rounded where the weight comes after the cast."""
    xhat = x * rstd
    if CAST == 1:
        return xhat
    return xhat.to(dtype).to(tl.float32)


@triton.jit
def load_scale(w_ptr, at, mask, offset):
    """offset + w of these columns, fp32; 1 + offset without a weight."""
    if w_ptr is not None:
        return tl.load(w_ptr + at, mask=mask, other=0.0).to(tl.float32) + offset
    return tl.zeros(at.shape, tl.float32) + (1.0 + offset)


@triton.jit
def load_sum(x_ptr, r_ptr, s_ptr, at, mask, AGAIN: tl.constexpr = False):
    """x, or x + residual, rounded and stored: what is normalised. ``AGAIN``: that is read again, x from the cache."""
    if AGAIN and r_ptr is None:
        x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_last")
    else:
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
    x = x.to(tl.float32)
    if r_ptr is not None:
        x = (x + tl.load(r_ptr + at, mask=mask, other=0.0).to(tl.float32)).to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + at, x, mask=mask)
        x = x.to(tl.float32)
    return x


@triton.jit(do_not_specialize=["R", "eps", "offset"])
def _forward(
    x_ptr,  # (R, N, H)
    r_ptr,  # (R, N, H) or None: a residual that is added to x first
    w_ptr,  # (N, H) or None
    b_ptr,  # (N, H) or None
    y_ptr,  # (R, N, H)
    s_ptr,  # (R, N, H) or None: x + residual
    mean_ptr,  # (R, N) fp32, or None: the mean is not subtracted
    rstd_ptr,  # (R, N) fp32
    R,
    eps,
    offset,
    H: tl.constexpr,
    N: tl.constexpr,  # rows of the weight
    TERMS: tl.constexpr,  # the sum of squares is divided by this
    CAST: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two >= H
    ROWS: tl.constexpr,  # rows of one program
):
    dtype = x_ptr.dtype.element_ty if s_ptr is None else s_ptr.dtype.element_ty
    tokens = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1) if N > 1 else 0
    rows = tokens * N + head
    cols = tl.arange(0, BLOCK)
    mask = (tokens < R)[:, None] & (cols < H)[None, :]
    at = rows[:, None] * H + cols[None, :]
    x = load_sum(x_ptr, r_ptr, s_ptr, at, mask)
    early: tl.constexpr = mean_ptr is None or BLOCK <= 8192  # else there is no register to keep it
    if early:  # on its way while the row is summed
        scale = load_scale(w_ptr, head * H + cols, cols < H, offset)[None, :]
    if mean_ptr is not None:
        mean = tl.sum(x, axis=1) / H
        tl.store(mean_ptr + rows, mean, mask=tokens < R)
        x = tl.where((cols < H)[None, :], x - mean[:, None], 0.0)
    rstd = reciprocal_root(tl.sum(square(x, CAST, dtype), axis=1), eps, TERMS, CAST, dtype)
    tl.store(rstd_ptr + rows, rstd, mask=tokens < R)
    if not early:
        scale = load_scale(w_ptr, head * H + cols, cols < H, offset)[None, :]
    y = normalise(x, rstd[:, None], CAST, dtype) * scale
    if b_ptr is not None:
        y += tl.load(b_ptr + head * H + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "offset"])
def _backward(  # noqa: C901
    dy_ptr,  # (R, N, H)
    ds_ptr,  # (R, N, H) or None: gradient of x + residual
    x_ptr,  # (R, N, H), residual included
    w_ptr,  # (N, H) or None
    mean_ptr,  # (R, N) fp32 or None
    rstd_ptr,  # (R, N) fp32
    dy_again_ptr,  # dy and x once more, or None. With them rows are read twice, the second time from the L1 cache:
    x_again_ptr,  # under one name the compiler would merge the loads, and run out of registers
    dx_ptr,  # (R, N, H) or None: x needs no gradient
    dw_ptr,  # (programs, N, H) fp32 or None: partial sums
    db_ptr,  # (programs, N, H) fp32 or None
    R,
    offset,
    H: tl.constexpr,
    N: tl.constexpr,
    TERMS: tl.constexpr,
    CAST: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,  # rows on their way through shared memory, the one at hand included
):
    dtype = x_ptr.dtype.element_ty
    head = tl.program_id(1) if N > 1 else 0
    cols = tl.arange(0, BLOCK)
    w_at = head * H + cols
    if x_again_ptr is None:
        scale = load_scale(w_ptr, w_at, cols < H, offset)[None, :]
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    db = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0), num_stages=STAGES):
        tokens = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        rows = tokens * N + head
        mask = (tokens < R)[:, None] & (cols < H)[None, :]
        at = rows[:, None] * H + cols[None, :]
        if x_again_ptr is not None:  # no register to keep it
            scale = load_scale(w_ptr, w_at, cols < H, offset)[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=tokens < R, other=0.0)[:, None]
        mean = 0.0 if mean_ptr is None else tl.load(mean_ptr + rows, mask=tokens < R, other=0.0)[:, None]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        xhat = (tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        if dx_ptr is not None:
            along = tl.sum(dy * scale * xhat, axis=1)[:, None] / TERMS
            if mean_ptr is not None:
                shift = tl.sum(dy * scale, axis=1)[:, None] / H
            if x_again_ptr is not None:
                dy = tl.load(dy_again_ptr + at, mask=mask, other=0.0).to(tl.float32)
                xhat = (tl.load(x_again_ptr + at, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
            dx = tl.fma(-along, xhat, dy * scale)
            if mean_ptr is not None:
                dx -= shift
            dx *= rstd
            if ds_ptr is not None:
                dx += tl.load(ds_ptr + at, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if dw_ptr is not None:
            # rounded as in the forward; a masked column has dy = 0
            dw += dy * (xhat if CAST == 1 else xhat.to(dtype).to(tl.float32))
        if db_ptr is not None:
            db += dy
    part = tl.program_id(0).to(tl.int64) * N * H + w_at
    if dw_ptr is not None:
        tl.store(dw_ptr + part, tl.sum(dw, axis=0), mask=cols < H)
    if db_ptr is not None:
        tl.store(db_ptr + part, tl.sum(db, axis=0), mask=cols < H)
