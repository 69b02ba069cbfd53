"""Kernels that turn rows of logits into losses, statistics and gradients: for every loss with one label a row.

``_statistics_triton.py`` says what the statistics are. The launches do not fuse products with sums: z has to be the
same number wherever it is computed, or top - z_y could be below 0 and a log-prob above it.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from liger._math_triton import exp
from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2
from liger.settings import settings
from liger_kernels_loss._blocks_triton import block_sum, clear, columns
from liger_kernels_loss._loss import Loss, Rows, Upstream, class_total
from liger_kernels_loss._statistics_triton import fold, fold_best, meet, meet_best, nothing, read_block
from liger_kernels_loss._transforms_triton import transform, transform_slope
from liger_kernels_loss.transforms import inner_and_outer

LN2 = tl.constexpr(0.6931471805599453)
ALONE = 65536  # columns above which a row has a multiprocessor for itself
NUMBERS = ["R", "blocks", "dy_stride", "ignore_index", "smoothing", "inner", "outer", "z_loss"]


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
    """-> logit, z and class weight at label y; nan for a label outside [0, V), so that it cannot go unnoticed."""
    inside = (y >= 0) & (y < V)
    logit = tl.load(row_ptr + y, mask=inside, other=0.0)
    own = transform(logit, inner, outer, SOFTCAP)
    weight = class_weights(w_ptr, y, inside)
    return logit, tl.where(inside, own, float("nan")), tl.where(inside, weight, float("nan"))


@triton.jit
def upstream(ptr, row, stride):
    """The gradient of one of the row's results; 1 where no tensor is given."""
    dy = 1.0
    if ptr is not None:
        dy = tl.load(ptr + row * stride)
    return dy


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
    logits, w, top, pull, bend, hit, smooth, inner, outer,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, BEND: tl.constexpr,
):  # fmt: skip
    """Logits and their class weights -> the gradient of the logits in fp32."""
    z = transform(logits, inner, outer, SOFTCAP)
    if BEND:
        away = tl.where(z == -float("inf"), 0.0, z - top)
        dz = exp(z - top) * (pull - bend * away) - hit
    else:
        dz = exp(z - top) * pull - hit
    if SMOOTH:
        dz = dz - smooth * w
    return dz * transform_slope(logits, inner, outer, SOFTCAP)


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def _ignored_row(
    out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, blocks, ignore_index, V: tl.constexpr,
    DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, GRADIENT: tl.constexpr,
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
        clear(out_ptr + row * tl.full((), V, tl.int64), blocks, V, DEPTH, THREADS, EACH)


@triton.jit
def _kept_row(  # noqa: C901  (branches on constants)
    logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
    loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
    row, blocks, dy_stride, smoothing, inner, outer, z_loss,
    V: tl.constexpr, DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    BEND: tl.constexpr = dentropy_ptr is not None
    ENTROPY: tl.constexpr = BEND or entropy_ptr is not None
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = columns(DEPTH, THREADS, EACH)
    logits_ptr += row * tl.full((), V, tl.int64)
    # read before the reductions below, whose barriers keep the stores of the second pass behind it
    label, own, weight = row_label(logits_ptr, w_ptr, y, inner, outer, V, SOFTCAP)
    top, total, bent = nothing(THREADS, -float("inf")), nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    peak, best = nothing(THREADS, -float("inf")), tl.zeros((THREADS,), tl.int32)
    away = nothing(THREADS, 0.0)
    for i in range(blocks):
        cols = i * BLOCK + within
        mask, x, z = read_block(logits_ptr, cols, inner, outer, V, SOFTCAP)
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        if best_ptr is not None:
            peak, best = fold_best(x, cols, mask, inner, peak, best)
        if SMOOTH:
            away += block_sum(tl.where(mask, (z - own) * class_weights(w_ptr, cols, mask), 0.0))
    top, total, bent = meet(top, total, bent, ENTROPY)
    log_total = tl.log2(total) * LN2
    lse = top + log_total
    nll = (top - own) + log_total
    loss = (1.0 - smoothing) * weight * nll + z_loss * lse * lse
    if SMOOTH:
        loss += smoothing / V * (weight_mass(w_total_ptr, V) * nll - tl.sum(away, axis=0))
    entropy = log_total
    if ENTROPY:
        entropy -= bent / total
    tl.store(loss_ptr + row, loss)
    if top_ptr is not None:
        tl.store(top_ptr + row, top)
        tl.store(total_ptr + row, total)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + row, entropy)
    if best_ptr is not None:
        tl.store(best_ptr + row, meet_best(peak, best)[1])
    if GRADIENT:
        out_ptr += row * tl.full((), V, tl.int64)
        pull, bend, hit, smooth = row_coefficients(
            weight, top, total, entropy, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr, row, dy_stride,
            smoothing, z_loss, V, SMOOTH,
        )  # fmt: skip
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * BLOCK + within
            mask = cols < V
            x = tl.load(logits_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first")
            w = class_weights(w_ptr, cols, mask)
            dz = dlogits(x, w, top, pull, bend, 0.0, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
            tl.store(out_ptr + cols, dz.to(out_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")
        # the label's column alone, once the block with it is written: comparing every column spills registers
        tl.debug_barrier()
        dz = dlogits(label, weight, top, pull, bend, hit, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
        tl.store(out_ptr + y, dz.to(out_ptr.dtype.element_ty), mask=(y >= 0) & (y < V))


@triton.jit
def _row(
    logits_ptr, out_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
    loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
    row, blocks, dy_stride, ignore_index, smoothing, inner, outer, z_loss,
    V: tl.constexpr, DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    y = tl.load(target_ptr + row)
    if y == ignore_index:
        _ignored_row(
            out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, blocks, ignore_index,
            V, DEPTH, THREADS, EACH, GRADIENT,
        )  # fmt: skip
    else:
        _kept_row(
            logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
            loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
            row, blocks, dy_stride, smoothing, inner, outer, z_loss,
            V, DEPTH, THREADS, EACH, SOFTCAP, SMOOTH, GRADIENT,
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
    blocks,  # ceil(V / (DEPTH * THREADS * EACH)); as a constant it makes LLVM unroll the loops until they spill
    dy_stride,
    ignore_index,
    smoothing,
    inner,
    outer,
    z_loss,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
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
                r, blocks, dy_stride, ignore_index, smoothing, inner, outer, z_loss,
                V, DEPTH, THREADS, EACH, SOFTCAP, SMOOTH, GRADIENT,
            )  # fmt: skip
    else:
        _row(
            logits_ptr, out_ptr, target_ptr, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
            loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr,
            tl.program_id(0), blocks, dy_stride, ignore_index, smoothing, inner, outer, z_loss,
            V, DEPTH, THREADS, EACH, SOFTCAP, SMOOTH, GRADIENT,
        )  # fmt: skip


# -- Launches ----------------------------------------------------------------------------------------------------------
def numbers(loss: Loss) -> tuple[int | float, ...]:
    """What kernels take as ``ignore_index, smoothing, inner, outer, z_loss``."""
    transform = inner_and_outer(loss.softcap, loss.logit_scale, loss.temperature)
    return loss.ignore_index, float(loss.label_smoothing), *transform, float(loss.z_loss)


def blocks_of(V: int, chosen: Mapping[str, int]) -> int:
    """Blocks of a row."""
    return ceil_div(V, chosen["DEPTH"] * chosen["THREADS"] * chosen["EACH"])


def flags(loss: Loss) -> dict[str, bool]:
    return {"SOFTCAP": loss.softcap is not None, "SMOOTH": loss.label_smoothing != 0.0}


def block_settings(V: int, itemsize: int, values: int, device: GPU) -> dict[str, int]:
    """A block of ``values`` 16-bit values a thread, and the threads of a row.

    A row wider than ``ALONE`` has a multiprocessor for itself, with all of its threads, so that all rows in work stay
    in the cache for their second read; of narrower ones there are two or more, and one loads while another stores. With
    odd V each value is loaded alone, which takes registers.
    """
    each = 1 if V % 2 else 16 // max(itemsize, 2)
    most = device.most_warps if V > ALONE else device.most_warps // 2
    warps = min(most, max(1, next_power_of_2(V) // (device.lanes * each)))
    depth = max(1, values * 2 // max(itemsize, 2) // (each * (4 if V % 2 else 1)))
    depth = min(depth, max(1, next_power_of_2(V) // (warps * device.lanes * each)))
    return {"DEPTH": depth, "THREADS": warps * device.lanes, "EACH": each, "num_warps": warps}


@settings(DEPTH=(1, 2, 4, 8))
def _losses_settings(V: int, itemsize: int, gradient: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_losses``.

    On an H200 at V=128256, 8, 16, 32 and 64 values a thread take 1.38, 1.26, 1.43 and 2.28 ms for 8192 rows.
    """
    return block_settings(V, itemsize, 16, device)


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
    persistent = out is not None and V > 196608 and V % 2 == 0 and device.processors < R
    chosen = _losses_settings(V, logits.element_size(), out is not None, device)
    launch(
        _losses,
        (device.processors if persistent else R,),
        (logits, out, target, class_weight, class_total(class_weight, loss), *upstream, *rows),
        (R, blocks_of(V, chosen), 0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)),
        V=V,
        **chosen,
        **flags(loss),
        GRADIENT=out is not None,
        PERSISTENT=persistent,
        fuse_multiply_add=False,
    )
