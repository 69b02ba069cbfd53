"""Launches of group_norm, and its gradient; the kernels are in ``_group_kernels_triton``."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from liger._partials_triton import add_partials
from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import cached, settings
from liger_kernels_norm._group_kernels_triton import _apply, _backward, _channel_sums, _dx, _forward, _statistics

TILE = 4096  # elements: 8 KB in bf16, 16 values a thread
LARGE = 65536  # bytes of a group


class _Plan(NamedTuple):
    """How a group is cut, of settings: tiles of CH channels and BS positions, and how many programs share it."""

    CG: int
    S: int
    CH: int
    BS: int
    warps: int
    blocks: int
    across: int
    sharing: int

    @property
    def shape(self) -> dict[str, Any]:
        """Constants of every kernel."""
        return {"CG": self.CG, "S": self.S, "CH": self.CH, "BS": self.BS}


@settings(num_warps=(4, 8, 16, 32), PROGRAMS=(1, 2, 4, 8))
def _tile_settings(CG: int, S: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Tiles of CH channels and BS positions, 8 or 16 values a thread, and ``PROGRAMS`` per multiprocessor.

    With fewer groups than that several programs share one. Where groups are large a program fills a multiprocessor with
    warps, so that few of them are in work and their second read finds a part of each in a cache; not with warps of 64
    lanes, whose compiler unrolls these loops until registers spill.
    """
    if CG * S * itemsize > LARGE and S >= TILE and device.lanes == 32:
        CH = 1 + (CG % 2 == 0)  # fewer sums over a block, and no channel that is not there
        return {"CH": CH, "BS": 2 * TILE // CH, "num_warps": 32 if S > TILE else 16, "PROGRAMS": 1}
    BS = min(next_power_of_2(S), TILE)
    CH = min(next_power_of_2(CG), TILE // BS)
    return {"CH": CH, "BS": BS, "num_warps": min(8, max(4, CH * BS // 512)), "PROGRAMS": 4}


@cached
def _plan(groups: int, CG: int, S: int, itemsize: int, device: GPU) -> _Plan:
    """For that many groups of CG channels and S positions."""
    tile = _tile_settings(CG, S, itemsize, device)
    blocks, across = ceil_div(CG, tile["CH"]), ceil_div(S, tile["BS"])
    sharing = max(1, min(blocks * across, tile["PROGRAMS"] * device.processors // max(1, groups)))
    return _Plan(CG, S, tile["CH"], tile["BS"], tile["num_warps"], blocks, across, sharing)


def _plan_of(x: torch.Tensor, num_groups: int) -> tuple[int, _Plan]:
    """Number of groups in the batch, and the plan."""
    groups, C = x.shape[0] * num_groups, x.shape[1]
    positions = x.numel() // max(1, x.shape[0] * C)
    return groups, _plan(groups, C // num_groups, positions, x.element_size(), gpu(x.device))


def _forward_fake(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, num_groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = x.new_empty(x.shape[0] * num_groups, dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty_like(mean)


@private_op("group_norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, num_groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (N, C, ...) contiguous -> y, and mean and rstd, (N * num_groups,) fp32."""
    y, mean, rstd = _forward_fake(x, weight, bias, num_groups, eps)
    if not x.numel():
        return y, mean, rstd
    groups, plan = _plan_of(x, num_groups)
    numbers = (num_groups, eps)
    if plan.sharing == 1:
        launch(_forward, (groups,), (x, weight, bias, y, mean, rstd), numbers, num_warps=plan.warps, **plan.shape)
        return y, mean, rstd
    grid = (groups, plan.sharing)
    parts = x.new_empty((*grid, 3), dtype=torch.float32)
    launch(_statistics, grid, (x, parts), num_warps=plan.warps, **plan.shape)
    tensors, padded = (x, weight, bias, parts, y, mean, rstd), next_power_of_2(plan.sharing)
    launch(_apply, grid, tensors, numbers, num_warps=plan.warps, **plan.shape, PARTS=padded)
    return y, mean, rstd


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    num_groups: int,
    bias_dtype: torch.dtype,
    needs: list[bool],
) -> list[torch.Tensor]:
    dtypes = (x.dtype, x.dtype if weight is None else weight.dtype, bias_dtype)
    shapes = (x.shape, x.shape[1:2], x.shape[1:2])
    return [
        x.new_empty(shape if need else 0, dtype=dtype) for shape, dtype, need in zip(shapes, dtypes, needs, strict=True)
    ]


@private_op("group_norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    num_groups: int,
    bias_dtype: torch.dtype,
    needs: list[bool],
) -> list[torch.Tensor]:
    """dy, x (N, C, ...) contiguous -> dx, dw (C,), db (C,); an empty tensor for what is not needed."""
    made = _backward_fake(dy, x, weight, mean, rstd, num_groups, bias_dtype, needs)
    if not x.numel():
        return [t.zero_() for t in made]
    groups, plan = _plan_of(x, num_groups)
    sums: list[torch.Tensor | None] = [None, None]
    dx = made[0] if needs[0] else None
    if plan.sharing == 1:
        sums = [x.new_empty(x.shape[:2], dtype=torch.float32) if need else None for need in needs[1:]]
        tensors = (dy, x, weight, mean, rstd, dx, *sums)
        launch(_backward, (groups,), tensors, (num_groups,), num_warps=plan.warps, **plan.shape)
    else:
        sums = list(_shared_sums(dy, x, mean, rstd, groups, plan))
        if dx is not None:
            tensors = (dy, x, weight, mean, rstd, *sums, dx)
            grid = (groups, plan.sharing)
            launch(_dx, grid, tensors, (num_groups,), num_warps=plan.warps, **plan.shape, STEP=256)
    for part, out, need in zip(sums, made[1:], needs[1:], strict=True):
        if part is not None and need:
            add_partials(part, out)
    return made


def _shared_sums(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, groups: int, plan: _Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums over positions of dy * xhat and of dy, (N, C) fp32, by several programs for each group."""
    splits = min(plan.across, ceil_div(plan.sharing, plan.blocks))
    a = x.new_empty((splits, *x.shape[:2]), dtype=torch.float32)
    b = torch.empty_like(a)
    grid = (groups * plan.blocks, splits)
    launch(_channel_sums, grid, (dy, x, mean, rstd, a, b), num_warps=plan.warps, **plan.shape)
    if splits == 1:
        return a[0], b[0]
    made = torch.empty_like(a[0]), torch.empty_like(b[0])
    for part, total in zip((a, b), made, strict=True):
        add_partials(part, total)
    return made


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _GroupNorm(torch.autograd.Function):
    """Saves x, weight, mean and rstd; the normalised value is recomputed."""

    @staticmethod
    def forward(ctx, x, weight, bias, num_groups, eps):
        x = x.contiguous()
        weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
        y, mean, rstd = _launch_forward(x, weight, bias, num_groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.num_groups, ctx.bias_dtype = num_groups, x.dtype if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("group_norm")
        needs = list(ctx.needs_input_grad[:3])
        made = _launch_backward(dy.contiguous(), *ctx.saved_tensors, ctx.num_groups, ctx.bias_dtype, needs)
        return *(t if need else None for t, need in zip(made, needs, strict=True)), None, None


def group_norm_triton(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *, num_groups: int, eps: float
) -> torch.Tensor:
    """See ``liger_kernels_norm.group_norm``."""
    return _GroupNorm.apply(x, weight, bias, num_groups, eps)  # type: ignore[no-any-return]
