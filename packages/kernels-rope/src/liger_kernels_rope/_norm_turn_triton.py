"""Kernels of qk_norm_rope: a program takes all heads of a token; the backward sums weight gradients on its way."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger_kernels_rope._turn_triton import load_pairs, store_pairs, turn


# -- Forward -----------------------------------------------------------------------------------------------------------
@triton.jit
def _load_weight(w_ptr, offset, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """offset + w of the columns of x1 and of x2, (1, 1, BLOCK)."""
    here = tl.zeros((1, 1, 1), tl.int64)
    w1, w2 = load_pairs(w_ptr, here, here == 0, False, HALF, BLOCK)
    return w1 + offset, w2 + offset


@triton.jit
def _load_rest(ptr, rows, live, D: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):
    cols = 2 * HALF + tl.arange(0, REST)[None, None, :]
    return tl.load(ptr + rows + cols, mask=live & (cols < D), other=0.0).to(tl.float32)


@triton.jit
def _store_rest(ptr, rows, live, x, D: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr):
    cols = 2 * HALF + tl.arange(0, REST)[None, None, :]
    tl.store(ptr + rows + cols, x.to(ptr.dtype.element_ty), mask=live & (cols < D))


@triton.jit
def _rstd(x1, x2, rest, live, eps, D: tl.constexpr, REST: tl.constexpr):
    """1 / rms of each head, (A, B, 1); 0 where there is no head, so that nothing comes of it even with eps = 0."""
    squares = tl.sum(x1 * x1 + x2 * x2, axis=2)
    if REST > 0:
        squares += tl.sum(rest * rest, axis=2)
    return tl.where(live, tl.rsqrt(squares / D + eps)[:, :, None], 0.0)


@triton.jit
def _scale(x, rstd, w, dtype: tl.constexpr, weight: tl.constexpr, LLAMA: tl.constexpr):
    """n, rounded to its dtype: that of x, or float32 where a weight of another dtype promotes it."""
    xhat = x * rstd
    if LLAMA:
        xhat = xhat.to(dtype).to(tl.float32)
    n = xhat * w
    if not LLAMA or weight == dtype:
        n = n.to(dtype).to(tl.float32)
    return n


@triton.jit
def _forward_heads(
    x1, x2, x_ptr, w_ptr, y_ptr, x_rows, y_rows, live, c1, c2, s1, s2, eps, offset, D: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, LLAMA: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    weight: tl.constexpr = w_ptr.dtype.element_ty
    rest = x1
    if REST > 0:
        rest = _load_rest(x_ptr, x_rows, live, D, HALF, REST)
    rstd = _rstd(x1, x2, rest, live, eps, D, REST)
    w1, w2 = _load_weight(w_ptr, offset, HALF, BLOCK)
    n1, n2 = _scale(x1, rstd, w1, dtype, weight, LLAMA), _scale(x2, rstd, w2, dtype, weight, LLAMA)
    y1, y2 = turn(n1, n2, c1, c2, s1, s2, y_ptr.dtype.element_ty, True, False)
    store_pairs(y_ptr, y_rows, live, y1, y2, False, HALF, BLOCK)
    if REST > 0:
        here = tl.zeros((1, 1, 1), tl.int64)
        w = _load_rest(w_ptr, here, here == 0, D, HALF, REST) + offset
        _store_rest(y_ptr, y_rows, live, _scale(rest, rstd, w, dtype, weight, LLAMA), D, HALF, REST)


_NUMBERS = [
    "R", "T", "eps", "offset", "cos_b", "cos_t", "sin_b", "sin_t",
    "xq_b", "xq_n", "xq_t", "yq_b", "yq_n", "yq_t", "xk_b", "xk_n", "xk_t", "yk_b", "yk_n", "yk_t",
]  # fmt: skip
_MORE = ["dxq_b", "dxq_n", "dxq_t", "dxk_b", "dxk_n", "dxk_t"]


@triton.jit(do_not_specialize=_NUMBERS)
def qk_norm_rope_forward(
    xq_ptr,  # (B, NQ, T, D) in any memory order with dense last dimension
    xk_ptr,  # (B, NK, T, D)
    wq_ptr,  # (D,)
    wk_ptr,  # (D,)
    cos_ptr,  # (B or 1, T, 2 HALF)
    sin_ptr,  # (B or 1, T, 2 HALF)
    yq_ptr,  # like xq
    yk_ptr,  # like xk
    R,  # B * T
    T,
    eps,
    offset,
    cos_b, cos_t, sin_b, sin_t,  # strides by batch, head and token, in units of UNIT elements
    xq_b, xq_n, xq_t, yq_b, yq_n, yq_t,
    xk_b, xk_n, xk_t, yk_b, yk_n, yk_t,
    NQ: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,  # largest power of two up to 16 that divides all strides, so that loads can be wide
    BLOCK: tl.constexpr,
    REST: tl.constexpr,  # power of two >= D - 2 HALF, or 0
    TOKENS: tl.constexpr,
    QHEADS: tl.constexpr,
    KHEADS: tl.constexpr,
    LLAMA: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    batch, token = (rows // T).to(tl.int64) * UNIT, (rows % T).to(tl.int64) * UNIT
    q_heads = (tl.program_id(1) * QHEADS + tl.arange(0, QHEADS))[None, :, None].to(tl.int64)
    k_heads = (tl.program_id(1) * KHEADS + tl.arange(0, KHEADS))[None, :, None].to(tl.int64)
    q_live, k_live = (rows < R) & (q_heads < NQ), (rows < R) & (k_heads < NK)
    xq = batch * xq_b + token * xq_t + q_heads * (xq_n * UNIT)
    xk = batch * xk_b + token * xk_t + k_heads * (xk_n * UNIT)
    q1, q2 = load_pairs(xq_ptr, xq, q_live, False, HALF, BLOCK)
    k1, k2 = load_pairs(xk_ptr, xk, k_live, False, HALF, BLOCK)
    c1, c2 = load_pairs(cos_ptr, batch * cos_b + token * cos_t, rows < R, False, HALF, BLOCK)
    s1, s2 = load_pairs(sin_ptr, batch * sin_b + token * sin_t, rows < R, False, HALF, BLOCK)
    yq = batch * yq_b + token * yq_t + q_heads * (yq_n * UNIT)
    yk = batch * yk_b + token * yk_t + k_heads * (yk_n * UNIT)
    _forward_heads(
        q1, q2, xq_ptr, wq_ptr, yq_ptr, xq, yq, q_live, c1, c2, s1, s2, eps, offset, D, HALF, BLOCK, REST, LLAMA
    )
    _forward_heads(
        k1, k2, xk_ptr, wk_ptr, yk_ptr, xk, yk, k_live, c1, c2, s1, s2, eps, offset, D, HALF, BLOCK, REST, LLAMA
    )


# -- Backward ----------------------------------------------------------------------------------------------------------
@triton.jit
def _rounded(x, dtype: tl.constexpr, LLAMA: tl.constexpr):
    """What the forward multiplied with the weight."""
    if LLAMA:
        return x.to(dtype).to(tl.float32)
    return x


@triton.jit
def _backward_heads(
    x_ptr, w_ptr, dy_ptr, dx_ptr, x_rows, dy_rows, dx_rows, live, c1, c2, s1, s2, eps, offset, dw1, dw2, dwr,
    D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, LLAMA: tl.constexpr,
):  # fmt: skip
    """Write dx; dw1, dw2, dwr with the terms of these heads added."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x1, x2 = load_pairs(x_ptr, x_rows, live, False, HALF, BLOCK)
    dy1, dy2 = load_pairs(dy_ptr, dy_rows, live, False, HALF, BLOCK)
    g1, g2 = turn(dy1, dy2, c1, c2, s1, s2, tl.float32, False, True)
    w1, w2 = _load_weight(w_ptr, offset, HALF, BLOCK)
    rest = x1
    if REST > 0:
        rest, gr = _load_rest(x_ptr, x_rows, live, D, HALF, REST), _load_rest(dy_ptr, dy_rows, live, D, HALF, REST)
        here = tl.zeros((1, 1, 1), tl.int64)
        wr = _load_rest(w_ptr, here, here == 0, D, HALF, REST) + offset
    rstd = _rstd(x1, x2, rest, live, eps, D, REST)
    x1, x2 = x1 * rstd, x2 * rstd
    dw1, dw2 = dw1 + g1 * _rounded(x1, dtype, LLAMA), dw2 + g2 * _rounded(x2, dtype, LLAMA)
    g1, g2 = g1 * w1, g2 * w2
    dot = tl.sum(g1 * x1 + g2 * x2, axis=2)
    if REST > 0:
        rest = rest * rstd
        dwr += gr * _rounded(rest, dtype, LLAMA)
        gr = gr * wr
        dot += tl.sum(gr * rest, axis=2)
    if dx_ptr is not None:
        mean = (dot / D)[:, :, None]
        store_pairs(dx_ptr, dx_rows, live, (g1 - x1 * mean) * rstd, (g2 - x2 * mean) * rstd, False, HALF, BLOCK)
        if REST > 0:
            _store_rest(dx_ptr, dx_rows, live, (gr - rest * mean) * rstd, D, HALF, REST)
    return dw1, dw2, dwr


@triton.jit
def _store_sums(dw_ptr, dw1, dw2, dwr, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr):
    """The sums of this program over tokens and heads, as a row of dw."""
    row = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * D
    cols = tl.arange(0, BLOCK)
    tl.store(dw_ptr + row + cols, tl.sum(tl.sum(dw1, axis=0), axis=0), mask=cols < HALF)
    tl.store(dw_ptr + row + HALF + cols, tl.sum(tl.sum(dw2, axis=0), axis=0), mask=cols < HALF)
    if REST > 0:
        cols = 2 * HALF + tl.arange(0, REST)
        tl.store(dw_ptr + row + cols, tl.sum(tl.sum(dwr, axis=0), axis=0), mask=cols < D)


@triton.jit(do_not_specialize=_NUMBERS + _MORE)
def qk_norm_rope_backward(
    xq_ptr,  # (B, NQ, T, D); NQ = 0 where no gradient of q comes in
    xk_ptr,  # (B, NK, T, D)
    wq_ptr,  # (D,)
    wk_ptr,  # (D,)
    cos_ptr,  # (B or 1, T, 2 HALF)
    sin_ptr,  # (B or 1, T, 2 HALF)
    yq_ptr,  # the gradient of the result, like xq; None with NQ = 0
    yk_ptr,
    dxq_ptr,  # like xq, or None: q needs no gradient
    dxk_ptr,
    dwq_ptr,  # (programs, D) fp32 or None: partial sums, added in fixed order afterwards
    dwk_ptr,
    R,
    T,
    eps,
    offset,
    cos_b, cos_t, sin_b, sin_t,
    xq_b, xq_n, xq_t, yq_b, yq_n, yq_t,
    xk_b, xk_n, xk_t, yk_b, yk_n, yk_t,
    dxq_b, dxq_n, dxq_t, dxk_b, dxk_n, dxk_t,
    NQ: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    TOKENS: tl.constexpr,
    QHEADS: tl.constexpr,
    KHEADS: tl.constexpr,
    LLAMA: tl.constexpr,
    STAGES: tl.constexpr,  # tiles on their way through shared memory, the one at hand included
):  # fmt: skip
    q_heads = (tl.program_id(1) * QHEADS + tl.arange(0, QHEADS))[None, :, None].to(tl.int64)
    k_heads = (tl.program_id(1) * KHEADS + tl.arange(0, KHEADS))[None, :, None].to(tl.int64)
    dq1 = tl.zeros((TOKENS, QHEADS, BLOCK), tl.float32)
    dq2 = tl.zeros((TOKENS, QHEADS, BLOCK), tl.float32)
    dqr = tl.zeros((TOKENS, QHEADS, REST if REST > 0 else 1), tl.float32)
    dk1 = tl.zeros((TOKENS, KHEADS, BLOCK), tl.float32)
    dk2 = tl.zeros((TOKENS, KHEADS, BLOCK), tl.float32)
    dkr = tl.zeros((TOKENS, KHEADS, REST if REST > 0 else 1), tl.float32)
    for block in tl.range(tl.program_id(0), tl.cdiv(R, TOKENS), tl.num_programs(0), num_stages=STAGES):
        rows = (block * TOKENS + tl.arange(0, TOKENS))[:, None, None]
        batch, token = (rows // T).to(tl.int64) * UNIT, (rows % T).to(tl.int64) * UNIT
        c1, c2 = load_pairs(cos_ptr, batch * cos_b + token * cos_t, rows < R, False, HALF, BLOCK)
        s1, s2 = load_pairs(sin_ptr, batch * sin_b + token * sin_t, rows < R, False, HALF, BLOCK)
        if NQ > 0:
            xq = batch * xq_b + token * xq_t + q_heads * (xq_n * UNIT)
            yq = batch * yq_b + token * yq_t + q_heads * (yq_n * UNIT)
            dxq = batch * dxq_b + token * dxq_t + q_heads * (dxq_n * UNIT)
            dq1, dq2, dqr = _backward_heads(
                xq_ptr, wq_ptr, yq_ptr, dxq_ptr, xq, yq, dxq, (rows < R) & (q_heads < NQ), c1, c2, s1, s2, eps, offset,
                dq1, dq2, dqr, D, HALF, BLOCK, REST, LLAMA,
            )  # fmt: skip
        if NK > 0:
            xk = batch * xk_b + token * xk_t + k_heads * (xk_n * UNIT)
            yk = batch * yk_b + token * yk_t + k_heads * (yk_n * UNIT)
            dxk = batch * dxk_b + token * dxk_t + k_heads * (dxk_n * UNIT)
            dk1, dk2, dkr = _backward_heads(
                xk_ptr, wk_ptr, yk_ptr, dxk_ptr, xk, yk, dxk, (rows < R) & (k_heads < NK), c1, c2, s1, s2, eps, offset,
                dk1, dk2, dkr, D, HALF, BLOCK, REST, LLAMA,
            )  # fmt: skip
    if dwq_ptr is not None:
        _store_sums(dwq_ptr, dq1, dq2, dqr, D, HALF, BLOCK, REST)
    if dwk_ptr is not None:
        _store_sums(dwk_ptr, dk1, dk2, dkr, D, HALF, BLOCK, REST)
