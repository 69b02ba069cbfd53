"""qk_norm_rope as one autograd node around the kernels of ``_norm_turn_triton``."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from liger._partials_triton import add_partials
from liger.launch import ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger_kernels_rope._norm_turn_triton import qk_norm_rope_backward, qk_norm_rope_forward
from liger_kernels_rope._turn_triton import ELEMENTS, axes_of, dense_last, strides, tile

FORWARD = ELEMENTS, ELEMENTS, 16  # elements a thread; 32 are 4 % slower
BACKWARD_ELEMENTS = 5120  # of q and k in one program: of each it holds x, dy and a sum for the weight's gradient
BACKWARD_FILL = 2560  # with more tokens than one; beyond it float32 spills with heads of 256 columns
BACKWARD_PER_THREAD = 8  # 4 warps with 18 elements a thread spill on sm100
BACKWARD = BACKWARD_ELEMENTS, BACKWARD_FILL, BACKWARD_PER_THREAD
PROGRAMS = 2  # of the backward for each multiprocessor: as many as its registers hold


# -- Launches ----------------------------------------------------------------------------------------------------------
def _constants(
    q: torch.Tensor,
    cos: torch.Tensor,
    counts: Sequence[int],
    heads: int,
    steps: Sequence[int],
    cast: str,
    limits: tuple[int, int, int],
) -> tuple[int, tuple[int, int], dict[str, Any]]:
    """Blocks of heads, R and T, and the constants of either kernel; ``limits`` are those of ``tile``."""
    batch, _, time = axes_of(q, heads)
    D, half = q.shape[-1], cos.shape[-1] // 2
    block, rest = next_power_of_2(half), next_power_of_2(D - 2 * half) if 2 * half < D else 0
    chosen = tile(counts[0], counts[1], next_power_of_2(2 * block + rest), *limits, gpu(q.device)).copy()
    blocks = chosen.pop("BLOCKS")
    consts = {
        "NQ": counts[0], "NK": counts[1], "D": D, "HALF": half, "UNIT": math.gcd(16, *steps), "BLOCK": block,
        "REST": rest, "LLAMA": cast == "llama", **chosen,
    }  # fmt: skip
    T = q.shape[time]
    return blocks, (T if batch is None else T * q.shape[batch], T), consts


def _dense_heads(dy: torch.Tensor) -> torch.Tensor:
    """dy, or a copy if its heads do not begin at 16-byte boundaries: how wide loads are decides the order of sums."""
    steps = strides(dy, range(dy.dim() - 1))
    return dy if dy.stride(-1) == 1 and math.gcd(16, *steps) >= math.gcd(16, dy.shape[-1]) else dy.contiguous()


def _steps(cos: torch.Tensor, sin: torch.Tensor, heads: int, *tensors: torch.Tensor | None) -> list[int]:
    """Strides of the tables and of tensors like q, in elements."""
    q = next(t for t in tensors if t is not None)
    table = (None if q.dim() == 3 else 0, cos.dim() - 2)
    axes = axes_of(q, heads)
    out = strides(cos, table) + strides(sin, table)
    for t in tensors:
        out += strides(t, axes)
    return out


def _forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    eps: float,
    cast: str,
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    def like(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(x.dtype, weight.dtype) if cast == "llama" else x.dtype
        return torch.empty_like(dense_last(x), dtype=torch.promote_types(dtype, cos.dtype))

    return like(q, q_weight), like(k, k_weight)


@private_op("qk_norm_rope_forward", _forward_fake)
def _launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    eps: float,
    cast: str,
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k of any strides -> y of both, with the same strides where the input is dense."""
    yq, yk = _forward_fake(q, k, q_weight, k_weight, cos, sin, heads, eps, cast, offset)
    q, k, cos, sin = dense_last(q), dense_last(k), dense_last(cos), dense_last(sin)
    steps = _steps(cos, sin, heads, q, yq, k, yk)
    counts = q.shape[heads], k.shape[heads]
    blocks, rows, consts = _constants(q, cos, counts, heads, steps, cast, FORWARD)
    numbers = (*rows, eps, offset, *(s // consts["UNIT"] for s in steps))
    grid = (ceil_div(rows[0], consts["TOKENS"]), blocks)
    tensors = (q, k, q_weight.contiguous(), k_weight.contiguous(), cos, sin, yq, yk)
    launch(qk_norm_rope_forward, grid, tensors, numbers, fuse_multiply_add=False, **consts)
    return yq, yk


def _backward_fake(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    eps: float,
    cast: str,
    offset: float,
    needs: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    def like(x: torch.Tensor, need: bool) -> torch.Tensor:
        return torch.empty_like(dense_last(x)) if need else x.new_empty(0)

    made = [like(x, need) for x, need in zip((q, k, q_weight, k_weight), needs, strict=True)]
    return made[0], made[1], made[2], made[3]


@private_op("qk_norm_rope_backward", _backward_fake)
def _launch_backward(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    eps: float,
    cast: str,
    offset: float,
    needs: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> dq, dk, dq_weight, dk_weight; an empty tensor for what ``needs`` leaves out."""
    dq, dk = (torch.empty_like(dense_last(x)) if need else None for x, need in zip((q, k), needs, strict=False))
    dyq, dyk = (None if dy is None else _dense_heads(dy) for dy in (dyq, dyk))
    qs, ks = dense_last(q), dense_last(k)
    cos, sin = dense_last(cos), dense_last(sin)
    steps = _steps(cos, sin, heads, qs, dyq, ks, dyk, dq, dk)
    counts = [0 if dy is None else dy.shape[heads] for dy in (dyq, dyk)]
    blocks, rows, consts = _constants(qs, cos, counts, heads, steps, cast, BACKWARD)
    device = gpu(q.device)
    programs = min(ceil_div(rows[0], consts["TOKENS"]), max(1, PROGRAMS * device.processors // blocks))
    size = (programs * blocks, q.shape[-1])
    parts = [q.new_empty(size, dtype=torch.float32) if need else None for need in needs[2:]]
    tensors = (qs, ks, q_weight.contiguous(), k_weight.contiguous(), cos, sin, dyq, dyk, dq, dk, *parts)
    numbers = (*rows, eps, offset, *(s // consts["UNIT"] for s in steps))
    # without fma, so that a gradient has the same bits whether its neighbours are needed or not
    stages = 2 if device.shared > 100000 else 1  # a tile of float32 in advance takes 40 KB
    grid = (programs, blocks)
    launch(qk_norm_rope_backward, grid, tensors, numbers, fuse_multiply_add=False, **consts, STAGES=stages)
    sums = [None if p is None else torch.empty_like(w) for p, w in zip(parts, (q_weight, k_weight), strict=True)]
    for part, total in zip(parts, sums, strict=True):
        if part is not None and total is not None:
            add_partials(part, total)
    made = [q.new_empty(0) if t is None else t for t in (dq, dk, *sums)]
    return made[0], made[1], made[2], made[3]


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _QKNormRope(torch.autograd.Function):
    """Saves its arguments and nothing else."""

    @staticmethod
    def forward(ctx, q, k, q_weight, k_weight, cos, sin, heads, eps, cast, offset):
        ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin)
        ctx.options = (heads, eps, cast, offset)
        ctx.set_materialize_grads(False)
        return _launch_forward(q, k, q_weight, k_weight, cos, sin, heads, eps, cast, offset)

    @staticmethod
    def backward(ctx, dyq, dyk):
        refuse_second_derivative("qk_norm_rope")
        come = (dyq is not None, dyk is not None) * 2
        needs = [need and there for need, there in zip(ctx.needs_input_grad[:4], come, strict=True)]
        if not any(needs):
            return (None,) * 10
        dyq, dyk = dyq if needs[0] or needs[2] else None, dyk if needs[1] or needs[3] else None
        made = _launch_backward(dyq, dyk, *ctx.saved_tensors, *ctx.options, needs)
        return (*(t if need else None for t, need in zip(made, needs, strict=True)), *(None,) * 6)


def qk_norm_rope_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
    cast: str,
    offset: float,
    unsqueeze_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_rope.qk_norm_rope``."""
    return _QKNormRope.apply(q, k, q_weight, k_weight, cos, sin, unsqueeze_dim, eps, cast, offset)  # type: ignore[no-any-return]
