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


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x (N,) converted by a kernel."""
    y = torch.empty(x.shape, dtype=dtype)
    _cast[(1,)](x, y, N=x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    return y


def arithmetic(x: torch.Tensor, what: str) -> None:
    """Run one kind of arithmetic on x (a power of two elements)."""
    _arithmetic[(1,)](x, torch.empty_like(x), WHAT=what, BLOCK=x.numel())
