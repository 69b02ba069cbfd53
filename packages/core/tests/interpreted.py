"""Small Triton kernels that show what the interpreter does with bfloat16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _cast(x_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0)
    tl.store(y_ptr + at, x.to(y_ptr.dtype.element_ty), mask=at < N)


@triton.jit
def _arithmetic(x_ptr, y_ptr, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if WHAT == "add":
        x = x + x
    if WHAT == "compare":
        x = tl.where(x >= x, x, x)
    if WHAT == "sum":
        x = x * 0 + tl.sum(x, axis=0)
    tl.store(y_ptr + at, x)


@triton.jit
def _integers(x_ptr, by_ptr, y_ptr, WHAT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, by = tl.load(x_ptr + at), tl.load(by_ptr + at)
    if WHAT == "add":
        x = x + by
    if WHAT == "sub":
        x = x - by
    if WHAT == "mul":
        x = x * by
    tl.store(y_ptr + at, x)


@triton.jit
def _constants(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, tl.where(x.to(tl.float32) > 0, tl.full((BLOCK,), 1.5, tl.bfloat16), x))


def constants(x: torch.Tensor) -> torch.Tensor:
    """bfloat16 x (a power of two elements) with 1.5 where it is positive."""
    y = torch.empty_like(x)
    _constants[(1,)](x, y, BLOCK=x.numel())
    return y


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x (N,) converted by a kernel."""
    y = torch.empty(x.shape, dtype=dtype)
    _cast[(1,)](x, y, N=x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


def arithmetic(x: torch.Tensor, what: str) -> None:
    """Run one kind of arithmetic on x (a power of two elements)."""
    _arithmetic[(1,)](x, torch.empty_like(x), WHAT=what, BLOCK=x.numel())


def integers(x: torch.Tensor, by: torch.Tensor, what: str) -> torch.Tensor:
    """Sum, difference or product of integers (a power of two elements)."""
    y = torch.empty_like(x)
    _integers[(1,)](x, by, y, WHAT=what, BLOCK=x.numel())
    return y
