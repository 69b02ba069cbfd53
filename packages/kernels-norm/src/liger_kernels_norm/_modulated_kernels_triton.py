"""Triton kernels of modulated_rms_norm. A program of the backward takes rows of one sample, so that it sums over it."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _factor(scale_ptr, samples, cols, H: tl.constexpr):
    """fp32 values of scale or shift in these samples, (samples, columns); one sample is broadcast over its rows."""
    at = samples[:, None] * H + cols[None, :]
    return tl.load(scale_ptr + at, mask=(cols < H)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _weight(w_ptr, cols, H: tl.constexpr):
    """fp32 weights, broadcastable against (rows, columns); 1 without weights."""
    if w_ptr is None:
        w = tl.full((1, 1), 1.0, tl.float32)
    else:
        w = tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    return w


@triton.jit
def _round(x, A: tl.constexpr, B: tl.constexpr):
    """fp32 values rounded to what torch promotes A and B to, where that is a 16-bit dtype."""
    if A == B:
        x = x.to(A).to(tl.float32)
    return x


@triton.jit
def _modulate(
    y_ptr,
    at,
    mask,
    xhat,
    w_ptr,
    scale_ptr,
    shift_ptr,
    samples,
    cols,
    H: tl.constexpr,
    X: tl.constexpr,
    LLAMA: tl.constexpr,
):
    """Write xhat * w * (1 + scale) + shift, rounded on the way as separate steps would; X is x's dtype."""
    w, shift = _weight(w_ptr, cols, H), _factor(shift_ptr, samples, cols, H)
    factor = 1.0 + _factor(scale_ptr, samples, cols, H)
    if LLAMA:
        xhat = _round(xhat, X, X)
        factor = _round(factor, scale_ptr.dtype.element_ty, scale_ptr.dtype.element_ty)
        if w_ptr is None:
            y = _round(xhat * factor, X, scale_ptr.dtype.element_ty)
        elif w_ptr.dtype.element_ty == X:
            y = _round(_round(xhat * w, X, X) * factor, X, scale_ptr.dtype.element_ty)
        else:
            y = xhat * w * factor
    else:
        y = xhat * w * factor
    tl.store(y_ptr + at, (y + shift).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "T", "eps"])
def _forward(
    x_ptr,  # (R, H)
    scale_ptr,  # (R / T, H)
    shift_ptr,  # (R / T, H)
    w_ptr,  # (H,) or None
    y_ptr,  # (R, H)
    rstd_ptr,  # (R,) fp32, kept for the backward
    R,
    T,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two: at least H, or columns per step of a wider row
    ROWS: tl.constexpr,  # rows of one program
    SAME: tl.constexpr,  # they belong to one sample
    LLAMA: tl.constexpr,
):
    X: tl.constexpr = x_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < R
    # one sample for all rows where that is so: else each row brings scale and shift from L2, twice its own bytes
    first = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, 1)
    samples = first // T if SAME else tl.minimum(rows, R - 1) // T
    cols = tl.arange(0, BLOCK)
    if H <= BLOCK:
        at, mask = rows[:, None] * H + cols[None, :], valid[:, None] & (cols < H)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / H + eps)
        _modulate(y_ptr, at, mask, x * rstd[:, None], w_ptr, scale_ptr, shift_ptr, samples, cols, H, X, LLAMA)
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, H, BLOCK):
            at, mask = rows[:, None] * H + (start + cols)[None, :], valid[:, None] & (start + cols < H)[None, :]
            x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
            total += x * x
        rstd = tl.rsqrt(tl.sum(total, axis=1) / H + eps)
        for start in range(0, H, BLOCK):
            at, mask = rows[:, None] * H + (start + cols)[None, :], valid[:, None] & (start + cols < H)[None, :]
            xhat = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) * rstd[:, None]
            _modulate(y_ptr, at, mask, xhat, w_ptr, scale_ptr, shift_ptr, samples, start + cols, H, X, LLAMA)
    tl.store(rstd_ptr + rows, rstd, mask=valid)


@triton.jit(do_not_specialize=["T", "splits"])
def _backward(
    dy_ptr,  # (B, T, H)
    x_ptr,  # (B, T, H)
    scale_ptr,  # (B, H)
    w_ptr,  # (H,) or None
    rstd_ptr,  # (B, T) fp32
    mean_ptr,  # (B, T) fp32 in wide rows: mean of g * xhat; None: taken here
    dx_ptr,  # (B, T, H) or None: x needs no gradient
    p_ptr,  # (splits, B, H) fp32 or None: sums of dy * xhat
    s_ptr,  # (splits, B, H) fp32 or None: sums of dy
    T,
    splits,
    H: tl.constexpr,
    COLS: tl.constexpr,  # columns of a program: all of them unless mean_ptr is given
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    sample = (tl.program_id(0) // splits).to(tl.int64)
    samples = sample + tl.arange(0, 1)
    scale = _weight(w_ptr, cols, H) * (1.0 + _factor(scale_ptr, samples, cols, H))
    p = tl.zeros((ROWS, COLS), tl.float32)
    s = tl.zeros((ROWS, COLS), tl.float32)
    for tile in tl.range(tl.program_id(0) % splits, tl.cdiv(T, ROWS), splits, num_stages=STAGES):
        tokens = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        valid = tokens < T
        rows = sample * T + tokens
        at, mask = rows[:, None] * H + cols[None, :], valid[:, None] & (cols < H)[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=valid, other=0.0)[:, None]
        xhat = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32) * rstd
        if dx_ptr is not None:
            g = dy * scale
            if mean_ptr is None:
                mean = tl.sum(g * xhat, axis=1)[:, None] / H
            else:
                mean = tl.load(mean_ptr + rows, mask=valid, other=0.0)[:, None]
            tl.store(dx_ptr + at, (tl.fma(-mean, xhat, g) * rstd).to(dx_ptr.dtype.element_ty), mask=mask)
        p += dy * xhat
        s += dy
    split = (tl.program_id(0) % splits).to(tl.int64)
    at = (split * (tl.num_programs(0) // splits) + sample) * H + cols
    if p_ptr is not None:
        tl.store(p_ptr + at, tl.sum(p, axis=0), mask=cols < H)
    if s_ptr is not None:
        tl.store(s_ptr + at, tl.sum(s, axis=0), mask=cols < H)


@triton.jit(do_not_specialize=["T"])
def _row_means(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    scale_ptr,  # (R / T, H)
    w_ptr,  # (H,) or None
    rstd_ptr,  # (R,) fp32
    mean_ptr,  # (R,) fp32: mean of g * xhat
    T,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    total = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        at, mask = rows[:, None] * H + cols[None, :], (cols < H)[None, :]
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g *= _weight(w_ptr, cols, H) * (1.0 + _factor(scale_ptr, rows // T, cols, H))
        total += g * tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(mean_ptr + rows, tl.sum(total, axis=1) * tl.load(rstd_ptr + rows) / H)


@triton.jit
def _column_sums(p_ptr, scale_ptr, first, step, count, B, cols, H: tl.constexpr, ROWS: tl.constexpr):
    """Sum of rows first, first + step, ..., ``count`` of them, of (splits, B, H); times 1 + scale (B, H) if given."""
    total = tl.zeros((ROWS, cols.shape[0]), tl.float32)
    for start in range(0, count, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows < count)[:, None] & (cols < H)[None, :]
        rows = first + rows.to(tl.int64) * step
        part = tl.load(p_ptr + rows[:, None] * H + cols[None, :], mask=mask, other=0.0)
        if scale_ptr is not None:
            at = (rows % B)[:, None] * H + cols[None, :]
            part *= 1.0 + tl.load(scale_ptr + at, mask=mask, other=0.0).to(tl.float32)
        total += part
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["splits", "B"])
def _add_splits(
    scale_ptr,  # (B, H)
    p_ptr,  # (splits, B, H) fp32 or None
    s_ptr,  # (splits, B, H) fp32 or None
    w_ptr,  # (H,) or None
    dscale_ptr,  # (B, H) or None
    dshift_ptr,  # (B, H) or None
    dw_ptr,  # (H,) or None
    splits,
    B,
    H: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
    DW_COLS: tl.constexpr,
    DW_ROWS: tl.constexpr,
):
    across = tl.cdiv(H, COLS)
    sample = (tl.program_id(0) // across).to(tl.int64)
    if sample < B:
        cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
        at, mask = sample * H + cols, cols < H
        if dscale_ptr is not None:
            dscale = _column_sums(p_ptr, None, sample, B, splits, B, cols, H, ROWS)
            if w_ptr is not None:
                dscale *= tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
            tl.store(dscale_ptr + at, dscale.to(dscale_ptr.dtype.element_ty), mask=mask)
        if dshift_ptr is not None:
            dshift = _column_sums(s_ptr, None, sample, B, splits, B, cols, H, ROWS)
            tl.store(dshift_ptr + at, dshift.to(dshift_ptr.dtype.element_ty), mask=mask)
    elif dw_ptr is not None:
        dw_cols = (tl.program_id(0) - B * across) * DW_COLS + tl.arange(0, DW_COLS)
        dw = _column_sums(p_ptr, scale_ptr, 0, 1, splits * B, B, dw_cols, H, DW_ROWS)
        tl.store(dw_ptr + dw_cols, dw.to(dw_ptr.dtype.element_ty), mask=dw_cols < H)
