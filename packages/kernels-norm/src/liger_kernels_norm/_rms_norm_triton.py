"""Triton kernels of rms_norm. Rows up to 8192 are held in registers; wider ones are read twice, then from L2."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import as_rows, ceil_div, launch, next_power_of_2, private_op, processors, refuse_second_derivative

CAST_MODE = {"llama": 0, "fp32-weight": 1, "gemma": 1, "none": 2}
NO_CAST = tl.constexpr(2)
WIDE = 8192  # columns a program holds; beyond it the backward's x, dy, w and dw no longer fit into 255 registers x 512


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _rstd(sum_of_squares, H: tl.constexpr, eps, CAST: tl.constexpr, dtype: tl.constexpr):
    mean = sum_of_squares / H
    if CAST == NO_CAST:
        mean = mean.to(dtype).to(tl.float32)
        shifted = (mean + eps).to(dtype).to(tl.float32)
        return tl.rsqrt(shifted).to(dtype).to(tl.float32)
    return tl.rsqrt(mean + eps)


@triton.jit
def _square(x, CAST: tl.constexpr, dtype: tl.constexpr):
    if CAST == NO_CAST:
        return (x * x).to(dtype).to(tl.float32)
    return x * x


@triton.jit
def _normalise(x, rstd, CAST: tl.constexpr, dtype: tl.constexpr):
    xhat = x * rstd
    if CAST == 1:
        return xhat
    return xhat.to(dtype).to(tl.float32)


@triton.jit(do_not_specialize=["R", "eps", "offset"])
def _forward(
    x_ptr,  # (R, H)
    w_ptr,  # (H,) or None
    y_ptr,  # (R, H)
    rstd_ptr,  # (R,) fp32, kept for the backward
    R,
    eps,
    offset,
    H: tl.constexpr,
    BLOCK: tl.constexpr,  # power of two >= H
    ROWS: tl.constexpr,  # rows of one program
    CAST: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    mask = (rows < R)[:, None] & (cols < H)[None, :]
    at = rows[:, None] * H + cols[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    rstd = _rstd(tl.sum(_square(x, CAST, dtype), axis=1), H, eps, CAST, dtype)
    tl.store(rstd_ptr + rows, rstd, mask=rows < R)
    y = _normalise(x, rstd[:, None], CAST, dtype)
    if w_ptr is not None:
        w = tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)
        y = y * (w + offset)[None, :]
    else:
        y = y * (1.0 + offset)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["eps", "offset"])
def _forward_wide(
    x_ptr,  # (R, H)
    w_ptr,  # (H,) or None
    y_ptr,  # (R, H)
    rstd_ptr,  # (R,) fp32
    eps,
    offset,
    H: tl.constexpr,
    BLOCK: tl.constexpr,  # columns per step
    CAST: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        total += _square(x, CAST, dtype)
    rstd = _rstd(tl.sum(total, axis=0), H, eps, CAST, dtype)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        y = _normalise(x, rstd, CAST, dtype)
        if w_ptr is not None:
            y = y * (tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32) + offset)
        else:
            y = y * (1.0 + offset)
        tl.store(y_ptr + row * H + cols, y.to(y_ptr.dtype.element_ty), mask=cols < H)


@triton.jit(do_not_specialize=["R", "offset"])
def _backward(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    w_ptr,  # (H,) or None
    rstd_ptr,  # (R,) fp32
    dx_ptr,  # (R, H) or None: x needs no gradient
    dw_ptr,  # (programs, H) fp32 or None: partial sums, added in fixed order afterwards
    R,
    offset,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CAST: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    cols = tl.arange(0, BLOCK)
    if w_ptr is not None:
        scale = tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32) + offset
    else:
        scale = tl.zeros((BLOCK,), tl.float32) + (1.0 + offset)
    dw = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0)):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        mask = (rows < R)[:, None] & (cols < H)[None, :]
        at = rows[:, None] * H + cols[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < R, other=0.0)[:, None]
        xhat = x * rstd
        if dx_ptr is not None:
            g = dy * scale[None, :]
            dx = (g - xhat * (tl.sum(g * xhat, axis=1) / H)[:, None]) * rstd
            tl.store(dx_ptr + at, dx.to(dtype), mask=mask)
        if dw_ptr is not None:
            dw += dy * _normalise(x, rstd, CAST, dtype)
    if dw_ptr is not None:
        at = tl.program_id(0).to(tl.int64) * H + cols
        tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=cols < H)


@triton.jit(do_not_specialize=["offset"])
def _backward_dx_wide(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    w_ptr,  # (H,) or None
    rstd_ptr,  # (R,) fp32
    dx_ptr,  # (R, H)
    offset,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstd_ptr + row)
    dot = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        if w_ptr is not None:
            g = g * (tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32) + offset)
        else:
            g = g * (1.0 + offset)
        dot += g * (x * rstd)
    mean = tl.sum(dot, axis=0) / H
    for start in range(0, H, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
        if w_ptr is not None:
            g = g * (tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32) + offset)
        else:
            g = g * (1.0 + offset)
        dx = (g - x * rstd * mean) * rstd
        tl.store(dx_ptr + row * H + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < H)


@triton.jit(do_not_specialize=["R"])
def _backward_dw_wide(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    rstd_ptr,  # (R,) fp32
    dw_ptr,  # (programs along rows, H) fp32
    R,
    H: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
    CAST: tl.constexpr,
):
    dtype = x_ptr.dtype.element_ty
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    dw = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(R, ROWS), tl.num_programs(1)):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        mask = (rows < R)[:, None] & (cols < H)[None, :]
        at = rows[:, None] * H + cols[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < R, other=0.0)[:, None]
        dw += dy * _normalise(x, rstd, CAST, dtype)
    at = tl.program_id(1).to(tl.int64) * H + cols
    tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=cols < H)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _tile(H: int) -> tuple[int, int, int]:
    """BLOCK, ROWS and warps: 2048 elements per program for narrow rows, 16 values per thread for wide ones."""
    block = next_power_of_2(H)
    rows = max(1, 2048 // block)
    return block, rows, min(16, max(4, block * rows // 512))


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, cast: str, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = x.dtype
    if weight is not None and cast in ("llama", "none"):
        dtype = torch.promote_types(dtype, weight.dtype)
    return torch.empty(x.shape, dtype=dtype, device=x.device), x.new_empty(x.shape[0], dtype=torch.float32)


@private_op("rms_norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, cast: str, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (R, H) contiguous -> y (R, H), rstd (R,) fp32."""
    R, H = x.shape
    y, rstd = _forward_fake(x, weight, eps, cast, offset)
    if H > 4 * WIDE:
        launch(
            _forward_wide,
            (R,),
            (x, weight, y, rstd),
            (eps, offset),
            num_warps=16,
            H=H,
            BLOCK=WIDE // 2,  # 8 values a thread: with 16 an fp32 weight beside bf16 rows spills
            CAST=CAST_MODE[cast],
        )
        return y, rstd
    block, rows, warps = _tile(H)
    grid = (ceil_div(R, rows),)
    consts: dict[str, Any] = {"H": H, "BLOCK": block, "ROWS": rows, "CAST": CAST_MODE[cast]}
    launch(_forward, grid, (x, weight, y, rstd), (R, eps, offset), num_warps=warps, **consts)
    return y, rstd


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    cast: str,
    offset: float,
    need_dx: bool,
    need_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    dx = torch.empty_like(x) if need_dx else x.new_empty(0)
    return dx, torch.empty_like(weight) if need_dw and weight is not None else x.new_empty(0)


@private_op("rms_norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    cast: str,
    offset: float,
    need_dx: bool,
    need_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dy, x (R, H) contiguous -> dx (R, H), dw (H,); an empty tensor for what is not needed."""
    R, H = x.shape
    dx = torch.empty_like(x) if need_dx else None
    mode = CAST_MODE[cast]
    if H <= WIDE:
        block, rows, warps = _tile(H)
        programs = min(ceil_div(R, rows), 4 * processors(x.device))  # 4 per multiprocessor hide the loads
        parts = x.new_empty((programs, H), dtype=torch.float32) if need_dw else None
        consts: dict[str, Any] = {"H": H, "BLOCK": block, "ROWS": rows, "CAST": mode}
        launch(_backward, (programs,), (dy, x, weight, rstd, dx, parts), (R, offset), num_warps=warps, **consts)
    else:
        if dx is not None:
            tensors = (dy, x, weight, rstd, dx)
            launch(_backward_dx_wide, (R,), tensors, (offset,), num_warps=16, H=H, BLOCK=WIDE)
        splits = min(ceil_div(R, 8), 16)
        parts = x.new_empty((splits, H), dtype=torch.float32) if need_dw else None
        if parts is not None:
            consts = {"H": H, "COLS": 256, "ROWS": 8, "CAST": mode}
            launch(_backward_dw_wide, (ceil_div(H, 256), splits), (dy, x, rstd, parts), (R,), num_warps=4, **consts)
    dw = parts.sum(0).to(weight.dtype) if parts is not None and weight is not None else x.new_empty(0)
    return x.new_empty(0) if dx is None else dx, dw


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _RMSNorm(torch.autograd.Function):
    """Saves x, weight and rstd; xhat is recomputed, which costs one multiplication instead of R x H of memory."""

    @staticmethod
    def forward(ctx, x, weight, eps, cast, offset):
        flat = as_rows(x)
        weight = weight if weight is None else weight.contiguous()
        y, rstd = _launch_forward(flat, weight, eps, cast, offset)
        ctx.save_for_backward(flat, weight, rstd)
        ctx.cast, ctx.offset, ctx.shape = cast, offset, x.shape
        return y if x.dim() == 2 else y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("rms_norm")
        x, weight, rstd = ctx.saved_tensors
        need_dx, need_dw = ctx.needs_input_grad[:2]
        dx, dw = _launch_backward(as_rows(dy), x, weight, rstd, ctx.cast, ctx.offset, need_dx, need_dw)
        if need_dx and len(ctx.shape) != 2:
            dx = dx.view(ctx.shape)
        return dx if need_dx else None, dw if need_dw else None, None, None, None


def rms_norm_triton(
    x: torch.Tensor, weight: torch.Tensor | None, *, eps: float, cast: str, offset: float
) -> torch.Tensor:
    """See ``liger_kernels_norm.rms_norm``."""
    return _RMSNorm.apply(x, weight, eps, cast, offset)  # type: ignore[no-any-return]
