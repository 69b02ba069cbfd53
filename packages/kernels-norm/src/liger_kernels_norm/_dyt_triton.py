"""Triton kernels of dyt: tiles of rows and columns. The backward adds up the parameters' gradients in registers."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger._math_triton import tanh
from liger._partials_triton import add_partials
from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings

TILE = 2048  # elements of a tile


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["R"])
def _forward(
    x_ptr,  # (R, H)
    alpha_ptr,  # one element
    w_ptr,  # (H,)
    b_ptr,  # (H,) or None
    y_ptr,  # (R, H)
    R,
    H: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
):
    across = tl.cdiv(H, COLS)  # column blocks of the same rows are neighbours
    rows = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
    mask = (rows < R)[:, None] & (cols < H)[None, :]
    at = rows[:, None] * H + cols[None, :]
    alpha = tl.load(alpha_ptr).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    t, _ = tanh(alpha * x.to(tl.float32), x.dtype == tl.float32)
    y = t * tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    if b_ptr is not None:
        y += tl.load(b_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, H)
    x_ptr,  # (R, H)
    alpha_ptr,  # one element
    w_ptr,  # (H,)
    dx_ptr,  # (R, H) or None: x needs no gradient
    dalpha_ptr,  # (programs,) fp32 or None: partial sums, as below
    dw_ptr,  # (programs along rows, H) fp32 or None
    db_ptr,  # (programs along rows, H) fp32 or None
    R,
    H: tl.constexpr,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    across = tl.cdiv(H, COLS)
    cols = tl.program_id(0) % across * COLS + tl.arange(0, COLS)
    alpha = tl.load(alpha_ptr).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)[None, :]
    dalpha = tl.zeros((ROWS, COLS), tl.float32)
    dw = tl.zeros((ROWS, COLS), tl.float32)
    db = tl.zeros((ROWS, COLS), tl.float32)
    split = tl.program_id(0) // across
    for tile in tl.range(split, tl.cdiv(R, ROWS), tl.num_programs(0) // across, num_stages=STAGES):
        rows = tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS)
        mask = (rows < R)[:, None] & (cols < H)[None, :]
        at = rows[:, None] * H + cols[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        t, slope = tanh(alpha * x, x_ptr.dtype.element_ty == tl.float32)
        inner = dy * w * slope
        if dx_ptr is not None:
            tl.store(dx_ptr + at, (alpha * inner).to(dx_ptr.dtype.element_ty), mask=mask)
        dalpha += x * inner
        dw += dy * t
        db += dy
    at = split.to(tl.int64) * H + cols
    if dalpha_ptr is not None:
        tl.store(dalpha_ptr + tl.program_id(0), tl.sum(dalpha))
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(dw, axis=0), mask=cols < H)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(db, axis=0), mask=cols < H)


# -- How much a program does -------------------------------------------------------------------------------------------
@settings(COLS=(128, 256, 512, 1024, 2048), ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8))
def _forward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward``; 4 warps: 16 values a thread, two 16-byte loads in bf16."""
    cols = min(1024, next_power_of_2(H))
    return {"COLS": cols, "ROWS": TILE // cols, "num_warps": 4}


@settings(COLS=(128, 256, 512, 1024), ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8), STAGES=(1, 2, 3), PROGRAMS=(2, 4, 6, 8))
def _backward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``, and ``PROGRAMS`` per multiprocessor.

    4 programs, each with two tiles on their way: 64 KB of them; with one it took 1.3 times as long on an H200. 4 warps
    rather than 8: 215 us instead of 262.
    """
    cols = min(512, next_power_of_2(H))
    return {"COLS": cols, "ROWS": TILE // cols, "num_warps": 4, "STAGES": 3, "PROGRAMS": 4}


# -- Launches ----------------------------------------------------------------------------------------------------------


def _forward_fake(
    x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return torch.empty_like(x)


@private_op("dyt_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x (R, H) contiguous -> y (R, H)."""
    y = torch.empty_like(x)
    R, H = x.shape
    chosen = _forward_settings(H, x.element_size(), gpu(x.device))
    grid = (ceil_div(R, chosen["ROWS"]) * ceil_div(H, chosen["COLS"]),)
    launch(_forward, grid, (x, alpha, weight, bias, y), (R,), H=H, **chosen)
    return y


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    alpha: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs: list[bool],
) -> list[torch.Tensor]:
    inputs = (x, alpha, weight, bias)
    return [
        torch.empty_like(t) if need and t is not None else x.new_empty(0) for t, need in zip(inputs, needs, strict=True)
    ]


@private_op("dyt_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    alpha: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs: list[bool],
) -> list[torch.Tensor]:
    """dy, x (R, H) contiguous -> the four gradients; an empty tensor for what is not needed."""
    R, H = x.shape
    made = _backward_fake(dy, x, alpha, weight, bias, needs)
    if H == 0:
        return [t.zero_() for t in made]
    device = gpu(x.device)
    chosen = _backward_settings(H, x.element_size(), device).copy()
    across = ceil_div(H, chosen["COLS"])
    splits = min(ceil_div(R, chosen["ROWS"]), ceil_div(chosen.pop("PROGRAMS") * device.processors, across))
    shapes = ((splits * across, 1), (splits, H), (splits, H))
    parts = [x.new_empty(s, dtype=torch.float32) if need else None for s, need in zip(shapes, needs[1:], strict=True)]
    tensors = (dy, x, alpha, weight, made[0] if needs[0] else None, *parts)
    launch(_backward, (splits * across,), tensors, (R,), H=H, **chosen)
    for part, out in zip(parts, made[1:], strict=True):
        if part is not None:
            add_partials(part, out)
    return made


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _DyT(torch.autograd.Function):
    """Saves x, alpha and weight; tanh is recomputed."""

    @staticmethod
    def forward(ctx, x, alpha, weight, bias):
        rows, weight = as_rows(x), weight.contiguous()
        bias = bias if bias is None else bias.contiguous()
        y = _launch_forward(rows, alpha, weight, bias)
        ctx.save_for_backward(rows, alpha, weight, bias)
        ctx.shape = x.shape
        return y if x.dim() == 2 else y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("dyt")
        needs = list(ctx.needs_input_grad)
        dx, *rest = _launch_backward(as_rows(dy), *ctx.saved_tensors, needs)
        if needs[0] and len(ctx.shape) != 2:
            dx = dx.view(ctx.shape)
        return tuple(g if need else None for g, need in zip((dx, *rest), needs, strict=True))


def dyt_triton(x: torch.Tensor, alpha: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See ``liger_kernels_norm.dyt``."""
    return _DyT.apply(x, alpha, weight, bias)  # type: ignore[no-any-return]
