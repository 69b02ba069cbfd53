"""Triton kernels of sparsemax: rows that fit stay in registers, wider ones are read again for each step.

With z = x - max x the threshold tau is in [-1, 0). sum(max(z - tau, 0)) - 1 is piecewise linear, falls and is convex:
from -1 Newton's method rises to the root without passing it, and ends there, after about ten steps in practice. It
stops when tau no longer rises in fp32; the last step, smaller than tau's resolution, is kept apart, which leaves
y = z - tau - step accurate also where all y are small.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings

HELD = 8192  # columns up to which a row is held in registers
TILE = 2048  # elements of one program of narrow rows


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _above(z, tau):
    """max(z - tau, 0) and whether z is above; nan counts as above, and so makes the row nan."""
    outside = z <= tau
    return tl.where(outside, 0.0, z - tau), tl.where(outside, 0.0, 1.0)


@triton.jit
def _output(z, tau, step, dtype: tl.constexpr):
    y = (z - tau) - step
    y = tl.where(y <= 0.0, 0.0, y)  # not tl.maximum, which drops nan
    if dtype == tl.float16:
        y = tl.where((y > 0.0) & (y < 5.9604645e-08), 5.9604645e-08, y)  # rounded to 0 it would leave the support
    return y.to(dtype)


@triton.jit(do_not_specialize=["R"])
def _forward(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < R) & (cols < V)
    x = tl.load(x_ptr + rows * V + cols, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.where(rows < R, tl.max(x, axis=1, keep_dims=True), 0.0)
    z = tl.where(cols < V, x - top, -float("inf"))
    tau = tl.full((ROWS, 1), -1.0, tl.float32)
    excess, inside = _above(z, tau)
    step = (tl.sum(excess, axis=1, keep_dims=True) - 1.0) / tl.sum(inside, axis=1, keep_dims=True)
    rising = (tau + step > tau) & (rows < R)
    while tl.max(tl.max(rising.to(tl.int32), axis=1), axis=0) > 0:
        tau = tl.where(rising, tau + step, tau)
        excess, inside = _above(z, tau)
        step = (tl.sum(excess, axis=1, keep_dims=True) - 1.0) / tl.sum(inside, axis=1, keep_dims=True)
        rising = (tau + step > tau) & (rows < R)
    tl.store(y_ptr + rows * V + cols, _output(z, tau, step, y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _step_wide(row_ptr, top, tau, V: tl.constexpr, BLOCK: tl.constexpr):
    """Newton's step at tau, in one pass over the row."""
    total = 0.0
    count = 0.0
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
        excess, inside = _above(tl.where(cols < V, x - top, -float("inf")), tau)
        total += tl.sum(excess, axis=0)
        count += tl.sum(inside, axis=0)
    return (total - 1.0) / count


@triton.jit
def _forward_wide(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0) * tl.full((), V, tl.int64)
    top = -float("inf")
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(x, axis=0))
    tau = -1.0
    step = _step_wide(x_ptr + start, top, tau, V, BLOCK)
    while tau + step > tau:
        tau += step
        step = _step_wide(x_ptr + start, top, tau, V, BLOCK)
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
        tl.store(y_ptr + start + cols, _output(x - top, tau, step, y_ptr.dtype.element_ty), mask=cols < V)


@triton.jit
def _inside(y):
    """Whether y is in the support, or nan: with 0 * y in the sum of dy all of its row's gradient is nan then."""
    return (y > 0.0) | (y != y)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V)
    dx_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < R) & (cols < V)
    y = tl.load(y_ptr + rows * V + cols, mask=mask, other=0.0).to(tl.float32)
    inside = _inside(y)
    dy = tl.load(dy_ptr + rows * V + cols, mask=mask, other=0.0).to(tl.float32) + 0.0 * y
    count = tl.maximum(tl.sum(inside.to(tl.float32), axis=1, keep_dims=True), 1.0)
    mean = tl.sum(tl.where(inside, dy, 0.0), axis=1, keep_dims=True) / count
    dx = tl.where(inside, dy - mean, 0.0)
    tl.store(dx_ptr + rows * V + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_wide(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V)
    dx_ptr,  # (R, V)
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0) * tl.full((), V, tl.int64)
    total = 0.0
    count = 0.0
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
        inside = _inside(y)
        dy = tl.load(dy_ptr + start + cols, mask=inside, other=0.0).to(tl.float32)  # the few that count
        total += tl.sum(dy + 0.0 * y, axis=0)
        count += tl.sum(inside.to(tl.float32), axis=0)
    mean = total / tl.maximum(count, 1.0)
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        inside = _inside(tl.load(y_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32))
        dy = tl.load(dy_ptr + start + cols, mask=inside, other=0.0).to(tl.float32)
        dx = tl.where(inside, dy - mean, 0.0)
        tl.store(dx_ptr + start + cols, dx.to(dx_ptr.dtype.element_ty), mask=cols < V)


# -- How much a program does -------------------------------------------------------------------------------------------
@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16, 32))
def _held_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of a row that is held: 16 values a thread."""
    block = next_power_of_2(V)
    return {"BLOCK": block, "ROWS": max(1, TILE // block), "num_warps": max(4, block // 512)}


@settings(BLOCK=(1024, 2048, 4096, 8192), num_warps=(8, 16, 32))
def _wide_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of a row that is read several times: 8 values a thread, with 16 it spills."""
    return {"BLOCK": 4096, "num_warps": 16}


# -- Launches ----------------------------------------------------------------------------------------------------------
def _launch(held: Any, wide: Any, tensors: tuple[torch.Tensor, ...], V: int) -> None:
    R = tensors[0].numel() // V
    asked = V, tensors[0].element_size(), len(tensors) - 1, gpu(tensors[0].device)
    if V > HELD:
        launch(wide, (R,), tensors, (), V=V, **_wide_settings(*asked))
        return
    chosen = _held_settings(*asked)
    launch(held, (ceil_div(R, chosen["ROWS"]),), tensors, (R,), V=V, **chosen)


def _forward_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@private_op("sparsemax_forward", _forward_fake)
def _launch_forward(x: torch.Tensor) -> torch.Tensor:
    """x (..., V) of any strides -> y (..., V) contiguous."""
    y = _forward_fake(x)
    _launch(_forward, _forward_wide, (as_rows(x), y), x.shape[-1])
    return y


def _backward_fake(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _forward_fake(y)


@private_op("sparsemax_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """-> dx (..., V) contiguous."""
    dx = _forward_fake(y)
    _launch(_backward, _backward_wide, (as_rows(dy), y, dx), y.shape[-1])
    return dx


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Sparsemax(torch.autograd.Function):
    """Saves the output alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = _launch_forward(x)
        ctx.save_for_backward(y)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        refuse_second_derivative("sparsemax")
        return _launch_backward(dy, *ctx.saved_tensors)  # type: ignore[no-any-return]


def sparsemax_triton(x: torch.Tensor) -> torch.Tensor:
    """See ``liger_kernels_act.sparsemax``."""
    return _Sparsemax.apply(x)  # type: ignore[no-any-return, no-untyped-call]
