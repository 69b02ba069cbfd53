"""Statistics of a row of logits, block by block: each thread keeps its own until they meet at the end of the row.

So a block costs no exchange between threads, and one exponential more for all that a thread has of it. Blocks are those
of ``_blocks_triton.py``. A row's statistics are its largest z, top, and total = sum exp(z - top), kept apart: then
p = exp(z - top) / total and lse - z_y = (top - z_y) + log(total) stay accurate however large the logits are.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import exp
from liger_kernels_loss._blocks_triton import block_sum
from liger_kernels_loss._transforms_triton import transform

NOWHERE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def nothing(THREADS: tl.constexpr, VALUE: tl.constexpr):
    """What the threads have before the first block."""
    return tl.full((THREADS,), VALUE, tl.float32)


@triton.jit
def read_block(row_ptr, cols, inner, outer, V: tl.constexpr, SOFTCAP: tl.constexpr):
    """-> mask, logits, and transformed logits with -inf beyond the row, of a block."""
    mask = cols < V
    x = tl.load(row_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_last")
    return mask, x, tl.where(mask, transform(x, inner, outer, SOFTCAP), -float("inf"))


@triton.jit
def finite(top):
    """``top``, or 0 where it is -inf, as so far all z are: exp of -inf, not of nan."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def moved(top, total, bent, base, ENTROPY: tl.constexpr):
    """-> total and bent with respect to ``base`` instead of ``top``."""
    shrink = exp(top - base)
    if ENTROPY:
        bent = (bent + tl.where(top == -float("inf"), 0.0, top - base) * total) * shrink
    return total * shrink, bent


@triton.jit
def fold(
    z,  # a block of transformed logits, -inf beyond the row
    top,  # (THREADS,) so far: largest z,
    total,  # (THREADS,) sum of exp(z - top),
    bent,  # (THREADS,) with ENTROPY sum of exp(z - top) * (z - top)
    ENTROPY: tl.constexpr,
):
    """-> top, total, bent with the block."""
    higher = tl.maximum(top, tl.max(tl.max(z, axis=2), axis=0))
    base = finite(higher)
    total, bent = moved(top, total, bent, base, ENTROPY)
    away = z - base[None, :, None]
    e = exp(away)
    if ENTROPY:
        bent += block_sum(tl.where(e == 0.0, 0.0, e * away))
    return higher, total + block_sum(e), bent


@triton.jit
def meet(top, total, bent, ENTROPY: tl.constexpr):
    """The threads' statistics -> the row's."""
    highest = tl.max(top, axis=0)
    total, bent = moved(top, total, bent, finite(highest), ENTROPY)
    return highest, tl.sum(total, axis=0), tl.sum(bent, axis=0)


@triton.jit
def fold_best(logits, cols, mask, inner, peak, best):
    """-> (THREADS,) largest logit so far, negated for a negative scale, and its column; the first of equals."""
    x = logits.to(tl.float32)
    x = tl.where(mask, tl.where(inner > 0, x, -x), -float("inf"))
    largest = tl.max(tl.max(x, axis=2), axis=0)
    at = tl.min(tl.min(tl.where(x == largest[None, :, None], cols, NOWHERE), axis=2), axis=0)
    return tl.maximum(peak, largest), tl.where(largest > peak, at, best)


@triton.jit
def meet_best(peak, best):
    """The threads' largest logits and their columns -> the row's."""
    highest = tl.max(peak, axis=0)
    return highest, tl.min(tl.where(peak == highest, best, NOWHERE), axis=0)
