"""Triton kernel of rope: one program per token and block of heads; queries and keys in one launch."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import ceil_div, launch, next_power_of_2, private_op, refuse_second_derivative
from liger_kernels_rope.rope import rotate_half

TILE = 1024  # elements of one half that a program holds: 4 warps x 32 lanes x 8 elements, one 16-byte load in bf16


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _rotate(
    x_ptr,  # heads of one token: (N, D), rows x_stride * UNIT apart
    y_ptr,  # the same for the result
    x_stride,
    y_stride,
    c1,  # (BLOCK,) fp32, and so on
    c2,
    s1,
    s2,
    first,
    N: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    dtype = y_ptr.dtype.element_ty
    heads = (first + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (heads < N) & (cols < HALF)
    x_at, y_at = heads * x_stride * UNIT + cols, heads * y_stride * UNIT + cols
    x1 = tl.load(x_ptr + x_at, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + x_at + HALF, mask=mask, other=0.0).to(tl.float32)
    if BACKWARD:
        a, b = x2 * s2[None, :], -(x1 * s1[None, :])
    else:
        a, b = -(x2 * s1[None, :]), x1 * s2[None, :]
    # upstream rounds each product
    y1 = (x1 * c1[None, :]).to(dtype).to(tl.float32) + a.to(dtype).to(tl.float32)
    y2 = (x2 * c2[None, :]).to(dtype).to(tl.float32) + b.to(dtype).to(tl.float32)
    tl.store(y_ptr + y_at, y1.to(dtype), mask=mask)
    tl.store(y_ptr + y_at + HALF, y2.to(dtype), mask=mask)
    if REST > 0:
        rest = 2 * HALF + tl.arange(0, REST)[None, :]
        mask = (heads < N) & (rest < D)
        x = tl.load(x_ptr + heads * x_stride * UNIT + rest, mask=mask, other=0.0)
        tl.store(y_ptr + heads * y_stride * UNIT + rest, x.to(dtype), mask=mask)


_NUMBERS = [
    "T", "cos_b", "cos_t", "sin_b", "sin_t", "xq_b", "xq_n", "xq_t", "yq_b", "yq_n", "yq_t",
    "xk_b", "xk_n", "xk_t", "yk_b", "yk_n", "yk_t",
]  # fmt: skip


@triton.jit(do_not_specialize=_NUMBERS)
def _rope(
    cos_ptr,  # (B or 1, T, 2 HALF)
    sin_ptr,  # (B or 1, T, 2 HALF)
    xq_ptr,  # (B, NQ, T, D) in any memory order with dense last dimension; None with NQ = 0
    yq_ptr,  # like xq
    xk_ptr,  # (B, NK, T, D); None with NK = 0
    yk_ptr,  # like xk
    T,
    cos_b,  # strides by batch, head and token, in units of UNIT elements
    cos_t,
    sin_b,
    sin_t,
    xq_b,
    xq_n,
    xq_t,
    yq_b,
    yq_n,
    yq_t,
    xk_b,
    xk_n,
    xk_t,
    yk_b,
    yk_n,
    yk_t,
    NQ: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,  # largest power of two up to 16 that divides all strides, so that loads can be wide
    BLOCK: tl.constexpr,
    REST: tl.constexpr,  # power of two >= D - 2 HALF, or 0
    HEADS: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    batch = (tl.program_id(0) // T).to(tl.int64) * UNIT
    token = (tl.program_id(0) % T).to(tl.int64) * UNIT
    cols = tl.arange(0, BLOCK)
    cos = cos_ptr + batch * cos_b + token * cos_t + cols
    sin = sin_ptr + batch * sin_b + token * sin_t + cols
    c1 = tl.load(cos, mask=cols < HALF, other=0.0).to(tl.float32)
    c2 = tl.load(cos + HALF, mask=cols < HALF, other=0.0).to(tl.float32)
    s1 = tl.load(sin, mask=cols < HALF, other=0.0).to(tl.float32)
    s2 = tl.load(sin + HALF, mask=cols < HALF, other=0.0).to(tl.float32)
    block = tl.program_id(1)
    q_blocks = tl.cdiv(NQ, HEADS)
    if block < q_blocks:  # names of their own: q and k may differ in dtype, and triton gives a name one type
        if NQ > 0:
            xq, yq = xq_ptr + batch * xq_b + token * xq_t, yq_ptr + batch * yq_b + token * yq_t
            first = block * HEADS
            _rotate(xq, yq, xq_n, yq_n, c1, c2, s1, s2, first, NQ, D, HALF, UNIT, BLOCK, REST, HEADS, BACKWARD)
    else:
        if NK > 0:
            xk, yk = xk_ptr + batch * xk_b + token * xk_t, yk_ptr + batch * yk_b + token * yk_t
            first = (block - q_blocks) * HEADS
            _rotate(xk, yk, xk_n, yk_n, c1, c2, s1, s2, first, NK, D, HALF, UNIT, BLOCK, REST, HEADS, BACKWARD)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _dense_last(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: torch.Tensor | None, dims: Sequence[int]) -> list[int]:
    """Strides in elements; 0 where the dimension has one entry, whatever torch reports there."""
    if x is None:
        return [0] * len(dims)
    return [x.stride(d) if x.shape[d] > 1 else 0 for d in dims]


def _launch(
    pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]],
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    backward: bool,
) -> None:
    """pairs: q and its result, k and its result, or None; ``heads`` is the head axis, 1 or 2."""
    cos, sin = _dense_last(cos), _dense_last(sin)
    some = next(x for x, _ in pairs if x is not None)
    B, T, D, half = some.shape[0], some.shape[3 - heads], some.shape[3], cos.shape[2] // 2
    strides = _strides(cos, (0, 1)) + _strides(sin, (0, 1))
    for pair in pairs:
        for x in pair:
            strides += _strides(x, (0, heads, 3 - heads))
    unit = 16
    while any(s % unit for s in strides):
        unit //= 2
    counts = [0 if x is None else x.shape[heads] for x, _ in pairs]
    block = next_power_of_2(half)
    per_program = max(1, min(TILE // block, next_power_of_2(max(*counts, 1))))
    grid = (B * T, sum(ceil_div(n, per_program) for n in counts))
    rest = next_power_of_2(D - 2 * half) if 2 * half < D else 0
    consts: dict[str, Any] = {
        "NQ": counts[0], "NK": counts[1], "D": D, "HALF": half, "UNIT": unit,
        "BLOCK": block, "REST": rest, "HEADS": per_program, "BACKWARD": backward,
    }  # fmt: skip
    tensors = (cos, sin, *pairs[0], *pairs[1])
    numbers = (T, *(s // unit for s in strides))
    launch(_rope, grid, tensors, numbers, num_warps=4, fuse_multiply_add=False, **consts)


def _forward_fake(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    def like(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(_dense_last(x), dtype=torch.promote_types(x.dtype, cos.dtype))

    return like(q), like(k)


@private_op("rope_forward", _forward_fake)
def _launch_forward(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k of any strides; the results have the same strides where the input is dense."""
    yq, yk = _forward_fake(q, k, cos, sin, heads)
    _launch(((_dense_last(q), yq), (_dense_last(k), yk)), cos, sin, heads, False)
    return yq, yk


def _backward_fake(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    q_strides: Sequence[int],
    k_strides: Sequence[int],
    q_dtype: torch.dtype,
    k_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    def like(dy: torch.Tensor | None, strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if dy is None:
            return cos.new_empty(0)
        return torch.empty_strided(dy.shape, strides, dtype=dtype, device=dy.device)

    return like(dyq, q_strides, q_dtype), like(dyk, k_strides, k_dtype)


@private_op("rope_backward", _backward_fake)
def _launch_backward(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    q_strides: Sequence[int],
    k_strides: Sequence[int],
    q_dtype: torch.dtype,
    k_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> dq, dk with the given strides; an empty tensor where no gradient comes in."""
    dq, dk = _backward_fake(dyq, dyk, cos, sin, heads, q_strides, k_strides, q_dtype, k_dtype)
    pairs = [(None, None) if dy is None else (_dense_last(dy), dx) for dy, dx in ((dyq, dq), (dyk, dk))]
    _launch(pairs, cos, sin, heads, True)
    return dq, dk


# -- Autograd ----------------------------------------------------------------------------------------------------------
def _table_gradient(
    grads: Sequence[torch.Tensor | None], turned: Sequence[torch.Tensor], table: torch.Tensor, heads: int
) -> torch.Tensor | None:
    """Gradient of cos, or of sin if ``turned`` is q and k with their halves rotated: summed over heads and q and k.

    Over the batch too, if it shares the table.
    """
    total = None
    for dy, x in zip(grads, turned, strict=True):
        if dy is not None:
            part = (dy[..., : table.shape[-1]] * x).sum(heads)
            part = part.sum(0, keepdim=True) if table.shape[0] == 1 else part
            total = part if total is None else total + part
    return total


class _Rope(torch.autograd.Function):
    """Saves cos and sin; q and k only if cos or sin need a gradient."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        yq, yk = _launch_forward(q, k, cos, sin, heads)
        tables = any(ctx.needs_input_grad[2:4])
        ctx.save_for_backward(cos, sin, *((q, k) if tables else ()))
        ctx.heads, ctx.layout = heads, (yq.stride(), yk.stride(), q.dtype, k.dtype)
        ctx.set_materialize_grads(False)
        return yq, yk

    @staticmethod
    def backward(ctx: Any, dyq: torch.Tensor | None, dyk: torch.Tensor | None) -> tuple[Any, ...]:
        refuse_second_derivative("rope")
        cos, sin, *inputs = ctx.saved_tensors
        need_q, need_k, need_cos, need_sin, _ = ctx.needs_input_grad
        grad_q, grad_k = dyq if need_q else None, dyk if need_k else None
        dq = dk = dcos = dsin = None
        if grad_q is not None or grad_k is not None:
            dq, dk = _launch_backward(grad_q, grad_k, cos, sin, ctx.heads, *ctx.layout)
        plain = [x[..., : cos.shape[-1]] for x in inputs]
        if need_cos:
            dcos = _table_gradient((dyq, dyk), plain, cos, ctx.heads)
        if need_sin:
            dsin = _table_gradient((dyq, dyk), [rotate_half(x) for x in plain], sin, ctx.heads)
        return (
            None if grad_q is None else dq,
            None if grad_k is None else dk,
            dcos,
            dsin,
            None,
        )


def rope_triton(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, unsqueeze_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_rope.rope``."""
    return _Rope.apply(q, k, cos, sin, unsqueeze_dim)  # type: ignore[no-any-return, no-untyped-call]
