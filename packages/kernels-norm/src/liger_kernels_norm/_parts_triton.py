"""The second stage of sums over rows: partial sums in fp32, one row per program, are added in fixed order and cast."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger.launch import ceil_div, launch

COLS, ROWS = 32, 128  # 16 KB a step, each row's part of it 128 bytes; 4096 columns give 128 programs


@triton.jit(do_not_specialize=["P", "H"])
def _add_parts(
    parts_ptr,  # (P, H) fp32
    out_ptr,  # (H,)
    P,
    H,
    COLS: tl.constexpr,
    ROWS: tl.constexpr,
):
    cols = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, P, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = rows[:, None].to(tl.int64) * H + cols[None, :]
        total += tl.load(parts_ptr + at, mask=(rows < P)[:, None] & (cols < H)[None, :], other=0.0)
    tl.store(out_ptr + cols, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty), mask=cols < H)


def add_parts(parts: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """parts (P, ...) fp32, contiguous -> ``out``, which has the other dimensions and any floating dtype, filled."""
    H = out.numel()
    launch(_add_parts, (ceil_div(H, COLS),), (parts, out), (parts.shape[0], H), num_warps=4, COLS=COLS, ROWS=ROWS)
    return out
