"""Triton kernels of group_norm. A group is a matrix of CG channels and S positions, dense in memory, read in tiles.

Where there are enough groups a program takes a whole one and reads it twice, then from L2; otherwise several programs
share a group: first its statistics or sums, in parts, then the result.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(group, tile, CG: tl.constexpr, S: tl.constexpr, CH: tl.constexpr, BS: tl.constexpr):
    """Offsets and mask of a tile of a group, (CH, BS), and its channels within the group."""
    across: tl.constexpr = (S + BS - 1) // BS
    channels = tile // across * CH + tl.arange(0, CH)
    cols = tile % across * BS + tl.arange(0, BS)
    at = (group * CG + channels)[:, None] * S + cols[None, :]
    return at, (channels < CG)[:, None] & (cols < S)[None, :], channels


@triton.jit
def _parameter(ptr, group, channels, G, CG: tl.constexpr, DEFAULT: tl.constexpr):
    """fp32 weights or biases of these channels of a group, (CH, 1); DEFAULT without any."""
    if ptr is None:
        p = tl.full((1, 1), DEFAULT, tl.float32)
    else:
        p = tl.load(ptr + group % G * CG + channels, mask=channels < CG, other=0.0).to(tl.float32)[:, None]
    return p


@triton.jit
def _moments(x_ptr, group, first, step, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Number, mean, and sum of squared differences to it, of the blocks first, first + step, ... of a group.

    Each place of the block has a running mean of its own (Welford); these are merged at the end. None but the last
    block has places without an element, so all the others divide by the same number.
    """
    place = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.float32)
    mean = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    seen = 0.0
    for block in range(first, tl.cdiv(SIZE, BLOCK), step):
        start = block * tl.full((), BLOCK, tl.int64)
        there = place < tl.minimum(SIZE - start, BLOCK).to(tl.int32)
        x = tl.load(x_ptr + group * SIZE + start + place, mask=there, other=0.0).to(tl.float32)
        seen += 1.0
        count = tl.where(there, seen, count)
        off = tl.where(there, x - mean, 0.0)
        mean += off * (1.0 / seen)
        squares += off * (x - mean)
    return _merge(count, mean, squares)


@triton.jit
def _merge(count, mean, squares):
    """Number, mean and squared differences of parts put together."""
    n = tl.sum(count)
    whole = tl.sum(count * mean) / tl.maximum(n, 1.0)  # a program of several may have got no block
    off = mean - whole
    return n, whole, tl.sum(squares + count * off * off)


@triton.jit
def _normalise(
    x_ptr, w_ptr, b_ptr, y_ptr, group, tile, mean, rstd, G,
    CG: tl.constexpr, S: tl.constexpr, CH: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Write a tile of y; x is read for the last time."""
    at, mask, channels = _tile(group, tile, CG, S, CH, BS)
    x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    w, b = _parameter(w_ptr, group, channels, G, CG, 1.0), _parameter(b_ptr, group, channels, G, CG, 0.0)
    y = ((x - mean) * rstd * w + b).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y, mask=mask, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["G", "eps"])
def _forward(
    x_ptr,  # (N * G, CG, S)
    w_ptr,  # (G, CG) or None
    b_ptr,  # (G, CG) or None
    y_ptr,  # (N * G, CG, S)
    mean_ptr,  # (N * G,) fp32, kept for the backward
    rstd_ptr,  # (N * G,) fp32, kept for the backward
    G,
    eps,
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,  # channels of a tile
    BS: tl.constexpr,  # positions of a tile
):
    group = tl.program_id(0).to(tl.int64)
    n, mean, squares = _moments(x_ptr, group, 0, 1, CG * S, CH * BS)
    rstd = tl.rsqrt(squares / n + eps)
    tl.store(mean_ptr + group, mean)
    tl.store(rstd_ptr + group, rstd)
    tiles: tl.constexpr = ((CG + CH - 1) // CH) * ((S + BS - 1) // BS)
    for done in range(tiles):  # what was read last is still in a cache, so it comes first
        _normalise(x_ptr, w_ptr, b_ptr, y_ptr, group, tiles - 1 - done, mean, rstd, G, CG, S, CH, BS)


@triton.jit
def _statistics(
    x_ptr,  # (N * G, CG, S)
    parts_ptr,  # (N * G, programs of a group, 3) fp32: number, mean, squared differences
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,
    BS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    n, mean, squares = _moments(x_ptr, group, tl.program_id(1), tl.num_programs(1), CG * S, CH * BS)
    at = (group * tl.num_programs(1) + tl.program_id(1)) * 3
    tl.store(parts_ptr + at, n)
    tl.store(parts_ptr + at + 1, mean)
    tl.store(parts_ptr + at + 2, squares)


@triton.jit(do_not_specialize=["G", "eps"])
def _apply(
    x_ptr,  # (N * G, CG, S)
    w_ptr,  # (G, CG) or None
    b_ptr,  # (G, CG) or None
    parts_ptr,  # (N * G, programs of a group, 3) fp32
    y_ptr,  # (N * G, CG, S)
    mean_ptr,  # (N * G,) fp32, kept for the backward
    rstd_ptr,  # (N * G,) fp32, kept for the backward
    G,
    eps,
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,
    BS: tl.constexpr,
    PARTS: tl.constexpr,  # power of two >= programs of a group
):
    group = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    at = parts_ptr + (group * tl.num_programs(1) + part) * 3
    there = part < tl.num_programs(1)
    count = tl.load(at, mask=there, other=0.0)
    means = tl.load(at + 1, mask=there, other=0.0)
    n, mean, squares = _merge(count, means, tl.load(at + 2, mask=there, other=0.0))
    rstd = tl.rsqrt(squares / n + eps)
    tl.store(mean_ptr + group, mean)  # every program of the group writes the same
    tl.store(rstd_ptr + group, rstd)
    tiles: tl.constexpr = ((CG + CH - 1) // CH) * ((S + BS - 1) // BS)
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        _normalise(x_ptr, w_ptr, b_ptr, y_ptr, group, tile, mean, rstd, G, CG, S, CH, BS)


@triton.jit
def _sum_channels(
    dy_ptr, x_ptr, group, block, first, step, mean, rstd,
    CG: tl.constexpr, S: tl.constexpr, CH: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Sums over positions of dy * xhat and of dy for one block of channels, (CH,) each; and the channels."""
    across: tl.constexpr = (S + BS - 1) // BS
    a = tl.zeros((CH, BS), tl.float32)
    b = tl.zeros((CH, BS), tl.float32)
    for tile in range(first, across, step):
        at, mask, _ = _tile(group, block * across + tile, CG, S, CH, BS)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        a += dy * ((x - mean) * rstd)
        b += dy
    return tl.sum(a, axis=1), tl.sum(b, axis=1), block * CH + tl.arange(0, CH)


@triton.jit
def _store_dx(
    dy_ptr, x_ptr, w_ptr, dx_ptr, group, tile, mean, rstd, mean_a, mean_b, G,
    CG: tl.constexpr, S: tl.constexpr, CH: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Write a tile of dx; mean_a and mean_b are the means of w * dy * xhat and of w * dy over the group."""
    at, mask, channels = _tile(group, tile, CG, S, CH, BS)
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    xhat = (x - mean) * rstd
    dx = tl.fma(-mean_a, xhat, dy * _parameter(w_ptr, group, channels, G, CG, 1.0) - mean_b) * rstd
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["G"])
def _backward(
    dy_ptr,  # (N * G, CG, S)
    x_ptr,  # (N * G, CG, S)
    w_ptr,  # (G, CG) or None
    mean_ptr,  # (N * G,) fp32
    rstd_ptr,  # (N * G,) fp32
    dx_ptr,  # (N * G, CG, S) or None: x needs no gradient
    a_ptr,  # (N * G, CG) fp32 or None: sums over positions of dy * xhat
    b_ptr,  # (N * G, CG) fp32 or None: sums over positions of dy
    G,
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,
    BS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    mean, rstd = tl.load(mean_ptr + group), tl.load(rstd_ptr + group)
    mean_a = tl.zeros((CH,), tl.float32)
    mean_b = tl.zeros((CH,), tl.float32)
    for block in range((CG + CH - 1) // CH):
        a, b, channels = _sum_channels(dy_ptr, x_ptr, group, block, 0, 1, mean, rstd, CG, S, CH, BS)
        if a_ptr is not None:
            tl.store(a_ptr + group * CG + channels, a, mask=channels < CG)
        if b_ptr is not None:
            tl.store(b_ptr + group * CG + channels, b, mask=channels < CG)
        w = tl.sum(_parameter(w_ptr, group, channels, G, CG, 1.0), axis=1)
        mean_a, mean_b = mean_a + w * a, mean_b + w * b
    if dx_ptr is not None:
        ma, mb = tl.sum(mean_a) / (CG * S), tl.sum(mean_b) / (CG * S)
        tiles: tl.constexpr = ((CG + CH - 1) // CH) * ((S + BS - 1) // BS)
        for done in range(tiles):  # backwards, as in ``_forward``
            _store_dx(dy_ptr, x_ptr, w_ptr, dx_ptr, group, tiles - 1 - done, mean, rstd, ma, mb, G, CG, S, CH, BS)


@triton.jit
def _channel_sums(
    dy_ptr,  # (N * G, CG, S)
    x_ptr,  # (N * G, CG, S)
    mean_ptr,  # (N * G,) fp32
    rstd_ptr,  # (N * G,) fp32
    a_ptr,  # (programs along positions, N * G, CG) fp32
    b_ptr,  # (programs along positions, N * G, CG) fp32
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,
    BS: tl.constexpr,
):
    blocks: tl.constexpr = (CG + CH - 1) // CH
    group = (tl.program_id(0) // blocks).to(tl.int64)
    mean, rstd = tl.load(mean_ptr + group), tl.load(rstd_ptr + group)
    first, step = tl.program_id(1), tl.num_programs(1)
    a, b, channels = _sum_channels(
        dy_ptr, x_ptr, group, tl.program_id(0) % blocks, first, step, mean, rstd, CG, S, CH, BS
    )
    at = (first.to(tl.int64) * (tl.num_programs(0) // blocks) + group) * CG + channels
    tl.store(a_ptr + at, a, mask=channels < CG)
    tl.store(b_ptr + at, b, mask=channels < CG)


@triton.jit(do_not_specialize=["G"])
def _dx(
    dy_ptr,  # (N * G, CG, S)
    x_ptr,  # (N * G, CG, S)
    w_ptr,  # (G, CG) or None
    mean_ptr,  # (N * G,) fp32
    rstd_ptr,  # (N * G,) fp32
    a_ptr,  # (N * G, CG) fp32
    b_ptr,  # (N * G, CG) fp32
    dx_ptr,  # (N * G, CG, S)
    G,
    CG: tl.constexpr,
    S: tl.constexpr,
    CH: tl.constexpr,
    BS: tl.constexpr,
    STEP: tl.constexpr,  # channels per step of their sums
):
    group = tl.program_id(0).to(tl.int64)
    mean, rstd = tl.load(mean_ptr + group), tl.load(rstd_ptr + group)
    mean_a = tl.zeros((STEP,), tl.float32)
    mean_b = tl.zeros((STEP,), tl.float32)
    for start in range(0, CG, STEP):
        channels = start + tl.arange(0, STEP)
        w = tl.sum(_parameter(w_ptr, group, channels, G, CG, 1.0), axis=1)
        mean_a += w * tl.load(a_ptr + group * CG + channels, mask=channels < CG, other=0.0)
        mean_b += w * tl.load(b_ptr + group * CG + channels, mask=channels < CG, other=0.0)
    ma, mb = tl.sum(mean_a) / (CG * S), tl.sum(mean_b) / (CG * S)
    tiles: tl.constexpr = ((CG + CH - 1) // CH) * ((S + BS - 1) // BS)
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        _store_dx(dy_ptr, x_ptr, w_ptr, dx_ptr, group, tile, mean, rstd, ma, mb, G, CG, S, CH, BS)
