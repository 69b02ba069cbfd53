"""Triton kernels of gated_rms_norm. A row is one group of one row of x: N columns, with the weight of its group."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import sigmoid


@triton.jit
def _activate(gate, SILU: tl.constexpr):
    """act(gate) and its derivative in fp32; what the caller does not use is removed by the compiler."""
    FP32: tl.constexpr = tl.float32 == gate.dtype
    gate = gate.to(tl.float32)
    s, rest = sigmoid(gate, FP32)
    if SILU:
        return gate * s, s * (1.0 + gate * rest)  # this form stays accurate where the slope is near 0
    return s, s * rest


@triton.jit
def _weight(w_ptr, rows, cols, N: tl.constexpr, G: tl.constexpr):
    """fp32 weights of these rows, broadcastable against (rows, columns); 1 without weights."""
    if w_ptr is None:
        w = tl.full((1, 1), 1.0, tl.float32)
    elif G == 1:
        w = tl.load(w_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    else:
        at = (rows % G)[:, None] * N + cols[None, :]
        w = tl.load(w_ptr + at, mask=(cols < N)[None, :], other=0.0).to(tl.float32)
    return w


@triton.jit
def _result(xhat, w, act, dtype: tl.constexpr, w_ptr, FIRST: tl.constexpr, LLAMA: tl.constexpr):
    """w * xhat, times act if the norm comes first; rounded on the way as upstream does."""
    if LLAMA:
        xhat = xhat.to(dtype).to(tl.float32)
    y = xhat * w
    if LLAMA and FIRST and w_ptr is not None:  # noqa: SIM102  (triton evaluates both sides of `and`)
        if w_ptr.dtype.element_ty == dtype:
            y = y.to(dtype).to(tl.float32)
    return y * act if FIRST else y


@triton.jit(do_not_specialize=["R", "eps"])
def _forward(
    x_ptr,  # (R, N)
    gate_ptr,  # (R, N)
    w_ptr,  # (G, N) or None
    y_ptr,  # (R, N)
    rstd_ptr,  # (R,) fp32, kept for the backward
    R,
    eps,
    N: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two >= N
    ROWS: tl.constexpr,  # rows of one program
    SILU: tl.constexpr,
    FIRST: tl.constexpr,  # the norm comes before the gate
    LLAMA: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < R)[:, None] & (cols < N)[None, :]
    at = rows[:, None] * N + cols[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=mask, other=0.0)
    act, _ = _activate(gate, SILU)
    if not FIRST:
        x = x * act
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / N + eps)
    tl.store(rstd_ptr + rows, rstd, mask=rows < R)
    w = _weight(w_ptr, rows, cols, N, G)
    y = _result(x * rstd[:, None], w, act, x_ptr.dtype.element_ty, w_ptr, FIRST, LLAMA)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["eps"])
def _forward_wide(
    x_ptr,  # (R, N)
    gate_ptr,  # (R, N)
    w_ptr,  # (G, N) or None
    y_ptr,  # (R, N)
    rstd_ptr,  # (R,) fp32
    eps,
    N: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,  # columns per step
    SILU: tl.constexpr,
    FIRST: tl.constexpr,
    LLAMA: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    total = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        at, mask = rows[:, None] * N + cols[None, :], (cols < N)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if not FIRST:
            act, _ = _activate(tl.load(gate_ptr + at, mask=mask, other=0.0), SILU)
            x = x * act
        total += x * x
    rstd = tl.rsqrt(tl.sum(total, axis=1) / N + eps)
    tl.store(rstd_ptr + rows, rstd)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        at, mask = rows[:, None] * N + cols[None, :], (cols < N)[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        act, _ = _activate(tl.load(gate_ptr + at, mask=mask, other=0.0), SILU)
        if not FIRST:
            x = x * act
        w = _weight(w_ptr, rows, cols, N, G)
        y = _result(x * rstd[:, None], w, act, x_ptr.dtype.element_ty, w_ptr, FIRST, LLAMA)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _load(dy_ptr, x_ptr, gate_ptr, at, mask, rstd, w, SILU: tl.constexpr, FIRST: tl.constexpr):
    """x, xhat, z (the gradient of w * xhat), w * z, dy, act(gate) and its derivative.

    dy * w is a product of its own, for ``_store`` has it too and the compiler keeps the order of factors.
    """
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=mask, other=0.0)
    act, slope = _activate(gate, SILU)
    if FIRST:
        return x, x * rstd, dy * act, dy * w * act, dy, act, slope
    return x, x * act * rstd, dy, dy * w, dy, act, slope


@triton.jit
def _store(dx_ptr, dgate_ptr, at, mask, inner, x, xhat, w, dy, act, slope, FIRST: tl.constexpr):
    """Write dx and dgate; ``inner`` is the gradient of what enters the norm."""
    if FIRST:
        dx, dgate = inner, dy * w * xhat * slope
    else:
        dx, dgate = inner * act, inner * x * slope
    if dx_ptr is not None:
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if dgate_ptr is not None:
        tl.store(dgate_ptr + at, dgate.to(dgate_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, G, N)
    x_ptr,  # (R, G, N)
    gate_ptr,  # (R, G, N)
    w_ptr,  # (G, N) or None
    rstd_ptr,  # (R, G) fp32
    dx_ptr,  # (R, G, N) or None: x needs no gradient
    dgate_ptr,  # (R, G, N) or None
    dw_ptr,  # (programs / G, G, N) fp32 or None: partial sums, added in fixed order afterwards
    R,
    N: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SILU: tl.constexpr,
    FIRST: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = tl.arange(0, BLOCK)
    group = tl.program_id(0) % G + tl.arange(0, 1)
    w = _weight(w_ptr, group, cols, N, G)
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(tl.program_id(0) // G, tl.cdiv(R, ROWS), tl.num_programs(0) // G, num_stages=STAGES):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        valid = rows < R
        mask = valid[:, None] & (cols < N)[None, :]
        rows = rows * G + group
        at = rows[:, None] * N + cols[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=valid, other=0.0)[:, None]
        x, xhat, z, wz, dy, act, slope = _load(dy_ptr, x_ptr, gate_ptr, at, mask, rstd, w, SILU, FIRST)
        mean = tl.sum(wz * xhat, axis=1)[:, None] / N
        inner = tl.fma(-mean, xhat, wz) * rstd
        _store(dx_ptr, dgate_ptr, at, mask, inner, x, xhat, w, dy, act, slope, FIRST)
        if dw_ptr is not None:
            dw += z * xhat
    if dw_ptr is not None:
        tl.store(dw_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(dw, axis=0), mask=cols < N)


@triton.jit(do_not_specialize=["blocks"])
def _row_means(
    dy_ptr,  # (R, N)
    x_ptr,  # (R, N)
    gate_ptr,  # (R, N)
    w_ptr,  # (G, N) or None
    rstd_ptr,  # (R,) fp32
    mean_ptr,  # (R,) fp32: mean of w * z * xhat
    blocks,  # ceil(N / BLOCK); as a constant it makes LLVM unroll the loop until it spills
    N: tl.constexpr,
    G: tl.constexpr,
    BLOCK: tl.constexpr,
    SILU: tl.constexpr,
    FIRST: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    rstd = tl.load(rstd_ptr + rows)[:, None]
    total = tl.zeros((1, BLOCK), tl.float32)
    for i in range(blocks):
        cols = i * BLOCK + tl.arange(0, BLOCK)
        at, mask = rows[:, None] * N + cols[None, :], (cols < N)[None, :]
        w = _weight(w_ptr, rows, cols, N, G)
        _, xhat, _, wz, _, _, _ = _load(dy_ptr, x_ptr, gate_ptr, at, mask, rstd, w, SILU, FIRST)
        total += wz * xhat
    tl.store(mean_ptr + rows, tl.sum(total, axis=1) / N)


@triton.jit(do_not_specialize=["R"])
def _backward_wide(
    dy_ptr,  # (R, G, N)
    x_ptr,  # (R, G, N)
    gate_ptr,  # (R, G, N)
    w_ptr,  # (G, N) or None
    rstd_ptr,  # (R, G) fp32
    mean_ptr,  # (R, G) fp32
    dx_ptr,  # (R, G, N) or None
    dgate_ptr,  # (R, G, N) or None
    dw_ptr,  # (programs along rows, G, N) fp32 or None
    R,
    N: tl.constexpr,
    G: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
    SILU: tl.constexpr,
    FIRST: tl.constexpr,
):
    across = tl.cdiv(N, COLS)
    group = tl.program_id(0) // across + tl.arange(0, 1)
    cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
    w = _weight(w_ptr, group, cols, N, G)
    dw = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(R, ROWS), tl.num_programs(1)):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        valid = rows < R
        mask = valid[:, None] & (cols < N)[None, :]
        rows = rows * G + group
        at = rows[:, None] * N + cols[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=valid, other=0.0)[:, None]
        mean = tl.load(mean_ptr + rows, mask=valid, other=0.0)[:, None]
        x, xhat, z, wz, dy, act, slope = _load(dy_ptr, x_ptr, gate_ptr, at, mask, rstd, w, SILU, FIRST)
        inner = tl.fma(-mean, xhat, wz) * rstd
        _store(dx_ptr, dgate_ptr, at, mask, inner, x, xhat, w, dy, act, slope, FIRST)
        dw += z * xhat
    if dw_ptr is not None:
        at = (tl.program_id(1).to(tl.int64) * G + group) * N + cols
        tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=cols < N)
