"""Gradients that were made in the forward, times the upstream gradient: nothing is read or written if that is 1."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger.launch import ceil_div, gpu, launch, private_op
from liger_kernels_loss._blocks_triton import unit_of

BLOCK = 4096  # 2 loads of 16 bytes a thread; with 4 it takes 168 registers
PROGRAMS = 4  # for each multiprocessor; few, as most often all of them leave at once


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["N"])
def _scale(
    factor_ptr,  # () fp32
    x_ptr,  # (n,)
    out_ptr,  # (n,) of any dtype; may be x
    N,  # n in units of UNIT elements, so that the mask is known to change between 16-byte loads only
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    IN_PLACE: tl.constexpr,
):
    factor = tl.load(factor_ptr)
    n = tl.full((), UNIT, tl.int64) * N
    if factor != 1.0 or not IN_PLACE:
        for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
            at = block * tl.full((), BLOCK, tl.int64) + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, (x * factor).to(out_ptr.dtype.element_ty), mask=at < n)


# -- Launches ----------------------------------------------------------------------------------------------------------
def launch_scale(x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * dy, multiplied in fp32; torch would round dy to the dtype of x first. Both are contiguous."""
    n = x.numel()
    unit = unit_of(n)
    programs = min(ceil_div(n, BLOCK), PROGRAMS * gpu(x.device).processors)
    launch(_scale, (programs,), (dy, x, out), (n // unit,), num_warps=8, UNIT=unit, BLOCK=BLOCK, IN_PLACE=out is x)


def _copy_fake(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@private_op("scaled_copy", _copy_fake)
def _copy(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    launch_scale(x, dy, out)
    return out


def scaled(x: torch.Tensor, dy: torch.Tensor, in_place: bool) -> torch.Tensor:
    """x * dy, multiplied in fp32 and rounded to the dtype of x, which is contiguous; dy is one fp32 number."""
    if not in_place:
        return _copy(x, dy)  # type: ignore[no-any-return]
    launch_scale(x, dy, x)
    return x
