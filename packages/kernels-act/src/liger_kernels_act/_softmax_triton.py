"""Triton kernels of softmax and log_softmax: rows that fit stay in registers, wider ones are read a second time."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings

HELD = 16384  # columns up to which a row is held in registers
ALONE = 65536  # columns above which a row has a multiprocessor for itself
TILE = 4096  # elements of one program of narrow rows: 8 KB in bf16
VALUES = 32  # 16-bit values of a row that a thread holds, or reads in one step: four 16-byte loads


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _columns(V: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, inside):
    """COUNT columns from FIRST on, and where there are such in rows that are ``inside``."""
    cols = (FIRST + tl.arange(0, COUNT))[None, :]
    return cols, inside & (cols < V)


@triton.jit
def _result(z, total, LOG: tl.constexpr):
    """Softmax, or its logarithm, of z = x - max x."""
    if LOG:
        return z - tl.log(total)
    return tl.exp(z) / total


@triton.jit
def _weighted(y, dy, LOG: tl.constexpr):
    """The terms of the sum in the gradient."""
    if LOG:
        return dy
    return y * dy


@triton.jit
def _slope(y, dy, total, LOG: tl.constexpr):
    """dx, where total is the sum of ``_weighted``."""
    if LOG:
        return dy - tl.exp(y) * total
    return y * (dy - total)


@triton.jit(do_not_specialize=["R"])
def _forward(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    HEAD: tl.constexpr,  # a row is HEAD columns and up to TAIL more: a power of two alone could be twice the row
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    LOG: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    x_ptr += rows * V
    y_ptr += rows * V
    cols, mask = _columns(V, 0, HEAD, rows < R)
    x = tl.load(x_ptr + cols, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=1, keep_dims=True)
    if TAIL:
        tail_cols, tail_mask = _columns(V, HEAD, TAIL, rows < R)
        tail = tl.load(x_ptr + tail_cols, mask=tail_mask, other=-float("inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(tail, axis=1, keep_dims=True))
        tail -= top
    x -= top
    total = tl.sum(tl.exp(x), axis=1, keep_dims=True)
    if TAIL:
        total += tl.sum(tl.exp(tail), axis=1, keep_dims=True)
        tl.store(y_ptr + tail_cols, _result(tail, total, LOG).to(y_ptr.dtype.element_ty), mask=tail_mask)
    tl.store(y_ptr + cols, _result(x, total, LOG).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "blocks"])
def _forward_wide(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    R,
    blocks,  # ceil(V / BLOCK); as a constant it makes LLVM unroll the loops until they spill
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    LOG: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        top = -float("inf")
        total = 0.0
        for i in range(blocks):
            cols = i * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + start + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, axis=0))
            base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
            total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), axis=0)
            top = higher
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
            tl.store(y_ptr + start + cols, _result(x - top, total, LOG).to(y_ptr.dtype.element_ty), mask=cols < V)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V)
    dx_ptr,  # (R, V)
    R,
    V: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    LOG: tl.constexpr,
):
    rows = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    dy_ptr += rows * V
    y_ptr += rows * V
    dx_ptr += rows * V
    cols, mask = _columns(V, 0, HEAD, rows < R)
    dy = tl.load(dy_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    total = tl.sum(_weighted(y, dy, LOG), axis=1, keep_dims=True)
    if TAIL:
        tail_cols, tail_mask = _columns(V, HEAD, TAIL, rows < R)
        tail_dy = tl.load(dy_ptr + tail_cols, mask=tail_mask, other=0.0).to(tl.float32)
        tail_y = tl.load(y_ptr + tail_cols, mask=tail_mask, other=0.0).to(tl.float32)
        total += tl.sum(_weighted(tail_y, tail_dy, LOG), axis=1, keep_dims=True)
        tail = _slope(tail_y, tail_dy, total, LOG)
        tl.store(dx_ptr + tail_cols, tail.to(dx_ptr.dtype.element_ty), mask=tail_mask)
    tl.store(dx_ptr + cols, _slope(y, dy, total, LOG).to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "blocks"])
def _backward_wide(
    dy_ptr,  # (R, V)
    y_ptr,  # (R, V); for the logarithm it is not read in the first pass
    dx_ptr,  # (R, V)
    R,
    blocks,  # ceil(V / BLOCK); as a constant it makes LLVM unroll the loops until they spill
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    LOG: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        total = 0.0
        for i in range(blocks):
            cols = i * BLOCK + tl.arange(0, BLOCK)
            dy = tl.load(dy_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
            total += tl.sum(_weighted(y, dy, LOG), axis=0)
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            dy = tl.load(dy_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
            y = tl.load(y_ptr + start + cols, mask=cols < V, other=0.0).to(tl.float32)
            tl.store(dx_ptr + start + cols, _slope(y, dy, total, LOG).to(dx_ptr.dtype.element_ty), mask=cols < V)


# -- How much a program does -------------------------------------------------------------------------------------------
def _threads(device: GPU) -> tuple[int, int]:
    """Lanes of a warp, and the warps that make a program's 1024 threads; on AMD a warp is 64 lanes."""
    return (64, 16) if device.name.startswith("gfx") else (32, 32)


def _values(itemsize: int, reads: int) -> int:
    """Values of a tensor that a thread takes at a time: half as many of two tensors, or of numbers twice as wide."""
    return VALUES * 2 // (reads * max(itemsize, 2))


@settings(ROWS=(1, 2, 4, 8, 16, 32), num_warps=(4, 8, 16, 32))
def _held_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of a row that is held: how it is cut into powers of two, how many a program takes, its warps."""
    head = max(1, next_power_of_2(V + 1) // 2)
    tail = next_power_of_2(V - head) if head < V else 0
    if tail == head:
        head, tail = 2 * head, 0
    width = 2 * head if tail else head
    rows = max(1, TILE // width)
    lanes, most = _threads(device)
    warps = min(most, max(4, rows * width // (lanes * _values(itemsize, reads))))
    return {"HEAD": head, "TAIL": tail, "ROWS": rows, "num_warps": warps}


@settings(BLOCK=(1024, 2048, 4096, 8192, 16384, 32768), num_warps=(8, 16, 32), PROGRAMS=(1, 2, 3, 4))
def _wide_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of a row that is read twice, and ``PROGRAMS`` per multiprocessor.

    A row of 131072 is alone on its multiprocessor, with all of its threads, so that all rows in work stay in the cache
    for their second read: 132 x 256 KB in bf16. Of narrower ones there are two, and one loads while the other stores.
    """
    lanes, most = _threads(device)
    alone = V > ALONE
    warps = most if alone else most // 2
    # A thread has 64 registers then, so two tensors halve the block once more. With odd V each value is loaded and
    # masked alone, which takes registers too.
    block = warps * lanes * _values(itemsize, reads) // (reads if alone else 1) // (4 if V % 2 else 1)
    return {"BLOCK": block, "num_warps": warps, "PROGRAMS": 1 if alone else 2}


# -- Launches ----------------------------------------------------------------------------------------------------------
def _launch(held: Any, wide: Any, tensors: tuple[torch.Tensor, ...], V: int, log: bool) -> None:
    """Launch one of two kernels over rows of V columns; all tensors are contiguous, and the last is written."""
    R, device = tensors[0].numel() // max(V, 1), gpu(tensors[0].device)
    asked = V, tensors[0].element_size(), len(tensors) - 1, device
    if V <= HELD:
        chosen = _held_settings(*asked)
        launch(held, (ceil_div(R, chosen["ROWS"]),), tensors, (R,), V=V, **chosen, LOG=log)
        return
    chosen = _wide_settings(*asked).copy()
    programs = min(R, chosen.pop("PROGRAMS") * device.processors)
    launch(wide, (programs,), tensors, (R, ceil_div(V, chosen["BLOCK"])), V=V, **chosen, LOG=log)


def _forward_fake(x: torch.Tensor, log: bool) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@private_op("softmax_forward", _forward_fake)
def _launch_forward(x: torch.Tensor, log: bool) -> torch.Tensor:
    """x (..., V) of any strides -> y (..., V) contiguous."""
    y = _forward_fake(x, log)
    _launch(_forward, _forward_wide, (as_rows(x), y), x.shape[-1], log)
    return y


def _backward_fake(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    return _forward_fake(y, log)


@private_op("softmax_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    """-> dx (..., V) contiguous."""
    dx = _forward_fake(y, log)
    _launch(_backward, _backward_wide, (as_rows(dy), y, dx), y.shape[-1], log)
    return dx


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Softmax(torch.autograd.Function):
    """Saves the output alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log: bool) -> torch.Tensor:
        y = _launch_forward(x, log)
        ctx.save_for_backward(y)
        ctx.log = log
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        refuse_second_derivative("log_softmax" if ctx.log else "softmax")
        return _launch_backward(dy, *ctx.saved_tensors, ctx.log), None


def softmax_triton(x: torch.Tensor) -> torch.Tensor:
    """See ``liger_kernels_act.softmax``."""
    return _Softmax.apply(x, False)  # type: ignore[no-any-return, no-untyped-call]


def log_softmax_triton(x: torch.Tensor) -> torch.Tensor:
    """See ``liger_kernels_act.log_softmax``."""
    return _Softmax.apply(x, True)  # type: ignore[no-any-return, no-untyped-call]
