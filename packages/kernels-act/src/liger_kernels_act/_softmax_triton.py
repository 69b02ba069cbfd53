"""softmax and log_softmax with Triton: how much a program does, launches and autograd."""

from __future__ import annotations

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

HELD = 16384  # columns up to which a program holds a row in registers
WIDE = 262144  # bytes of a row up to which the forward reads it twice; above it a team of programs shares the row
AGAIN = 65536  # up to which the backward does; a row whose loads are not wide is shared as well
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


@settings(DEPTH=(1, 2, 4, 8, 16), num_warps=(8, 16, 32))
def _forward_wide_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward_wide``.

    Few registers, so that other rows load while one is stored. On an H200 rows of 32768, 65536 and 131072 columns take
    141, 279 and 539 us with 2, 4 and 8 loads of 16 bytes a thread and step, and 16, 16 and 32 warps; with programs that
    go on to further rows 154, 286 and 579. Other GPUs spill 8 loads. With odd V each value is loaded and masked alone,
    which takes registers.
    """
    warps = device.most_warps // (2 if V <= 65536 else 1)
    depth = next_power_of_2(V) // 8192 // max(itemsize, 2) // (4 if V % 2 else 1)
    depth = min(8 if device.name == "sm90" else 4, max(1, depth))
    return {"DEPTH": depth, "LANES": warps * device.lanes * 8, "num_warps": warps}


@settings(num_warps=(8, 16, 32))
def _backward_wide_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward_wide``: a block holds the whole row, and every thread takes a part of it."""
    return {"BLOCK": next_power_of_2(V), "num_warps": device.most_warps}


@settings(BLOCK=(2048, 4096, 8192, 16384), num_warps=(4, 8, 16))
def _shared_settings(V: int, itemsize: int, reads: int, device: GPU) -> dict[str, int]:
    """Constants of the kernels that share a row: 128 threads hold 16 KB of it, together with dy."""
    return {"BLOCK": 16384 // (reads * max(itemsize, 2)), "num_warps": 128 // device.lanes}


@cached
def _forward_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int]:
    """The launch, and the rows of a program."""
    chosen = _held_settings(V, itemsize, 1, device)
    return prepare(_forward, V=V, LOG=log, **chosen), chosen["ROWS"]


@cached
def _forward_wide_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int]:
    """The launch, and the blocks of a row."""
    chosen = _forward_wide_settings(V, itemsize, device)
    return prepare(_forward_wide, V=V, LOG=log, **chosen), ceil_div(V, chosen["DEPTH"] * chosen["LANES"])


@cached
def _backward_plan(V: int, itemsize: int, log: bool, device: GPU) -> tuple[Launch, int]:
    """As ``_forward_plan``."""
    chosen = _held_settings(V, itemsize, 2, device)
    return prepare(_backward, V=V, LOG=log, **chosen), chosen["ROWS"]


@cached
def _backward_wide_plan(V: int, itemsize: int, log: bool, device: GPU) -> Launch:
    return prepare(_backward_wide, V=V, LOG=log, **_backward_wide_settings(V, itemsize, device))


def _launch_held(plan: Callable[..., tuple[Launch, int]], log: bool, *tensors: torch.Tensor) -> None:
    """``tensors`` (..., V), contiguous."""
    x = tensors[0]
    V = x.shape[-1]
    kernel, rows = plan(V, x.element_size(), log, gpu(x.device))
    R = x.numel() // max(V, 1)
    kernel((ceil_div(R, rows),), tensors, (R,))


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
    V, size = x.shape[-1], x.element_size()
    x, y = x.contiguous(), _forward_fake(x, log)
    if V <= HELD:
        _launch_held(_forward_plan, log, x, y)
    elif V * size > WIDE:
        _launch_shared(_forward_shared, log, x, y)
    else:
        forward, blocks = _forward_wide_plan(V, size, log, gpu(x.device))
        forward((x.numel() // V,), (x, y), (blocks,))
    return y


def _backward_fake(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    return _forward_fake(y, log)


@private_op("softmax_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, y: torch.Tensor, log: bool) -> torch.Tensor:
    """-> dx (..., V) contiguous."""
    V, size = y.shape[-1], y.element_size()
    dy, dx = dy.contiguous(), _forward_fake(y, log)
    if V <= HELD:
        _launch_held(_backward_plan, log, dy, y, dx)
    elif V % 2 or next_power_of_2(V) * size > AGAIN:
        _launch_shared(_backward_shared, log, dy, y, dx)
    else:
        device, R = gpu(y.device), y.numel() // V
        backward = _backward_wide_plan(V, size, log, device)
        backward((min(R, 2 * device.processors),), (dy, y, dx), (R,))
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
