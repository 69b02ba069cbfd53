"""softmax and log_softmax with Triton: how much a program does, launches and autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from liger._teams_triton import board, phases
from liger.launch import (
    GPU,
    Launch,
    ceil_div,
    gpu,
    launch,
    next_power_of_2,
    prepare,
    private_op,
    refuse_second_derivative,
)
from liger.settings import cached, settings
from liger_kernels_act._softmax_kernels_triton import (
    _backward,
    _backward_shared,
    _backward_wide,
    _forward,
    _forward_shared,
    _forward_wide,
)

HELD = 16384  # columns up to which a program holds a row in registers, and leaves when it has written it
STREAMED = 32768  # up to which it still does, and takes one row after another: the next are on their way meanwhile
WIDE = 65536  # up to which the forward reads a row twice; above it a team of programs shares the row
AGAIN = 65536  # bytes of a row up to which the backward reads it twice; one whose loads are not wide is shared as well
TILE = 4096  # elements of one program of narrow rows: 8 KB in bf16
VALUES = 32  # 16-bit values of a row that a thread holds: four 16-byte loads


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

    Two rows on a multiprocessor, of which one loads while the other stores. With odd V each value is loaded and masked
    alone, which takes registers.
    """
    warps = device.most_warps // 2
    depth = 8 // max(itemsize, 2) // (4 if V % 2 else 1)
    return {"DEPTH": max(1, depth), "LANES": warps * device.lanes * 8, "num_warps": warps}


@settings(num_warps=(8, 16, 32))
def _backward_wide_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward_wide``: a block holds the whole row, and every thread takes a part of it."""
    return {"BLOCK": next_power_of_2(V), "num_warps": device.most_warps}


@settings(BLOCK=(2048, 4096, 8192, 16384), num_warps=(4, 8, 16))
def _shared_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of the kernels that share a row: 128 threads hold 16 KB of it, together with dy."""
    return {"BLOCK": 16384 // (reads * max(itemsize, 2)), "num_warps": 128 // device.lanes}


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
    return prepare(_forward_wide, V=V, **chosen, LOG=log), 1, 0, (blocks,)


@cached
def _backward_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int, int, tuple[int, ...]]:
    """As ``_forward_plan``."""
    if V <= HELD:
        chosen = _held_settings(V, itemsize, 2, device)
        return prepare(_backward, V=V, LOG=log, **chosen), chosen["ROWS"], 0, ()
    chosen = _backward_wide_settings(V, itemsize, device)
    return prepare(_backward_wide, V=V, LOG=log, **chosen), 1, 2 * device.processors, ()


def _launch(plan: Callable[..., tuple[Launch, int, int, tuple[int, ...]]], log: bool, *tensors: torch.Tensor) -> None:
    """``tensors`` (..., V), contiguous."""
    x = tensors[0]
    V = x.shape[-1]
    kernel, rows, most, numbers = plan(V, x.element_size(), log, gpu(x.device))
    R = x.numel() // max(V, 1)
    programs = ceil_div(R, rows)
    kernel((min(programs, most) if most else programs,), tensors, (R, *numbers))


def _launch_shared(kernel: Any, log: bool, *tensors: torch.Tensor) -> None:
    """``tensors`` (..., V), contiguous, the last of them the result."""
    x = tensors[0]
    V, device = x.shape[-1], x.device
    R = x.numel() // V
    chosen = _shared_settings(V, x.element_size(), len(tensors) - 1, gpu(device))
    parts = ceil_div(V, chosen["BLOCK"])
    words = board(R * parts, device)
    constants = {"V": V, **chosen, "PARTS": parts, "SEATS": next_power_of_2(parts), "LOG": log}
    for phase in phases(parts, device):
        launch(kernel, (R * parts,), (*tensors, words), (R,), **constants, PHASE=phase)


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
    x, y = x.contiguous(), _forward_fake(x, log)
    if x.shape[-1] > WIDE:
        _launch_shared(_forward_shared, log, x, y)
    else:
        _launch(_forward_plan, log, x, y)
    return y


def _backward_fake(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    return _forward_fake(y, log)


@private_op("softmax_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    """-> dx (..., V) contiguous."""
    V = y.shape[-1]
    dy, dx = dy.contiguous(), _forward_fake(y, log)
    if V > HELD and (V % 2 or next_power_of_2(V) * y.element_size() > AGAIN):
        _launch_shared(_backward_shared, log, dy, y, dx)
    else:
        _launch(_backward_plan, log, dy, y, dx)
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
