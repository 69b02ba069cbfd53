"""Kernels that turn rows of logits into losses and, in place, gradients; both cross-entropies launch them.

A row's statistics are its largest z, top, and total = sum exp(z - top), kept apart: p = exp(z - top) / total and
lse - z_y = (top - z_y) + log(total) stay accurate however large the logits are, and both terms of the latter are >= 0.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger.launch import GPU, gpu, launch, next_power_of_2
from liger.settings import settings
from liger_kernels_loss._loss import Loss
from liger_kernels_loss._transforms_triton import LOG2E, transform, transform_slope

LN2 = tl.constexpr(0.6931471805599453)
NUMBERS = ["R", "ignore_index", "smoothing", "softcap", "scale", "z_loss", "dy_stride"]


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def class_weights(w_ptr, at, mask):
    """Class weights at the columns ``at``; 1 without weights."""
    w = 1.0
    if w_ptr is not None:
        w = tl.load(w_ptr + at, mask=mask, other=0.0)
    return w


@triton.jit
def row_statistics(
    row_ptr,  # (V,) logits
    w_ptr,  # (V,) fp32 or None
    own,  # z at the label
    scale,
    softcap,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """-> top, total, sum of w * (z - own). One running maximum per row; one per lane is slower in large blocks."""
    top = -float("inf")
    total = 0.0
    away = 0.0
    for start in range(0, V, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < V
        z = transform(tl.load(row_ptr + cols, mask=mask, other=0.0), scale, softcap, SOFTCAP)
        z = tl.where(mask, z, -float("inf"))
        higher = tl.maximum(top, tl.max(z, axis=0))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
        total = total * tl.exp2((top - base) * LOG2E) + tl.sum(tl.exp2((z - base) * LOG2E), axis=0)
        top = higher
        if SMOOTH:
            away += tl.sum(tl.where(mask, (z - own) * class_weights(w_ptr, cols, mask), 0.0), axis=0)
    return top, total, away


@triton.jit
def row_label(row_ptr, w_ptr, y, scale, softcap, V: tl.constexpr, SOFTCAP: tl.constexpr):
    """-> z and class weight at label y; nan for a label outside [0, V), so that it cannot go unnoticed."""
    inside = (y >= 0) & (y < V)
    own = transform(tl.load(row_ptr + y, mask=inside, other=0.0), scale, softcap, SOFTCAP)
    weight = class_weights(w_ptr, y, inside)
    return tl.where(inside, own, float("nan")), tl.where(inside, weight, float("nan"))


@triton.jit
def weight_mass(w_total_ptr, V: tl.constexpr):
    """Sum of the class weights; V without weights."""
    mass = V * 1.0
    if w_total_ptr is not None:
        mass = tl.load(w_total_ptr)
    return mass


@triton.jit
def row_gradient(
    z,  # transformed logits, a block or the label's
    w,  # their class weights
    top,
    total,
    pull,  # coefficient of p
    hit,  # what is subtracted at the label; 0 elsewhere
    smooth,  # label_smoothing / V
    factor,  # upstream gradient
    scale,
    softcap,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """-> dlogits in fp32."""
    dz = tl.exp2((z - top) * LOG2E) * (pull / total) - hit
    if SMOOTH:
        dz = dz - smooth * w
    return dz * (factor * transform_slope(z, scale, softcap, SOFTCAP))


@triton.jit
def _row(
    logits_ptr,  # (R, V); with GRADIENT each row ends as its dlogits
    target_ptr,  # (R,) int64
    w_ptr,  # (V,) fp32 or None
    w_total_ptr,  # (1,) fp32 or None: sum of w
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number; or None for ones
    loss_ptr,  # (R,) fp32
    top_ptr,  # (R,) fp32 or None
    total_ptr,  # (R,) fp32 or None
    row,
    dy_stride,
    ignore_index,
    smoothing,
    softcap,
    scale,
    z_loss,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    dtype = logits_ptr.dtype.element_ty
    row_ptr = logits_ptr + row * tl.full((), V, tl.int64)
    y = tl.load(target_ptr + row)
    if y == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        if top_ptr is not None:
            tl.store(top_ptr + row, 0.0)
            tl.store(total_ptr + row, 1.0)
        if GRADIENT:
            for start in range(0, V, BLOCK):
                cols = start + tl.arange(0, BLOCK)
                tl.store(row_ptr + cols, tl.zeros((BLOCK,), dtype), mask=cols < V)
    else:
        # read before the reductions below, whose barriers keep the stores of the second pass behind it
        own, weight = row_label(row_ptr, w_ptr, y, scale, softcap, V, SOFTCAP)
        top, total, away = row_statistics(row_ptr, w_ptr, own, scale, softcap, V, BLOCK, SOFTCAP, SMOOTH)
        log_total = tl.log2(total) * LN2
        lse = top + log_total
        nll = (top - own) + log_total
        hit = (1.0 - smoothing) * weight
        pull = hit + 2.0 * z_loss * lse
        loss = hit * nll + z_loss * lse * lse
        smooth = smoothing / V
        if SMOOTH:
            mass = weight_mass(w_total_ptr, V)
            pull += smooth * mass
            loss += smooth * (mass * nll - away)
        tl.store(loss_ptr + row, loss)
        if top_ptr is not None:
            tl.store(top_ptr + row, top)
            tl.store(total_ptr + row, total)
        if GRADIENT:
            factor = 1.0
            if dy_ptr is not None:
                factor = tl.load(dy_ptr + row * dy_stride)
            BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
            for i in range(BLOCKS):  # backwards: the end of the row is what the cache still holds
                cols = (BLOCKS - 1 - i) * BLOCK + tl.arange(0, BLOCK)
                mask = cols < V
                z = transform(tl.load(row_ptr + cols, mask=mask, other=0.0), scale, softcap, SOFTCAP)
                w = class_weights(w_ptr, cols, mask)
                dz = row_gradient(z, w, top, total, pull, 0.0, smooth, factor, scale, softcap, SOFTCAP, SMOOTH)
                tl.store(row_ptr + cols, dz.to(dtype), mask=mask)
            # the label's column alone, once the block with it is written: comparing every column spills registers
            tl.debug_barrier()
            dz = row_gradient(own, weight, top, total, pull, hit, smooth, factor, scale, softcap, SOFTCAP, SMOOTH)
            tl.store(row_ptr + y, dz.to(dtype), mask=(y >= 0) & (y < V))


@triton.jit(do_not_specialize=NUMBERS)
def _losses(
    logits_ptr,  # (R, V); with GRADIENT overwritten by dlogits
    target_ptr,  # (R,) int64
    w_ptr,  # (V,) fp32 or None
    w_total_ptr,  # (1,) fp32 or None
    dy_ptr,  # (R,) fp32 or None
    loss_ptr,  # (R,) fp32
    top_ptr,  # (R,) fp32 or None
    total_ptr,  # (R,) fp32 or None
    R,
    dy_stride,
    ignore_index,
    smoothing,
    softcap,
    scale,
    z_loss,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
    GRADIENT: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    if PERSISTENT:
        for r in range(tl.program_id(0), R, tl.num_programs(0)):
            _row(
                logits_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, loss_ptr, top_ptr, total_ptr,
                r, dy_stride, ignore_index, smoothing, softcap, scale, z_loss, V, BLOCK, SOFTCAP, SMOOTH, GRADIENT,
            )  # fmt: skip
    else:
        _row(
            logits_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, loss_ptr, top_ptr, total_ptr,
            tl.program_id(0), dy_stride, ignore_index, smoothing, softcap, scale, z_loss, V, BLOCK, SOFTCAP, SMOOTH,
            GRADIENT,
        )  # fmt: skip


# -- Launches ----------------------------------------------------------------------------------------------------------
def numbers(loss: Loss) -> tuple[int | float, ...]:
    return (
        loss.ignore_index,
        float(loss.label_smoothing),
        float(loss.softcap or 1.0),
        float(loss.logit_scale),
        float(loss.z_loss),
    )


def flags(loss: Loss) -> dict[str, bool]:
    return {"SOFTCAP": loss.softcap is not None, "SMOOTH": loss.label_smoothing != 0.0}


def class_total(class_weight: torch.Tensor | None, loss: Loss) -> torch.Tensor | None:
    """Sum of the class weights, where the smoothing needs it."""
    return None if class_weight is None or not loss.label_smoothing else class_weight.sum().reshape(1)


@settings(BLOCK=(1024, 2048, 4096, 8192, 16384, 32768), num_warps=(4, 8, 16, 32))
def _losses_settings(V: int, itemsize: int, gradient: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_losses``.

    One program of 32 warps fills a multiprocessor's registers and 32768 columns a step keep it loading: 1.43x a copy's
    time at V=128256 on an H200, with half of both 1.55x. Half of both on AMD, where a warp is 64 lanes. With odd V each
    value is loaded and masked alone: only an eighth of the columns spills with no option.
    """
    most = 16 if device.name.startswith("gfx") else 32
    block = min(next_power_of_2(V), 1024 * most // (8 if V % 2 else 1))
    return {"BLOCK": block, "num_warps": min(most, max(4, next_power_of_2(V) // 1024))}


def launch_losses(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: torch.Tensor | None,
    rows: torch.Tensor,
    statistics: tuple[torch.Tensor, torch.Tensor] | tuple[None, None],
    loss: Loss,
    gradient: bool,
) -> None:
    """logits (R, V), target (R,) int64, rows (R,) fp32: write the losses; with ``gradient`` logits become dlogits."""
    R, V = logits.shape
    device = gpu(logits.device)
    # Rows wider than this leave the cache before the second pass unless few are alive at a time (1.2x at V=262144).
    # With odd V the loop over rows would spill.
    persistent = gradient and V > 196608 and V % 2 == 0 and device.processors < R
    launch(
        _losses,
        (device.processors if persistent else R,),
        (logits, target, class_weight, class_total(class_weight, loss), upstream, rows, *statistics),
        (R, 0 if upstream is None else upstream.stride(0), *numbers(loss)),
        V=V,
        **_losses_settings(V, logits.element_size(), gradient, device),
        **flags(loss),
        GRADIENT=gradient,
        PERSISTENT=persistent,
    )
