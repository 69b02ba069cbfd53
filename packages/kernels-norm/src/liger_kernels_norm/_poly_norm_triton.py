"""Triton kernels of poly_norm. Rows up to 8192 are held in registers; wider ones are read twice, then from L2."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger._partials_triton import add_partials
from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings

WIDE = 8192  # columns a program holds


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _load(ptr, rows, cols, R, H: tl.constexpr):
    """fp32 values of a tile, and where they are."""
    at = rows[:, None] * H + cols[None, :]
    mask = (rows < R)[:, None] & (cols < H)[None, :]
    return tl.load(ptr + at, mask=mask, other=0.0).to(tl.float32), at, mask


@triton.jit
def _scalars(w_ptr):
    """The weights of x, x^2 and x^3: the last one in memory comes first."""
    w1 = tl.load(w_ptr + 2).to(tl.float32)
    w2 = tl.load(w_ptr + 1).to(tl.float32)
    return w1, w2, tl.load(w_ptr).to(tl.float32)


@triton.jit
def _add_squares(x, s1, s2, s3):
    square = x * x
    fourth = square * square
    return s1 + square, s2 + fourth, s3 + fourth * square


@triton.jit
def _store_rstd(rstd_ptr, rows, R, s1, s2, s3, H: tl.constexpr, eps):
    """1 / sqrt(mean + eps) of the three sums of squares: (rows,) each."""
    r1 = tl.rsqrt(tl.sum(s1, axis=1) / H + eps)
    r2 = tl.rsqrt(tl.sum(s2, axis=1) / H + eps)
    r3 = tl.rsqrt(tl.sum(s3, axis=1) / H + eps)
    tl.store(rstd_ptr + rows * 3, r1, mask=rows < R)
    tl.store(rstd_ptr + rows * 3 + 1, r2, mask=rows < R)
    tl.store(rstd_ptr + rows * 3 + 2, r3, mask=rows < R)
    return r1[:, None], r2[:, None], r3[:, None]


@triton.jit
def _load_rstd(rstd_ptr, rows, R):
    r1 = tl.load(rstd_ptr + rows * 3, mask=rows < R, other=0.0)
    r2 = tl.load(rstd_ptr + rows * 3 + 1, mask=rows < R, other=0.0)
    r3 = tl.load(rstd_ptr + rows * 3 + 2, mask=rows < R, other=0.0)
    return r1[:, None], r2[:, None], r3[:, None]


@triton.jit
def _normalised(x, r1, r2, r3):
    """n(x), n(x^2), n(x^3)."""
    return x * r1, x * x * r2, x * x * x * r3


@triton.jit
def _store_y(y_ptr, at, mask, x, r1, r2, r3, w_ptr, b_ptr):
    w1, w2, w3 = _scalars(w_ptr)
    n1, n2, n3 = _normalised(x, r1, r2, r3)
    y = w3 * n3 + w2 * n2 + w1 * n1 + tl.load(b_ptr).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "eps"])
def _forward(
    x_ptr,  # (R, H)
    w_ptr,  # (3,)
    b_ptr,  # one element
    y_ptr,  # (R, H)
    rstd_ptr,  # (R, 3) fp32: of x, x^2, x^3, kept for the backward
    R,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two: at least H, or columns per step of a wider row
    ROWS: tl.constexpr,  # rows of one program
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    s1 = tl.zeros((ROWS, BLOCK), tl.float32)
    s2, s3 = s1, s1
    if H <= BLOCK:
        x, at, mask = _load(x_ptr, rows, cols, R, H)
        s1, s2, s3 = _add_squares(x, s1, s2, s3)
        r1, r2, r3 = _store_rstd(rstd_ptr, rows, R, s1, s2, s3, H, eps)
        _store_y(y_ptr, at, mask, x, r1, r2, r3, w_ptr, b_ptr)
    else:
        for start in range(0, H, BLOCK):
            x, at, mask = _load(x_ptr, rows, start + cols, R, H)
            s1, s2, s3 = _add_squares(x, s1, s2, s3)
        r1, r2, r3 = _store_rstd(rstd_ptr, rows, R, s1, s2, s3, H, eps)
        for start in range(0, H, BLOCK):
            x, at, mask = _load(x_ptr, rows, start + cols, R, H)
            _store_y(y_ptr, at, mask, x, r1, r2, r3, w_ptr, b_ptr)


@triton.jit
def _store_dx(dx_ptr, at, mask, dy, x, m1, m2, m3, r1, r2, r3, w_ptr):
    w1, w2, w3 = _scalars(w_ptr)
    n1, n2, n3 = _normalised(x, r1, r2, r3)
    dx = w1 * r1 * (dy - n1 * m1) + 2.0 * w2 * r2 * x * (dy - n2 * m2) + 3.0 * w3 * (r3 * x * x) * (dy - n3 * m3)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    w_ptr,  # (3,)
    rstd_ptr,  # (R, 3) fp32
    dx_ptr,  # (R, H) or None: x needs no gradient
    dw_ptr,  # (programs, 3) fp32 or None: partial sums, added in fixed order afterwards
    db_ptr,  # (programs,) fp32 or None
    R,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = tl.arange(0, BLOCK)
    total0 = tl.zeros((ROWS,), tl.float32)
    total1, total2, total3 = total0, total0, total0
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0), num_stages=STAGES):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        r1, r2, r3 = _load_rstd(rstd_ptr, rows, R)
        if H <= BLOCK:
            x, at, mask = _load(x_ptr, rows, cols, R, H)
            dy, at, mask = _load(dy_ptr, rows, cols, R, H)
            n1, n2, n3 = _normalised(x, r1, r2, r3)
            s0, s1, s2, s3 = dy, dy * n1, dy * n2, dy * n3
        else:
            s0 = tl.zeros((ROWS, BLOCK), tl.float32)
            s1, s2, s3 = s0, s0, s0
            for start in range(0, H, BLOCK):
                x, at, mask = _load(x_ptr, rows, start + cols, R, H)
                dy, at, mask = _load(dy_ptr, rows, start + cols, R, H)
                n1, n2, n3 = _normalised(x, r1, r2, r3)
                s0, s1, s2, s3 = s0 + dy, s1 + dy * n1, s2 + dy * n2, s3 + dy * n3
        s1, s2, s3 = tl.sum(s1, axis=1), tl.sum(s2, axis=1), tl.sum(s3, axis=1)
        m1, m2, m3 = (s1 / H)[:, None], (s2 / H)[:, None], (s3 / H)[:, None]
        total0 += tl.sum(s0, axis=1)
        total1, total2, total3 = total1 + s1, total2 + s2, total3 + s3
        if dx_ptr is not None:
            if H <= BLOCK:
                _store_dx(dx_ptr, at, mask, dy, x, m1, m2, m3, r1, r2, r3, w_ptr)
            else:
                for start in range(0, H, BLOCK):
                    x, at, mask = _load(x_ptr, rows, start + cols, R, H)
                    dy, at, mask = _load(dy_ptr, rows, start + cols, R, H)
                    _store_dx(dx_ptr, at, mask, dy, x, m1, m2, m3, r1, r2, r3, w_ptr)
    if dw_ptr is not None:
        tl.store(dw_ptr + tl.program_id(0) * 3, tl.sum(total3))
        tl.store(dw_ptr + tl.program_id(0) * 3 + 1, tl.sum(total2))
        tl.store(dw_ptr + tl.program_id(0) * 3 + 2, tl.sum(total1))
    if db_ptr is not None:
        tl.store(db_ptr + tl.program_id(0), tl.sum(total0))


# -- How much a program does -------------------------------------------------------------------------------------------
def _tile(H: int) -> dict[str, int]:
    """2048 elements a program for narrow rows, 16 values of a tensor a thread for wide ones."""
    if H > WIDE:  # 8 values a thread: with 16, or with more threads, the loops spill on some GPUs
        return {"BLOCK": WIDE // 4, "ROWS": 1, "num_warps": 8}
    block = next_power_of_2(H)
    rows = max(1, 2048 // block)
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(16, max(4, block * rows // 512))}


@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16))
def _forward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward``."""
    return _tile(H)


@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16), STAGES=(1, 2, 3), PROGRAMS=(1, 2, 4, 6, 8))
def _backward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``, and ``PROGRAMS`` per multiprocessor.

    A next tile's loads are on the way meanwhile; in wide rows the inner loops keep enough of them there.
    """
    return {**_tile(H), "STAGES": 2 if H <= WIDE else 1, "PROGRAMS": 4}


# -- Launches ----------------------------------------------------------------------------------------------------------
def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty((x.shape[0], 3), dtype=torch.float32)


@private_op("poly_norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (R, H) contiguous -> y (R, H), rstd (R, 3) fp32."""
    R, H = x.shape
    y, rstd = _forward_fake(x, weight, bias, eps)
    chosen = _forward_settings(H, x.element_size(), gpu(x.device))
    launch(_forward, (ceil_div(R, chosen["ROWS"]),), (x, weight, bias, y, rstd), (R, eps), H=H, **chosen)
    return y, rstd


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rstd: torch.Tensor,
    needs: list[bool],
) -> list[torch.Tensor]:
    inputs = (x, weight, bias)
    return [torch.empty_like(t) if need else x.new_empty(0) for t, need in zip(inputs, needs, strict=True)]


@private_op("poly_norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rstd: torch.Tensor,
    needs: list[bool],
) -> list[torch.Tensor]:
    """dy, x (R, H) contiguous -> dx (R, H), dw (3,), db like bias; an empty tensor for what is not needed."""
    R, H = x.shape
    made = _backward_fake(dy, x, weight, bias, rstd, needs)
    if H == 0:
        return [t.zero_() for t in made]
    device = gpu(x.device)
    chosen = _backward_settings(H, x.element_size(), device).copy()
    programs = min(ceil_div(R, chosen["ROWS"]), chosen.pop("PROGRAMS") * device.processors)
    parts = [
        x.new_empty((programs, n), dtype=torch.float32) if need else None
        for n, need in zip((3, 1), needs[1:], strict=True)
    ]
    tensors = (dy, x, weight, rstd, made[0] if needs[0] else None, *parts)
    launch(_backward, (programs,), tensors, (R,), H=H, **chosen)
    for part, out in zip(parts, made[1:], strict=True):
        if part is not None:
            add_partials(part, out)
    return made


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _PolyNorm(torch.autograd.Function):
    """Saves x, weight and the three rstd of each row; the powers are recomputed."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rows, weight = as_rows(x), weight.contiguous()
        y, rstd = _launch_forward(rows, weight, bias, eps)
        ctx.save_for_backward(rows, weight, bias, rstd)
        ctx.shape = x.shape
        return y if x.dim() == 2 else y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("poly_norm")
        needs = list(ctx.needs_input_grad[:3])
        dx, *rest = _launch_backward(as_rows(dy), *ctx.saved_tensors, needs)
        if needs[0] and len(ctx.shape) != 2:
            dx = dx.view(ctx.shape)
        return *(g if need else None for g, need in zip((dx, *rest), needs, strict=True)), None


def poly_norm_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float) -> torch.Tensor:
    """See ``liger_kernels_norm.poly_norm``."""
    return _PolyNorm.apply(x, weight, bias, eps)  # type: ignore[no-any-return]
