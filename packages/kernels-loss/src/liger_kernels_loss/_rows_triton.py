"""Kernels that turn rows of logits into losses, statistics and gradients: for every loss with one label a row.

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
from liger_kernels_loss._loss import Loss, Rows, Upstream, class_total
from liger_kernels_loss._transforms_triton import LOG2E, transform, transform_slope
from liger_kernels_loss.transforms import inner_and_outer

LN2 = tl.constexpr(0.6931471805599453)
NUMBERS = ["R", "dy_stride", "ignore_index", "smoothing", "inner", "outer", "z_loss"]


# -- Pieces ------------------------------------------------------------------------------------------------------------
@triton.jit
def class_weights(w_ptr, at, mask):
    """Class weights at the columns ``at``; 1 without weights."""
    w = 1.0
    if w_ptr is not None:
        w = tl.load(w_ptr + at, mask=mask, other=0.0)
    return w


@triton.jit
def weight_mass(w_total_ptr, V: tl.constexpr):
    """Sum of the class weights; V without weights."""
    mass = V * 1.0
    if w_total_ptr is not None:
        mass = tl.load(w_total_ptr)
    return mass


@triton.jit
def row_label(row_ptr, w_ptr, y, inner, outer, V: tl.constexpr, SOFTCAP: tl.constexpr):
    """-> z and class weight at label y; nan for a label outside [0, V), so that it cannot go unnoticed."""
    inside = (y >= 0) & (y < V)
    own = transform(tl.load(row_ptr + y, mask=inside, other=0.0), inner, outer, SOFTCAP)
    weight = class_weights(w_ptr, y, inside)
    return tl.where(inside, own, float("nan")), tl.where(inside, weight, float("nan"))


@triton.jit
def upstream(ptr, row, stride):
    """The gradient of one of the row's results; 1 where no tensor is given."""
    dy = 1.0
    if ptr is not None:
        dy = tl.load(ptr + row * stride)
    return dy


@triton.jit
def read_block(row_ptr, start, inner, outer, V: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr):
    """-> columns, mask, logits, and transformed logits with -inf beyond the row, of a block."""
    cols = start + tl.arange(0, BLOCK)
    mask = cols < V
    x = tl.load(row_ptr + cols, mask=mask, other=0.0)
    return cols, mask, x, tl.where(mask, transform(x, inner, outer, SOFTCAP), -float("inf"))


@triton.jit
def fold(
    z,  # a block of transformed logits, -inf beyond the row
    top,  # so far: largest z,
    total,  # sum of exp(z - top),
    bent,  # with ENTROPY sum of exp(z - top) * (z - top)
    ENTROPY: tl.constexpr,
):
    """-> top, total, bent with the block. One running maximum per row; one per lane is slower in large blocks."""
    higher = tl.maximum(top, tl.max(z, axis=0))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
    shrink = tl.exp2((top - base) * LOG2E)
    e = tl.exp2((z - base) * LOG2E)
    if ENTROPY:
        drop = tl.where(top == -float("inf"), 0.0, top - base)
        bent = (bent + drop * total) * shrink + tl.sum(tl.where(e == 0.0, 0.0, e * (z - base)), axis=0)
    return higher, total * shrink + tl.sum(e, axis=0), bent


@triton.jit
def fold_best(logits, mask, start, inner, peak, best):
    """-> largest logit so far, negated for a negative scale, and its column; the first of equals."""
    x = logits.to(tl.float32)
    x = tl.where(mask, tl.where(inner > 0, x, -x), -float("inf"))
    largest, at = tl.max(x, axis=0, return_indices=True)
    return tl.maximum(peak, largest), tl.where(largest > peak, start + at, best)


@triton.jit
def row_coefficients(
    weight,  # class weight of the label
    top,
    total,
    entropy,
    w_total_ptr,  # (1,) fp32 or None: sum of class weights
    dy_ptr,  # (R,) fp32 of any stride, or None for ones: upstream gradient of the loss
    dlse_ptr,  # (R,) fp32 or None: of lse
    dentropy_ptr,  # (R,) fp32 or None: of the entropy
    row,
    dy_stride,
    smoothing,
    z_loss,
    V: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """-> pull, bend, hit, smooth; dloss/dz = exp(z - top) * (pull - bend * (z - top)) - smooth * w - [c = y] * hit."""
    log_total = tl.log2(total) * LN2
    dy = upstream(dy_ptr, row, dy_stride)
    hit = (1.0 - smoothing) * weight
    pull = hit + 2.0 * z_loss * (top + log_total)
    smooth = smoothing / V
    if SMOOTH:
        pull += smooth * weight_mass(w_total_ptr, V)
    pull = pull * dy
    bend = 0.0
    if dlse_ptr is not None:
        pull += tl.load(dlse_ptr + row)
    if dentropy_ptr is not None:
        bend = tl.load(dentropy_ptr + row)
        pull += bend * (log_total - entropy)
    return pull / total, bend / total, hit * dy, smooth * dy


@triton.jit
def dlogits(
    z, w, top, pull, bend, hit, smooth, inner, outer,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, BEND: tl.constexpr,
):  # fmt: skip
    """Transformed logits and their class weights -> the gradient of the logits in fp32."""
    if BEND:
        away = tl.where(z == -float("inf"), 0.0, z - top)
        dz = tl.exp2((z - top) * LOG2E) * (pull - bend * away) - hit
    else:
        dz = tl.exp2((z - top) * LOG2E) * pull - hit
    if SMOOTH:
        dz = dz - smooth * w
    return dz * transform_slope(z, inner, outer, SOFTCAP)


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def _ignored_row(
    out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, ignore_index, V: tl.constexpr,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    tl.store(loss_ptr + row, 0.0)
    if top_ptr is not None:
        tl.store(top_ptr + row, 0.0)
        tl.store(total_ptr + row, 1.0)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + row, 0.0)
    if best_ptr is not None:
        tl.store(best_ptr + row, ignore_index)
    if GRADIENT:
        out_ptr += row * tl.full((), V, tl.int64)
        for start in range(0, V, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            tl.store(out_ptr + cols, tl.zeros((BLOCK,), out_ptr.dtype.element_ty), mask=cols < V)


@triton.jit
def _kept_row(
    logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
    loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
    row, dy_stride, smoothing, inner, outer, z_loss,
    V: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    BEND: tl.constexpr = dentropy_ptr is not None
    ENTROPY: tl.constexpr = BEND or entropy_ptr is not None
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    logits_ptr += row * tl.full((), V, tl.int64)
    # read before the reductions below, whose barriers keep the stores of the second pass behind it
    own, weight = row_label(logits_ptr, w_ptr, y, inner, outer, V, SOFTCAP)
    top = -float("inf")
    peak = -float("inf")
    best = 0
    total = 0.0
    bent = 0.0
    away = 0.0
    for start in range(0, V, BLOCK):
        cols, mask, x, z = read_block(logits_ptr, start, inner, outer, V, BLOCK, SOFTCAP)
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        if best_ptr is not None:
            peak, best = fold_best(x, mask, start, inner, peak, best)
        if SMOOTH:
            away += tl.sum(tl.where(mask, (z - own) * class_weights(w_ptr, cols, mask), 0.0), axis=0)
    log_total = tl.log2(total) * LN2
    lse = top + log_total
    nll = (top - own) + log_total
    loss = (1.0 - smoothing) * weight * nll + z_loss * lse * lse
    if SMOOTH:
        loss += smoothing / V * (weight_mass(w_total_ptr, V) * nll - away)
    entropy = log_total - bent / total
    tl.store(loss_ptr + row, loss)
    if top_ptr is not None:
        tl.store(top_ptr + row, top)
        tl.store(total_ptr + row, total)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + row, entropy)
    if best_ptr is not None:
        tl.store(best_ptr + row, best)
    if GRADIENT:
        out_ptr += row * tl.full((), V, tl.int64)
        pull, bend, hit, smooth = row_coefficients(
            weight, top, total, entropy, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr, row, dy_stride,
            smoothing, z_loss, V, SMOOTH,
        )  # fmt: skip
        for i in range(BLOCKS):  # backwards: the end of the row is what the cache still holds
            cols, mask, x, z = read_block(logits_ptr, (BLOCKS - 1 - i) * BLOCK, inner, outer, V, BLOCK, SOFTCAP)
            w = class_weights(w_ptr, cols, mask)
            dz = dlogits(z, w, top, pull, bend, 0.0, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
            tl.store(out_ptr + cols, dz.to(out_ptr.dtype.element_ty), mask=mask)
        # the label's column alone, once the block with it is written: comparing every column spills registers
        tl.debug_barrier()
        dz = dlogits(own, weight, top, pull, bend, hit, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
        tl.store(out_ptr + y, dz.to(out_ptr.dtype.element_ty), mask=(y >= 0) & (y < V))


@triton.jit
def _row(
    logits_ptr, out_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
    loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
    row, dy_stride, ignore_index, smoothing, inner, outer, z_loss,
    V: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    y = tl.load(target_ptr + row)
    if y == ignore_index:
        _ignored_row(
            out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, ignore_index, V, BLOCK, GRADIENT
        )
    else:
        _kept_row(
            logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
            loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
            row, dy_stride, smoothing, inner, outer, z_loss, V, BLOCK, SOFTCAP, SMOOTH, GRADIENT,
        )  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def _losses(
    logits_ptr,  # (R, V)
    out_ptr,  # (R, V) for dlogits, may be logits_ptr; or None
    target_ptr,  # (R,) int64
    w_ptr,  # (V,) fp32 or None
    w_total_ptr,  # (1,) fp32 or None: sum of w
    dy_ptr,  # (R,) fp32 of any stride, 0 for one number, or None for ones: upstream gradient of the loss
    dlse_ptr,  # (R,) fp32 or None: of lse
    dentropy_ptr,  # (R,) fp32 or None: of the entropy
    loss_ptr,  # (R,) fp32
    top_ptr,  # (R,) fp32 or None
    total_ptr,  # (R,) fp32 or None
    entropy_ptr,  # (R,) fp32 or None
    best_ptr,  # (R,) int64 or None: column of the largest logit
    R,
    dy_stride,
    ignore_index,
    smoothing,
    inner,
    outer,
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
                logits_ptr, out_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
                loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
                r, dy_stride, ignore_index, smoothing, inner, outer, z_loss, V, BLOCK, SOFTCAP, SMOOTH, GRADIENT,
            )  # fmt: skip
    else:
        _row(
            logits_ptr, out_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
            loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
            tl.program_id(0), dy_stride, ignore_index, smoothing, inner, outer, z_loss,
            V, BLOCK, SOFTCAP, SMOOTH, GRADIENT,
        )  # fmt: skip


# -- Launches ----------------------------------------------------------------------------------------------------------
def numbers(loss: Loss) -> tuple[int | float, ...]:
    """What kernels take as ``ignore_index, smoothing, inner, outer, z_loss``."""
    transform = inner_and_outer(loss.softcap, loss.logit_scale, loss.temperature)
    return loss.ignore_index, float(loss.label_smoothing), *transform, float(loss.z_loss)


def flags(loss: Loss) -> dict[str, bool]:
    return {"SOFTCAP": loss.softcap is not None, "SMOOTH": loss.label_smoothing != 0.0}


@settings(BLOCK=(1024, 2048, 4096, 8192, 16384, 32768), num_warps=(4, 8, 16, 32))
def _losses_settings(V: int, itemsize: int, gradient: bool, statistics: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_losses``; ``statistics``: whether it has more to find than the loss.

    One program of 32 warps fills a multiprocessor's registers and 32768 columns a step keep it loading: 1.43x a copy's
    time at V=128256 on an H200, with half of both 1.55x. Half of both on AMD, where a warp is 64 lanes. With odd V each
    value is loaded and masked alone: only an eighth of the columns spills with no option. Half of them beside the
    entropy or a prediction, which takes an index for each value.
    """
    most = device.most_warps
    block = min(next_power_of_2(V), 1024 * most // (8 if V % 2 else 1) // (2 if statistics else 1))
    return {"BLOCK": block, "num_warps": min(most, max(4, next_power_of_2(V) // 1024))}


def launch_losses(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: Upstream,
    rows: Rows,
    loss: Loss,
    out: torch.Tensor | None,
) -> None:
    """Write the results of logits (R, V) with target (R,) int64 into ``rows``, and dlogits into ``out``, if given.

    ``out`` may be the logits themselves.
    """
    R, V = logits.shape
    device = gpu(logits.device)
    # Rows wider than this leave the cache before the second pass unless few are alive at a time (1.2x at V=262144).
    # With odd V the loop over rows would spill.
    statistics = rows.entropy is not None or rows.best is not None or upstream.entropy is not None
    persistent = out is not None and V > 196608 and V % 2 == 0 and device.processors < R
    launch(
        _losses,
        (device.processors if persistent else R,),
        (logits, out, target, class_weight, class_total(class_weight, loss), *upstream, *rows),
        (R, 0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)),
        V=V,
        **_losses_settings(V, logits.element_size(), out is not None, statistics, device),
        **flags(loss),
        GRADIENT=out is not None,
        PERSISTENT=persistent,
    )
