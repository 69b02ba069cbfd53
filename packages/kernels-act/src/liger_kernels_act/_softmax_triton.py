"""Triton kernels of softmax and log_softmax: rows that fit stay in registers, wider ones are read a second time."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, Launch, ceil_div, gpu, next_power_of_2, prepare, private_op, refuse_second_derivative
from liger.settings import cached, settings

HELD = 16384  # columns up to which a program holds a row in registers, and leaves when it has written it
STREAMED = 32768  # up to which it still does, and takes one row after another: the next are on their way meanwhile
ALONE = 65536  # columns above which a row has a multiprocessor for itself
TILE = 4096  # elements of one program of narrow rows: 8 KB in bf16
VALUES = 32  # 16-bit values of a row that a thread holds: four 16-byte loads


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
    STAGES: tl.constexpr,  # rows on their way through shared memory, the one at hand included
    LOG: tl.constexpr,
):
    for tile in tl.range(tl.program_id(0), tl.cdiv(R, ROWS), tl.num_programs(0), num_stages=STAGES):
        rows = (tile * tl.full((), ROWS, tl.int64) + tl.arange(0, ROWS))[:, None]
        cols, mask = _columns(V, 0, HEAD, rows < R)
        x = tl.load(x_ptr + rows * V + cols, mask=mask, other=-float("inf")).to(tl.float32)
        top = tl.max(x, axis=1, keep_dims=True)
        if TAIL:
            tail_cols, tail_mask = _columns(V, HEAD, TAIL, rows < R)
            tail = tl.load(x_ptr + rows * V + tail_cols, mask=tail_mask, other=-float("inf")).to(tl.float32)
            top = tl.maximum(top, tl.max(tail, axis=1, keep_dims=True))
            tail -= top
        x -= top
        total = tl.sum(tl.exp(x), axis=1, keep_dims=True)
        if TAIL:
            total += tl.sum(tl.exp(tail), axis=1, keep_dims=True)
            y = _result(tail, total, LOG)
            tl.store(y_ptr + rows * V + tail_cols, y.to(y_ptr.dtype.element_ty), mask=tail_mask)
        tl.store(y_ptr + rows * V + cols, _result(x, total, LOG).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R", "blocks"])
def _forward_wide(
    x_ptr,  # (R, V)
    y_ptr,  # (R, V)
    R,
    blocks,  # ceil(V / (DEPTH * LANES)); as a constant it makes LLVM unroll the loops until they spill
    V: tl.constexpr,
    DEPTH: tl.constexpr,  # a thread has the same lanes of each: one new maximum for DEPTH values
    LANES: tl.constexpr,
    LOG: tl.constexpr,
):
    within = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        top = tl.full((LANES,), -float("inf"), tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        for i in range(blocks):
            cols = i * (DEPTH * LANES) + within
            at = x_ptr + start + cols
            x = tl.load(at, mask=cols < V, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
            higher = tl.maximum(top, tl.max(x, axis=0))
            base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
            total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base[None, :]), axis=0)
            top = higher
        highest = tl.max(top, axis=0)
        base = tl.where(highest == -float("inf"), 0.0, highest)
        sums = tl.sum(total * tl.exp(top - base), axis=0)
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * (DEPTH * LANES) + within
            at = x_ptr + start + cols
            x = tl.load(at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
            y = _result(x - highest, sums, LOG).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + start + cols, y, mask=cols < V, eviction_policy="evict_first")


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
    SINGLE: tl.constexpr,  # one block: without loops a fifth faster
    LOG: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        terms = tl.zeros((BLOCK,), tl.float32)
        for i in range(1 if SINGLE else blocks):
            cols = i * BLOCK + tl.arange(0, BLOCK)
            at = start + cols
            dy = tl.load(dy_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_last").to(tl.float32)
            y = tl.load(y_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_last").to(tl.float32)
            terms += _weighted(y, dy, LOG)
        total = tl.sum(terms, axis=0)
        for i in range(1 if SINGLE else blocks):  # backwards: the nearest cache still holds the end of the row
            cols = (0 if SINGLE else blocks - 1 - i) * BLOCK + tl.arange(0, BLOCK)
            at = start + cols
            dy = tl.load(dy_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
            y = tl.load(y_ptr + at, mask=cols < V, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dx = _slope(y, dy, total, LOG).to(dx_ptr.dtype.element_ty)
            tl.store(dx_ptr + at, dx, mask=cols < V, eviction_policy="evict_first")


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(ROWS=(1, 2, 4, 8, 16, 32), num_warps=(4, 8, 16, 32))
def _held_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of the kernels that hold a row; of two tensors to read a thread takes half as many values at a time."""
    parts = _parts(V)
    width = parts["ROWS"] * (2 * parts["HEAD"] if parts["TAIL"] else parts["HEAD"])
    values = VALUES * 2 // (reads * max(itemsize, 2))
    return {**parts, "num_warps": min(device.most_warps, max(4, width // (device.lanes * values)))}


@functools.cache
def _streamed_stages(V: int, itemsize: int, device: GPU) -> int:
    """Rows at a time, up to three, in shared memory, whose last 4 KB are for the reductions; 0 if not even two fit."""
    fit = (device.shared - 4096) // (V * itemsize)
    return 0 if V > STREAMED or V % 8 or fit < 1 else 1 + min(2, fit)


@settings(DEPTH=(1, 2, 4, 8, 16), num_warps=(8, 16, 32))
def _forward_wide_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward_wide``.

    A row of 131072 is alone on its multiprocessor, with all of its threads, so that all rows in work stay in the cache
    for their second read: 132 x 256 KB in bf16. Of narrower ones there are two, and one loads while the other stores.
    With odd V each value is loaded and masked alone, which takes registers.
    """
    alone = V > ALONE
    warps = device.most_warps if alone else device.most_warps // 2
    deep = 8 if alone and device.name == "sm90" else 4  # elsewhere 8 spill more, and nobody timed them
    depth = deep * 2 // max(itemsize, 2) // (4 if V % 2 else 1)
    return {"DEPTH": max(1, depth), "LANES": warps * device.lanes * 8, "num_warps": warps}


@settings(BLOCK=(4096, 8192, 16384, 32768), num_warps=(8, 16, 32))
def _backward_wide_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward_wide``: as in the forward, but two tensors, so a block is half as large."""
    values = 32 if device.name == "sm90" else 16  # elsewhere 32 spill
    block = device.most_warps * device.lanes * values * 2 // max(itemsize, 2) // (4 if V % 2 else 1)
    return {"BLOCK": block, "num_warps": device.most_warps}


@cached
def _forward_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int, int, tuple[int, ...]]:
    """The launch, the rows of a program, the most programs, 0 for any number, and further numbers."""
    stages = 1 if V <= HELD else _streamed_stages(V, itemsize, device)
    if stages:
        chosen = _held_settings(V, itemsize, 1, device)
        most = 0 if V <= HELD else device.processors
        return prepare(_forward, V=V, STAGES=stages, LOG=log, **chosen), chosen["ROWS"], most, ()
    chosen = _forward_wide_settings(V, itemsize, device)
    blocks = ceil_div(V, chosen["DEPTH"] * chosen["LANES"])
    most = 2 * device.processors if V > ALONE else 0
    return prepare(_forward_wide, V=V, **chosen, LOG=log), 1, most, (blocks,)


@cached
def _backward_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int, int, tuple[int, ...]]:
    """As ``_forward_plan``."""
    if V <= HELD:
        chosen = _held_settings(V, itemsize, 2, device)
        return prepare(_backward, V=V, LOG=log, **chosen), chosen["ROWS"], 0, ()
    chosen = _backward_wide_settings(V, itemsize, device)
    blocks = ceil_div(V, chosen["BLOCK"])
    most = 0 if V > ALONE else 2 * device.processors
    return prepare(_backward_wide, V=V, **chosen, SINGLE=blocks == 1, LOG=log), 1, most, (blocks,)


def _launch(plan: Callable[..., tuple[Launch, int, int, tuple[int, ...]]], log: bool, *tensors: torch.Tensor) -> None:
    """``tensors`` (..., V), contiguous."""
    x = tensors[0]
    V = x.shape[-1]
    kernel, rows, most, numbers = plan(V, x.element_size(), log, gpu(x.device))
    R = x.numel() // max(V, 1)
    programs = ceil_div(R, rows)
    kernel((min(programs, most) if most else programs,), tensors, (R, *numbers))


def _parts(V: int) -> dict[str, Any]:
    """How a row is cut into powers of two, and how many rows a program takes."""
    head = max(1, next_power_of_2(V + 1) // 2)
    tail = next_power_of_2(V - head) if head < V else 0
    if tail == head:
        head, tail = 2 * head, 0
    return {"HEAD": head, "TAIL": tail, "ROWS": max(1, TILE // (2 * head if tail else head))}


def _forward_fake(x: torch.Tensor, log: bool) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@private_op("softmax_forward", _forward_fake)
def _launch_forward(x: torch.Tensor, log: bool) -> torch.Tensor:
    """x (..., V) of any strides -> y (..., V) contiguous."""
    y = _forward_fake(x, log)
    _launch(_forward_plan, log, x.contiguous(), y)
    return y


def _backward_fake(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    return _forward_fake(y, log)


@private_op("softmax_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    """-> dx (..., V) contiguous."""
    dx = _forward_fake(y, log)
    _launch(_backward_plan, log, dy.contiguous(), y, dx)
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
