"""The rotation as a Triton kernel: one program per token or few, all heads of q and of k, the angles read once."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from liger.launch import GPU, Launch, ceil_div, gpu, next_power_of_2, prepare
from liger.settings import cached, settings

ELEMENTS = 8192  # of q and k in one program: 16 KB in flight in bf16, and half of it still hides the latency
PER_THREAD = 32  # elements: beside them a thread holds four times 8 angles in fp32
CAST = {"none": 0, "output": 1, "fp32": 2}

Laid = tuple[Sequence[int], Sequence[int]]  # shape and strides of a tensor


class Form(NamedTuple):
    """How columns, angles and roundings go together: the options of ``rope`` and ``mrope``.

    Attributes:
        heads: axis of the heads.
        layout: "half", "interleaved" or "deinterleave".
        tables: "column" or "pair".
        cast: "none", "output" or "fp32".
        sections: pairs of each axis of ``mrope``; empty otherwise.
        alternate: whether the axes of ``mrope`` take turns.
    """

    heads: int
    layout: str = "half"
    tables: str = "column"
    cast: str = "none"
    sections: tuple[int, ...] = ()
    alternate: bool = False


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def load_pairs(ptr, rows, live, PAIRS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """x1, x2 (A, B, BLOCK) in fp32 of rows that begin at ``rows``: the columns 2j and 2j + 1, or j and HALF + j."""
    if PAIRS:
        cols = tl.arange(0, 2 * BLOCK)[None, None, :]
        x = tl.load(ptr + rows + cols, mask=live & (cols < 2 * HALF), other=0.0).to(tl.float32)
        return tl.split(tl.reshape(x, (rows.shape[0], rows.shape[1], BLOCK, 2)))
    cols = tl.arange(0, BLOCK)[None, None, :]
    mask = live & (cols < HALF)
    x1 = tl.load(ptr + rows + cols, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(ptr + rows + HALF + cols, mask=mask, other=0.0).to(tl.float32)
    return x1, x2


@triton.jit
def store_pairs(ptr, rows, live, x1, x2, PAIRS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    dtype = ptr.dtype.element_ty
    if PAIRS:
        cols = tl.arange(0, 2 * BLOCK)[None, None, :]
        x = tl.reshape(tl.join(x1.to(dtype), x2.to(dtype)), (rows.shape[0], rows.shape[1], 2 * BLOCK))
        tl.store(ptr + rows + cols, x, mask=live & (cols < 2 * HALF))
    else:
        cols = tl.arange(0, BLOCK)[None, None, :]
        mask = live & (cols < HALF)
        tl.store(ptr + rows + cols, x1.to(dtype), mask=mask)
        tl.store(ptr + rows + HALF + cols, x2.to(dtype), mask=mask)


@triton.jit
def load_angles(
    ptr, rows, live, axes, PER_PAIR: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, AXES: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """What multiplies x1 and what multiplies x2, (A, 1, BLOCK) in fp32; each pair from its own axis of ``mrope``."""
    cols = tl.arange(0, BLOCK)[None, None, :]
    if AXES == 1:  # blocks of pairs, which end at FIRST and SECOND
        rows += ((cols >= FIRST).to(tl.int64) + (cols >= SECOND).to(tl.int64)) * axes
    if AXES == 2:  # every third pair below FIRST and SECOND
        second, third = (cols % 3 == 1) & (cols < FIRST), (cols % 3 == 2) & (cols < SECOND)
        rows += (second.to(tl.int64) + 2 * third.to(tl.int64)) * axes
    if PER_PAIR:
        x = tl.load(ptr + rows + cols * STEP, mask=live & (cols < HALF), other=0.0).to(tl.float32)
        return x, x
    return load_pairs(ptr, rows, live, PAIRS, HALF, BLOCK)


@triton.jit
def turn(x1, x2, c1, c2, s1, s2, dtype: tl.constexpr, ROUND: tl.constexpr, BACKWARD: tl.constexpr):
    """The rotation, or its transpose; each product is rounded to ``dtype`` first, as upstream does."""
    a, b = x1 * c1, x2 * c2
    if BACKWARD:
        c, d = x2 * s2, -(x1 * s1)
    else:
        c, d = -(x2 * s1), x1 * s2
    if ROUND:
        a, b = a.to(dtype).to(tl.float32), b.to(dtype).to(tl.float32)
        c, d = c.to(dtype).to(tl.float32), d.to(dtype).to(tl.float32)
    return a + c, b + d


@triton.jit
def _turn_and_store(
    x1, x2, x_ptr, y_ptr, x_rows, y_rows, live, c1, c2, s1, s2, table: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, PAIRS: tl.constexpr, CAST: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    # a step has the dtype promoted from x and the table; that is y's, or it is fp32 and needs no rounding
    ROUND: tl.constexpr = CAST != 2 and (BACKWARD or CAST == 0 or table == dtype)
    y1, y2 = turn(x1, x2, c1, c2, s1, s2, dtype, ROUND, BACKWARD)
    store_pairs(y_ptr, y_rows, live, y1, y2, PAIRS, HALF, BLOCK)
    if REST > 0:
        rest = 2 * HALF + tl.arange(0, REST)[None, None, :]
        x = tl.load(x_ptr + x_rows + rest, mask=live & (rest < D), other=0.0)
        tl.store(y_ptr + y_rows + rest, x.to(dtype), mask=live & (rest < D))


_NUMBERS = [
    "R", "T", "cos_a", "cos_b", "cos_t", "sin_a", "sin_b", "sin_t", "xq_b", "xq_n", "xq_t", "yq_b", "yq_n", "yq_t",
    "xk_b", "xk_n", "xk_t", "yk_b", "yk_n", "yk_t",
]  # fmt: skip


@triton.jit(do_not_specialize=_NUMBERS)
def _rope(
    cos_ptr,  # (B or 1, T, HALF or 2 HALF), behind three axes for mrope
    sin_ptr,  # like cos
    xq_ptr,  # (B, NQ, T, D) in any memory order with dense last dimension; None with NQ = 0
    yq_ptr,  # like xq
    xk_ptr,  # (B, NK, T, D); None with NK = 0
    yk_ptr,  # like xk
    R,  # B * T
    T,
    cos_a, cos_b, cos_t,  # strides by axis, batch, head and token, in units of UNIT elements
    sin_a, sin_b, sin_t,
    xq_b, xq_n, xq_t,
    yq_b, yq_n, yq_t,
    xk_b, xk_n, xk_t,
    yk_b, yk_n, yk_t,
    NQ: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,  # largest power of two up to 16 that divides all strides, so that loads can be wide
    BLOCK: tl.constexpr,
    REST: tl.constexpr,  # power of two >= D - 2 HALF, or 0
    TOKENS: tl.constexpr,  # of one program
    QHEADS: tl.constexpr,
    KHEADS: tl.constexpr,
    X_PAIRS: tl.constexpr,
    Y_PAIRS: tl.constexpr,
    PER_PAIR: tl.constexpr,
    TABLE_PAIRS: tl.constexpr,
    STEP: tl.constexpr,  # from one angle of a table to the next
    AXES: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    CAST: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None, None]
    batch = (rows // T).to(tl.int64) * UNIT
    token = (rows % T).to(tl.int64) * UNIT
    q_heads = (tl.program_id(1) * QHEADS + tl.arange(0, QHEADS))[None, :, None].to(tl.int64)
    k_heads = (tl.program_id(1) * KHEADS + tl.arange(0, KHEADS))[None, :, None].to(tl.int64)
    q_live, k_live = (rows < R) & (q_heads < NQ), (rows < R) & (k_heads < NK)
    # everything is loaded before anything is stored: no load waits behind a store
    if NQ > 0:
        xq = batch * xq_b + token * xq_t + q_heads * (xq_n * UNIT)
        q1, q2 = load_pairs(xq_ptr, xq, q_live, X_PAIRS, HALF, BLOCK)
    if NK > 0:
        xk = batch * xk_b + token * xk_t + k_heads * (xk_n * UNIT)
        k1, k2 = load_pairs(xk_ptr, xk, k_live, X_PAIRS, HALF, BLOCK)
    cos, sin = batch * cos_b + token * cos_t, batch * sin_b + token * sin_t
    c1, c2 = load_angles(
        cos_ptr, cos, rows < R, cos_a * UNIT, PER_PAIR, TABLE_PAIRS, STEP, HALF, BLOCK, AXES, FIRST, SECOND
    )
    s1, s2 = load_angles(
        sin_ptr, sin, rows < R, sin_a * UNIT, PER_PAIR, TABLE_PAIRS, STEP, HALF, BLOCK, AXES, FIRST, SECOND
    )
    table: tl.constexpr = cos_ptr.dtype.element_ty
    if NQ > 0:
        yq = batch * yq_b + token * yq_t + q_heads * (yq_n * UNIT)
        _turn_and_store(
            q1, q2, xq_ptr, yq_ptr, xq, yq, q_live, c1, c2, s1, s2, table, D, HALF, BLOCK, REST, Y_PAIRS, CAST, BACKWARD
        )
    if NK > 0:
        yk = batch * yk_b + token * yk_t + k_heads * (yk_n * UNIT)
        _turn_and_store(
            k1, k2, xk_ptr, yk_ptr, xk, yk, k_live, c1, c2, s1, s2, table, D, HALF, BLOCK, REST, Y_PAIRS, CAST, BACKWARD
        )


# -- Launch ------------------------------------------------------------------------------------------------------------
def dense_last(x: torch.Tensor) -> torch.Tensor:
    """``x``, copied if its last dimension has gaps."""
    return x if x.stride(-1) == 1 else x.contiguous()


def laid(tensors: Sequence[torch.Tensor | None]) -> tuple[Laid | None, ...]:
    """How each lies in memory."""
    return tuple([None if t is None else (t.shape, t.stride()) for t in tensors])


def strides(x: Laid | None, dims: Sequence[int | None]) -> list[int]:
    """Strides in elements; 0 where the dimension is missing or has one entry, whatever torch reports there."""
    if x is None:
        return [0] * len(dims)
    shape, steps = x
    return [0 if d is None or shape[d] == 1 else steps[d] for d in dims]


def axes_of(shape: Sequence[int], heads: int) -> tuple[int | None, int, int]:
    """Batch, head and token axis of q or k; without a batch there are three dimensions."""
    return (0, heads, 3 - heads) if len(shape) == 4 else (None, heads, 1 - heads)


@settings(TOKENS=(1, 2, 4, 8, 16), num_warps=(2, 4, 8, 16))
def tile(NQ: int, NK: int, width: int, elements: int, fill: int, per_thread: int, device: GPU) -> dict[str, int]:
    """What one program takes, TOKENS and heads of q and of k, and its warps; BLOCKS of heads there are.

    All heads of a token up to ``elements``, of more tokens up to ``fill``; a head's ``width`` is a power of two.
    """
    most = max(2, elements // width)
    blocks = 1
    while True:
        q, k = next_power_of_2(ceil_div(NQ, blocks)), next_power_of_2(ceil_div(NK, blocks))
        if q + k <= most or q == k == 1:
            break
        blocks *= 2
    tokens = min(16, _power_of_2_below(fill // (width * (q + k))))
    warps = _power_of_2_below(tokens * (q + k) * width // (32 * per_thread))
    return {"TOKENS": tokens, "QHEADS": q, "KHEADS": k, "BLOCKS": blocks, "num_warps": min(8, max(4, warps))}


def _power_of_2_below(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1


def _step(cos: torch.Tensor, sin: torch.Tensor) -> int | None:
    """The stride of both tables' angles if the kernel takes it: 1, or 2 as in complex numbers."""
    step = cos.stride(-1)
    return step if step in (1, 2) and sin.stride(-1) == step else None


def launch_turn(
    pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]],
    cos: torch.Tensor,
    sin: torch.Tensor,
    form: Form,
    backward: bool,
) -> None:
    """Turn q and k, or their gradients backwards: ``pairs`` are q and its result, k and its result, or None."""
    step = _step(cos, sin) if form.tables == "pair" else 1
    if step is None:
        cos, sin, step = cos.contiguous(), sin.contiguous(), 1
    elif form.tables == "column":
        cos, sin = dense_last(cos), dense_last(sin)
    tensors = (cos, sin, *pairs[0], *pairs[1])
    turn, grid, numbers = _plan(laid(tensors), step, form, backward, gpu(cos.device))
    turn(grid, tensors, numbers)


@cached
def _plan(
    tensors: Sequence[Laid | None], step: int, form: Form, backward: bool, device: GPU
) -> tuple[Launch, tuple[int, int], tuple[int, ...]]:
    """The launch, its grid and numbers for cos, sin, q and its result, k and its result that lie so."""
    cos, sin, q, _, k, _ = tensors
    some = q or k
    assert cos
    assert some
    shape, angles = some[0], cos[0]
    axes = axes_of(shape, form.heads)
    batch, _, time = axes
    T, D = shape[time], shape[-1]
    rows = T if batch is None else T * shape[batch]
    half = angles[-1] if form.tables == "pair" else angles[-1] // 2
    table = (0 if form.sections else None, None if batch is None else len(angles) - 3, len(angles) - 2)
    steps = strides(cos, table) + strides(sin, table)
    for x in tensors[2:]:
        steps += strides(x, axes)
    unit = math.gcd(16, *steps)
    counts = [x[0][form.heads] if x else 0 for x in (q, k)]
    blocks, consts = _constants(counts[0], counts[1], D, half, unit, step, form, backward, device)
    grid = (ceil_div(rows, consts["TOKENS"]), blocks if any(counts) else 0)
    return prepare(_rope, fuse_multiply_add=False, **consts), grid, (rows, T, *(s // unit for s in steps))


def _constants(
    NQ: int, NK: int, D: int, half: int, unit: int, step: int, form: Form, backward: bool, device: GPU
) -> tuple[int, dict[str, Any]]:
    """Blocks of heads, and the constants."""
    # the backward gains 2 % from more threads with less to do, the forward loses 3 %
    per_thread = PER_THREAD // 2 if backward else PER_THREAD
    chosen = tile(NQ, NK, 2 * next_power_of_2(half), ELEMENTS, ELEMENTS, per_thread, device).copy()
    first, second = _bounds(form)
    inside = form.layout != "half", form.layout == "interleaved"  # pairs lie side by side before, after the rotation
    return chosen.pop("BLOCKS"), {
        "NQ": NQ, "NK": NK, "D": D, "HALF": half, "UNIT": unit, "BLOCK": next_power_of_2(half),
        "REST": next_power_of_2(D - 2 * half) if 2 * half < D else 0,
        "X_PAIRS": inside[backward], "Y_PAIRS": inside[not backward],
        "PER_PAIR": form.tables == "pair", "TABLE_PAIRS": form.layout == "interleaved", "STEP": step,
        "AXES": 0 if not form.sections else 2 if form.alternate else 1, "FIRST": first, "SECOND": second,
        "CAST": CAST[form.cast], "BACKWARD": backward, **chosen,
    }  # fmt: skip


def _bounds(form: Form) -> tuple[int, int]:
    """Where the second and third axis of ``mrope`` begin, or end if the axes take turns."""
    if not form.sections:
        return 0, 0
    first, second, third = form.sections
    return (3 * second, 3 * third) if form.alternate else (first, first + second)
