"""What kernels that walk over wide rows share: blocks in which a thread sums what is its own before threads meet.

A block is (DEPTH, THREADS, EACH): EACH columns side by side are a load of 16 bytes of one thread.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl


def unit_of(n: int) -> int:
    """What kernels on n elements in a row count in: 16 where that divides n, so that loads of 16 bytes are possible."""
    return 1 if n % 16 else 16


@triton.jit
def columns(DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr):
    """Offsets of a block (DEPTH, THREADS, EACH)."""
    deep, wide = tl.arange(0, DEPTH)[:, None, None], tl.arange(0, THREADS)[None, :, None]
    return (deep * THREADS + wide) * EACH + tl.arange(0, EACH)[None, None, :]


@triton.jit
def block_sum(x):
    """(DEPTH, THREADS, EACH) -> (THREADS,)."""
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def load(row_ptr, cols, mask, OTHER: tl.constexpr, LAST: tl.constexpr):
    """Values in fp32, ``OTHER`` beyond the row; ``LAST``: they are not needed again."""
    x = tl.load(row_ptr + cols, mask=mask, other=OTHER, eviction_policy="evict_first" if LAST else "evict_last")
    return x.to(tl.float32)


@triton.jit
def clear(row_ptr, first, blocks, V: tl.constexpr, DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr):
    """Zeros into ``blocks`` blocks of a row (V,), from ``first`` on."""
    within = columns(DEPTH, THREADS, EACH)
    zero = tl.zeros((DEPTH, THREADS, EACH), row_ptr.dtype.element_ty)
    for i in range(blocks):
        cols = (first + i) * (DEPTH * THREADS * EACH) + within
        tl.store(row_ptr + cols, zero, mask=cols < V)


@triton.jit
def log2(u):
    """log2 of positive normal u to 2 ulp, in half the instructions of ``tl.log2``, which knows 0, inf and subnormals.

    u = 2^k * (1 + f) with |f| <= 1/3. The polynomial is the least largest relative error, our own fit.
    """
    bits = u.to(tl.int32, bitcast=True)
    k = (bits - 0x3F2AAAAB) & -0x800000
    f = (bits - k).to(tl.float32, bitcast=True) - 1.0
    high = 0.28871128 + f * (-0.236786529 + f * (0.201799735 + f * (-0.222221166 + f * 0.202784181)))
    low = 1.44269502 + f * (-0.721346557 + f * (0.480895966 + f * (-0.360789567 + f * high)))
    return k.to(tl.float32) * 1.1920928955078125e-07 + f * low
