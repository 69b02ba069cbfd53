"""Triton kernels of the norms for rows that are read more than once, then from a cache."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger_kernels_norm._rows_triton import load_scale, load_sum, normalise, reciprocal_root, square


@triton.jit(do_not_specialize=["eps", "offset"])
def _forward_wide(
    x_ptr,  # (R, N, H)
    r_ptr,  # (R, N, H) or None
    w_ptr,  # (N, H) or None
    b_ptr,  # (N, H) or None
    y_ptr,  # (R, N, H)
    s_ptr,  # (R, N, H) or None
    mean_ptr,  # (R, N) fp32 or None
    rstd_ptr,  # (R, N) fp32
    eps,
    offset,
    H: tl.constexpr,
    N: tl.constexpr,
    TERMS: tl.constexpr,
    CAST: tl.constexpr,
    BLOCK: tl.constexpr,  # columns per step
):
    dtype = x_ptr.dtype.element_ty if s_ptr is None else s_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(0) % N
    z_ptr = x_ptr if s_ptr is None else s_ptr  # what is normalised
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = load_sum(x_ptr, r_ptr, s_ptr, row * H + cols, cols < H, True)
        total += square(x, CAST, dtype) if mean_ptr is None else x
    mean = 0.0
    if mean_ptr is not None:
        mean = tl.sum(total, axis=0) / H
        tl.store(mean_ptr + row, mean)
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, H, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(z_ptr + row * H + cols, mask=cols < H, other=0.0, eviction_policy="evict_last")
            x = x.to(tl.float32) - mean
            total += tl.where(cols < H, x * x, 0.0)
    rstd = reciprocal_root(tl.sum(total, axis=0), eps, TERMS, CAST, dtype)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(z_ptr + row * H + cols, mask=cols < H, other=0.0, eviction_policy="evict_first")
        x = x.to(tl.float32) - mean
        y = normalise(x, rstd, CAST, dtype) * load_scale(w_ptr, head * H + cols, cols < H, offset)
        if b_ptr is not None:
            y += tl.load(b_ptr + head * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * H + cols, y.to(y_ptr.dtype.element_ty), mask=cols < H)


@triton.jit
def _load_part(dy_ptr, x_ptr, w_ptr, start, cols, mean, rstd, H: tl.constexpr):
    """dy, xhat and the weight in these columns of the row that begins at ``start``, fp32."""
    dy = tl.load(dy_ptr + start + cols, mask=cols < H, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + start + cols, mask=cols < H, other=0.0).to(tl.float32)
    return dy, (x - mean) * rstd, load_scale(w_ptr, cols, cols < H, 0.0)


@triton.jit(do_not_specialize=["R"])
def _backward_parts(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    w_ptr,  # (H,) or None
    mean_ptr,  # (R,) fp32
    rstd_ptr,  # (R,) fp32
    dy_again_ptr,  # dy, x and w once more: rows are read twice, as in ``_backward``
    x_again_ptr,
    w_again_ptr,
    dx_ptr,  # (R, H) or None
    dw_ptr,  # (programs, H) fp32 or None: partial sums
    db_ptr,  # (programs, H) fp32 or None
    R,
    H: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of a part: beside the sums of whole rows there are registers for little more
):
    parts: tl.constexpr = (H + BLOCK - 1) // BLOCK
    cols = tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.float32)
    dw, db = (), ()
    for _ in tl.static_range(parts):
        dw += (zero,)  # type: ignore[assignment]
        db += (zero,)  # type: ignore[assignment]
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), H, tl.int64)
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        along, shift = zero, zero
        for part in tl.static_range(parts):
            dy, xhat, w = _load_part(dy_ptr, x_ptr, w_ptr, start, part * BLOCK + cols, mean, rstd, H)
            along += dy * w * xhat
            shift += dy * w
        along, shift = tl.sum(along, axis=0) / H, tl.sum(shift, axis=0) / H
        more_dw, more_db = (), ()
        for part in tl.static_range(parts):
            at = part * BLOCK + cols
            dy, xhat, w = _load_part(dy_again_ptr, x_again_ptr, w_again_ptr, start, at, mean, rstd, H)
            if dx_ptr is not None:
                dx = (tl.fma(-along, xhat, dy * w) - shift) * rstd
                tl.store(dx_ptr + start + at, dx.to(dx_ptr.dtype.element_ty), mask=at < H)
            more_dw += (dw[part] + dy * xhat,)  # type: ignore[assignment]
            more_db += (db[part] + dy,)  # type: ignore[assignment]
        dw, db = more_dw, more_db
    first = tl.program_id(0).to(tl.int64) * H
    for part in tl.static_range(parts):
        at = part * BLOCK + cols
        if dw_ptr is not None:
            tl.store(dw_ptr + first + at, dw[part], mask=at < H)
        if db_ptr is not None:
            tl.store(db_ptr + first + at, db[part], mask=at < H)


@triton.jit(do_not_specialize=["offset"])
def _backward_dx_wide(
    dy_ptr,  # (R, N, H)
    ds_ptr,  # (R, N, H) or None
    x_ptr,  # (R, N, H), residual included
    w_ptr,  # (N, H) or None
    mean_ptr,  # (R, N) fp32 or None
    rstd_ptr,  # (R, N) fp32
    dx_ptr,  # (R, N, H)
    offset,
    H: tl.constexpr,
    N: tl.constexpr,
    TERMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(0) % N
    rstd = tl.load(rstd_ptr + row)
    mean = 0.0 if mean_ptr is None else tl.load(mean_ptr + row)
    along = tl.zeros((BLOCK,), tl.float32)
    shift = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32) - mean
        dy = tl.load(dy_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        g = dy * load_scale(w_ptr, head * H + cols, cols < H, offset)
        along += g * (x * rstd)
        shift += g
    along = tl.sum(along, axis=0) / TERMS
    shift = 0.0 if mean_ptr is None else tl.sum(shift, axis=0) / H
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32) - mean
        dy = tl.load(dy_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        g = dy * load_scale(w_ptr, head * H + cols, cols < H, offset)
        dx = (g - x * rstd * along - shift) * rstd
        if ds_ptr is not None:
            dx += tl.load(ds_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * H + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < H)


@triton.jit(do_not_specialize=["R"])
def _backward_dw_wide(
    dy_ptr,  # (R, N, H)
    x_ptr,  # (R, N, H), residual included
    mean_ptr,  # (R, N) fp32 or None
    rstd_ptr,  # (R, N) fp32
    dw_ptr,  # (programs along rows, N, H) fp32 or None
    db_ptr,  # (programs along rows, N, H) fp32 or None
    R,
    H: tl.constexpr,
    N: tl.constexpr,
    CAST: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    head = tl.program_id(2)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    dw = tl.zeros((ROWS, COLS), tl.float32)
    db = tl.zeros((ROWS, COLS), tl.float32)
    for tile in tl.range(tl.program_id(1), tl.cdiv(R, ROWS), tl.num_programs(1), num_stages=STAGES):
        tokens = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        rows = tokens * N + head
        mask = (tokens < R)[:, None] & (cols < H)[None, :]
        at = rows[:, None] * H + cols[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if dw_ptr is not None:
            x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
            if mean_ptr is not None:
                x -= tl.load(mean_ptr + rows, mask=tokens < R, other=0.0)[:, None]
            rstd = tl.load(rstd_ptr + rows, mask=tokens < R, other=0.0)[:, None]
            dw += dy * normalise(x, rstd, CAST, dtype)
        if db_ptr is not None:
            db += dy
    at = (tl.program_id(1).to(tl.int64) * N + head) * H + cols
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=cols < H)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(db, axis=0), mask=cols < H)
