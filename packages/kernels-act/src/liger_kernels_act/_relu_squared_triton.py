"""Triton kernels of relu_squared: elements in a row, whatever the shape."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, ceil_div, gpu, launch, private_op, refuse_second_derivative
from liger.settings import settings


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _load_relu(x_ptr, at, mask):
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    return tl.where(x < 0.0, 0.0, x)  # not tl.maximum, which drops nan


@triton.jit(do_not_specialize=["N"])
def _forward(
    x_ptr,  # (N,)
    y_ptr,  # (N,)
    N,  # in units of UNIT elements, so that the mask is known to change between 16-byte loads only
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.full((), UNIT, tl.int64) * N
    r = _load_relu(x_ptr, at, mask)
    tl.store(y_ptr + at, (r * r).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N"])
def _backward(
    dy_ptr,  # (N,)
    x_ptr,  # (N,)
    dx_ptr,  # (N,)
    N,  # in units of UNIT elements, so that the mask is known to change between 16-byte loads only
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.full((), UNIT, tl.int64) * N
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    r = _load_relu(x_ptr, at, mask)
    tl.store(dx_ptr + at, (2.0 * dy * r).to(dx_ptr.dtype.element_ty), mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(BLOCK=(512, 1024, 2048, 4096, 8192), num_warps=(4, 8))
def _settings(itemsize: int, backward: bool, device: GPU) -> dict[str, int]:
    """Constants of both kernels: 4 warps x 32 lanes x 16 elements, two 16-byte loads each in bf16."""
    return {"BLOCK": 2048, "num_warps": 4}


def _launch(kernel: Any, *tensors: torch.Tensor) -> None:
    N, device = tensors[0].numel(), tensors[0].device
    chosen = _settings(tensors[0].element_size(), len(tensors) == 3, gpu(device))
    unit = 1 if N % 16 else 16
    launch(kernel, (ceil_div(N, chosen["BLOCK"]),), tensors, (N // unit,), UNIT=unit, **chosen)


def _forward_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@private_op("relu_squared_forward", _forward_fake)
def _launch_forward(x: torch.Tensor) -> torch.Tensor:
    """x of any shape -> y of the same, contiguous."""
    y = _forward_fake(x)
    _launch(_forward, x.contiguous(), y)
    return y


def _backward_fake(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _forward_fake(x)


@private_op("relu_squared_backward", _backward_fake)
def _launch_backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """-> dx in the shape of x, contiguous."""
    dx = _forward_fake(x)
    _launch(_backward, dy.contiguous(), x.contiguous(), dx)
    return dx


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _ReLUSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return _launch_forward(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        refuse_second_derivative("relu_squared")
        return _launch_backward(dy, *ctx.saved_tensors)  # type: ignore[no-any-return]


def relu_squared_triton(x: torch.Tensor) -> torch.Tensor:
    """See ``liger_kernels_act.relu_squared``."""
    return _ReLUSquared.apply(x)  # type: ignore[no-any-return, no-untyped-call]
