"""Triton kernel of kl_div: losses or their sums, and the gradient, of one element after another."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger._math_triton import LN2, exp
from liger.launch import GPU, ceil_div, gpu, launch, private_op
from liger.settings import settings
from liger_kernels_loss._blocks_triton import block_sum, columns, log2, unit_of
from liger_kernels_loss._pairs import pair_loss
from liger_kernels_loss._scale_triton import scaled
from liger_kernels_loss.kl_div import OP, element_divisor


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _element(x, t, LOG_TARGET: tl.constexpr, REVERSE: tl.constexpr):
    """-> the loss and its gradient."""
    if REVERSE:
        q = exp(x)
        above = x - (t if LOG_TARGET else tl.log(t))
        return tl.where(q == 0.0, 0.0, q * above), tl.where(q == 0.0, 0.0, q * (above + 1.0))
    if LOG_TARGET:
        p = exp(t)
        return p * (t - x), -p
    entropy = tl.where(t == 0.0, 0.0, t * (log2(t) * LN2))
    return tl.where(t < 0.0, float("nan"), entropy) - t * x, -t  # of a negative number the logarithm above is not nan


@triton.jit(do_not_specialize=["N"])
def _elements(
    x_ptr,  # (n,)
    t_ptr,  # (n,)
    dy_ptr,  # (n,) fp32, or (1,) without EACH_DY; or None for ones
    loss_ptr,  # (n,) fp32, or (programs,) with TOTAL: their sums; or None
    d_ptr,  # (n,) or None
    N,  # n in units of UNIT elements, so that the mask is known to change between 16-byte loads only
    UNIT: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    LOG_TARGET: tl.constexpr,
    REVERSE: tl.constexpr,
    TOTAL: tl.constexpr,
    EACH_DY: tl.constexpr,
):
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    BEYOND: tl.constexpr = 1.0 if REVERSE and not LOG_TARGET else 0.0  # the target beyond the end: no loss beside x = 0
    within = columns(DEPTH, THREADS, EACH)
    n = tl.full((), UNIT, tl.int64) * N
    total = tl.zeros((THREADS,), tl.float32)
    factor = 1.0
    if dy_ptr is not None and not EACH_DY:
        factor = tl.load(dy_ptr)
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        at = block * tl.full((), BLOCK, tl.int64) + within
        mask = at < n
        t = tl.load(t_ptr + at, mask=mask, other=BEYOND).to(tl.float32)
        x = 0.0
        if loss_ptr is not None or REVERSE:
            x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        loss, slope = _element(x, t, LOG_TARGET, REVERSE)
        if loss_ptr is not None:
            if TOTAL:
                total += block_sum(loss)  # 0 beyond the end, also with LOG_TARGET: exp(0) * (0 - 0)
            else:
                tl.store(loss_ptr + at, loss, mask=mask)
        if d_ptr is not None:
            if EACH_DY:
                slope *= tl.load(dy_ptr + at, mask=mask, other=0.0)
            tl.store(d_ptr + at, (slope * factor).to(d_ptr.dtype.element_ty), mask=mask)
    if loss_ptr is not None and TOTAL:
        tl.store(loss_ptr + tl.program_id(0), tl.sum(total, axis=0))


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4), PROGRAMS=(2, 4, 8, 16))
def _settings(itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_elements``, and its programs for each multiprocessor: 16 KB on their way for each."""
    warps = 256 // device.lanes
    return {"DEPTH": 2, "THREADS": 256, "EACH": 16 // max(itemsize, 2), "num_warps": warps, "PROGRAMS": 16}


def _chosen(x: torch.Tensor, target: torch.Tensor) -> tuple[int, dict[str, Any]]:
    """The number of programs, and constants."""
    device = gpu(x.device)
    chosen: dict[str, Any] = {**_settings(max(x.element_size(), target.element_size()), device)}
    block = chosen["DEPTH"] * chosen["THREADS"] * chosen["EACH"]
    return min(chosen.pop("PROGRAMS") * device.processors, ceil_div(x.numel(), block)), chosen


def _elements_fake(
    x: torch.Tensor,
    target: torch.Tensor,
    labels: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    log_target: bool,
    reverse: bool,
    total: bool,
    loss: bool,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    losses = x.new_empty(_chosen(x, target)[0] if total else x.shape, dtype=torch.float32) if loss else None
    made = torch.empty_like(x, memory_format=torch.contiguous_format) if gradient else None
    return losses, made  # type: ignore[return-value]


@private_op("kl_div", _elements_fake)
def _kl_div(
    x: torch.Tensor,
    target: torch.Tensor,
    labels: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    log_target: bool,
    reverse: bool,
    total: bool,
    loss: bool,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and target of any strides -> losses of x's shape or, with ``total``, sums of some; dx contiguous; or None."""
    losses, made = _elements_fake(x, target, labels, dy, op, log_target, reverse, total, loss, gradient)
    programs, chosen = _chosen(x, target)
    each = dy is not None and not total
    factor = dy if dy is None or total else dy.contiguous()
    unit = unit_of(x.numel())
    launch(
        _elements,
        (programs,),
        (x.contiguous(), target.contiguous(), factor, losses, made),
        (x.numel() // unit,),
        **chosen,
        UNIT=unit,
        LOG_TARGET=log_target,
        REVERSE=reverse,
        TOTAL=total,
        EACH_DY=each,
    )
    return losses, made


def kl_div_triton(
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    *,
    reduction: str,
    log_target: bool,
    reverse: bool,
) -> torch.Tensor:
    """See ``liger_kernels_loss.kl_div``."""
    total = reduction != "none"
    by = element_divisor(input, reduction)
    return pair_loss(_kl_div, scaled, input, target, None, by, total, (OP, log_target, reverse, total))
