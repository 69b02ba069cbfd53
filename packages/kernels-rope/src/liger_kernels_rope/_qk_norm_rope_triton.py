"""qk_norm_rope as one autograd node around the kernels of ``_norm_turn_triton``."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from liger._partials_triton import add_partials
from liger.launch import GPU, Launch, ceil_div, gpu, next_power_of_2, prepare, private_op, refuse_second_derivative
from liger.settings import cached
from liger_kernels_rope._norm_turn_triton import qk_norm_rope_backward, qk_norm_rope_forward
from liger_kernels_rope._turn_triton import ELEMENTS, Laid, axes_of, dense_last, laid, strides, tile

FORWARD = ELEMENTS, ELEMENTS, 16  # elements a thread; 32 are 4 % slower
BACKWARD_ELEMENTS = 5120  # of q and k in one program: of each it holds x, dy and a sum for the weight's gradient
BACKWARD_FILL = 2560  # with more tokens than one; beyond it float32 spills with heads of 256 columns
BACKWARD_PER_THREAD = 8  # 4 warps with 18 elements a thread spill on sm100
BACKWARD = BACKWARD_ELEMENTS, BACKWARD_FILL, BACKWARD_PER_THREAD
PROGRAMS = 2  # of the backward for each multiprocessor: as many as its registers hold


# -- Launches ----------------------------------------------------------------------------------------------------------
@cached
def _plan(
    tensors: Sequence[Laid | None], heads: int, cast: str, backward: bool, device: GPU
) -> tuple[Launch, tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    """For cos, sin, q, y or dy of it, k, y or dy of it, and in the backward dq and dk, that lie so.

    Returns:
        The launch, its grid, R and T, and all strides in units of ``UNIT``.
    """
    cos, _, q, yq, _, yk = tensors[:6]
    assert cos
    assert q
    shape, NQ, NK = q[0], yq[0][heads] if yq else 0, yk[0][heads] if yk else 0
    axes = axes_of(shape, heads)
    batch, _, time = axes
    D, half = shape[-1], cos[0][-1] // 2
    block, rest = next_power_of_2(half), next_power_of_2(D - 2 * half) if 2 * half < D else 0
    table = (None if batch is None else 0, len(cos[0]) - 2)
    steps = [s for t in tensors[:2] for s in strides(t, table)] + [s for t in tensors[2:] for s in strides(t, axes)]
    unit = math.gcd(16, *steps)
    limits = BACKWARD if backward else FORWARD
    chosen = tile(NQ, NK, next_power_of_2(2 * block + rest), *limits, device).copy()
    blocks = chosen.pop("BLOCKS")
    constants: dict[str, Any] = {
        "NQ": NQ, "NK": NK, "D": D, "HALF": half, "UNIT": unit, "BLOCK": block,
        "REST": rest, "LLAMA": cast == "llama", **chosen,
    }  # fmt: skip
    rows = shape[time] if batch is None else shape[time] * shape[batch]
    programs = ceil_div(rows, chosen["TOKENS"])
    if backward:
        programs = min(programs, max(1, PROGRAMS * device.processors // blocks))
        constants["STAGES"] = 2 if device.shared > 100000 else 1  # a tile of float32 in advance takes 40 KB
    # without fma, so that a gradient has the same bits whether its neighbours are needed or not
    kernel = qk_norm_rope_backward if backward else qk_norm_rope_forward
    prepared = prepare(kernel, fuse_multiply_add=False, **constants)
    return prepared, (programs, blocks), (rows, shape[time]), tuple([s // unit for s in steps])


def _dense_heads(dy: torch.Tensor) -> torch.Tensor:
    """dy, or a copy if its heads do not begin at 16-byte boundaries: how wide loads are decides the order of sums."""
    return dy if _begin_well((dy.shape, dy.stride())) else dy.contiguous()


@cached
def _begin_well(dy: Laid) -> bool:
    shape, steps = dy
    return steps[-1] == 1 and math.gcd(16, *strides(dy, range(len(shape) - 1))) >= math.gcd(16, shape[-1])


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
    forward, grid, rows, steps = _plan(laid((cos, sin, q, yq, k, yk)), heads, cast, False, gpu(q.device))
    tensors = (q, k, q_weight.contiguous(), k_weight.contiguous(), cos, sin, yq, yk)
    forward(grid, tensors, (*rows, eps, offset, *steps))
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
    dq, dk = [torch.empty_like(dense_last(x)) if need else None for x, need in zip((q, k), needs, strict=False)]
    dyq, dyk = [None if dy is None else _dense_heads(dy) for dy in (dyq, dyk)]
    qs, ks, cos, sin = dense_last(q), dense_last(k), dense_last(cos), dense_last(sin)
    lie = laid((cos, sin, qs, dyq, ks, dyk, dq, dk))
    backward, grid, rows, steps = _plan(lie, heads, cast, True, gpu(q.device))
    weights = q_weight, k_weight
    sums = [torch.empty_like(w) if need else None for w, need in zip(weights, needs[2:], strict=True)]
    wanted = [t for t in sums if t is not None]
    parts = q.new_empty((len(wanted), grid[0] * grid[1], q.shape[-1]), dtype=torch.float32) if wanted else None
    q_parts = parts if needs[2] else None
    k_parts = None if not needs[3] else parts[1] if needs[2] else parts  # type: ignore[index]
    tensors = (qs, ks, q_weight.contiguous(), k_weight.contiguous(), cos, sin, dyq, dyk, dq, dk, q_parts, k_parts)
    backward(grid, tensors, (*rows, eps, offset, *steps))
    if parts is not None:
        add_partials(parts, *wanted)
    made = [q.new_empty(0) if t is None else t for t in (dq, dk, *sums)]
    return made[0], made[1], made[2], made[3]


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _QKNormRope(torch.autograd.Function):
    """Saves its arguments and nothing else."""

    @staticmethod
    def forward(ctx, q, k, q_weight, k_weight, cos, sin, options):
        ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return _launch_forward(q, k, q_weight, k_weight, cos, sin, *options)

    @staticmethod
    def backward(ctx, dyq, dyk):
        refuse_second_derivative("qk_norm_rope")
        come = (dyq is not None, dyk is not None) * 2
        needs = [need and there for need, there in zip(ctx.needs_input_grad[:4], come, strict=True)]
        if not any(needs):
            return (None,) * 7
        dyq, dyk = dyq if needs[0] or needs[2] else None, dyk if needs[1] or needs[3] else None
        made = _launch_backward(dyq, dyk, *ctx.saved_tensors, *ctx.options, needs)
        return (*[t if need else None for t, need in zip(made, needs, strict=True)], None, None, None)


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
    return _QKNormRope.apply(q, k, q_weight, k_weight, cos, sin, (unsqueeze_dim, eps, cast, offset))  # type: ignore[no-any-return]
