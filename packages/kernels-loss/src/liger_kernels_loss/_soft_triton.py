"""Kernel for rows whose target is a distribution over the classes, and the launch for targets of both kinds."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger._math_triton import LN2
from liger.launch import GPU, gpu, launch
from liger.settings import settings
from liger_kernels_loss._blocks_triton import block_sum, columns
from liger_kernels_loss._loss import Loss, Rows, Upstream, is_soft
from liger_kernels_loss._row_terms_triton import (
    block_settings,
    blocks_of,
    class_weights,
    dlogits,
    numbers,
    upstream,
)
from liger_kernels_loss._rows_triton import launch_losses
from liger_kernels_loss._statistics_triton import fold, fold_best, meet, meet_best, nothing, read_block
from liger_kernels_loss._transforms_triton import transform

NUMBERS = ["blocks", "dy_stride", "smoothing", "inner", "outer", "z_loss"]


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V: tl.constexpr):
    """w * q' at the columns, q' = (1 - s) * q + s / V; 0 beyond the row."""
    q = tl.load(target_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    q = (1.0 - smoothing) * q + smoothing / V
    return tl.where(mask, q * class_weights(w_ptr, cols, mask), 0.0)


@triton.jit(do_not_specialize=NUMBERS)
def _soft_losses(  # noqa: C901  (branches on constants)
    logits_ptr,  # (R, V)
    out_ptr,  # (R, V) for dlogits, may be logits_ptr; or None
    target_ptr,  # (R, V) floating
    w_ptr,  # (V,) fp32 or None
    dy_ptr,  # (R,) fp32 of any stride, or None for ones: upstream gradient of the loss
    dlse_ptr,  # (R,) fp32 or None: of lse
    dentropy_ptr,  # (R,) fp32 or None: of the entropy
    loss_ptr,  # (R,) fp32
    top_ptr,  # (R,) fp32 or None
    total_ptr,  # (R,) fp32 or None
    entropy_ptr,  # (R,) fp32 or None
    best_ptr,  # (R,) int64 or None
    blocks,
    dy_stride,
    smoothing,
    inner,
    outer,
    z_loss,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    SOFTCAP: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    BEND: tl.constexpr = dentropy_ptr is not None
    ENTROPY: tl.constexpr = BEND or entropy_ptr is not None
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    target_ptr += row * V
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = columns(DEPTH, THREADS, EACH)
    top, total, bent = nothing(THREADS, -float("inf")), nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    peak, best = nothing(THREADS, -float("inf")), tl.zeros((THREADS,), tl.int32)
    masses = nothing(THREADS, 0.0)
    for i in range(blocks):
        cols = i * BLOCK + within
        mask, x, z = read_block(logits_ptr, cols, inner, outer, V, SOFTCAP)
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        masses += block_sum(soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V))
        if best_ptr is not None:
            peak, best = fold_best(x, cols, mask, inner, peak, best)
    top, total, bent = meet(top, total, bent, ENTROPY)
    mass = tl.sum(masses, axis=0)
    log_total = tl.log2(total) * LN2
    lse = top + log_total
    entropy = log_total
    if ENTROPY:
        entropy -= bent / total
    dy = upstream(dy_ptr, row, dy_stride)
    pull = (mass + 2.0 * z_loss * lse) * dy
    bend = 0.0
    if dlse_ptr is not None:
        pull += tl.load(dlse_ptr + row)
    if BEND:
        bend = tl.load(dentropy_ptr + row)
        pull += bend * (log_total - entropy)
    losses = nothing(THREADS, 0.0)
    for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
        cols = (blocks - 1 - i) * BLOCK + within
        mask, x, _ = read_block(logits_ptr, cols, inner, outer, V, SOFTCAP)
        z = transform(x, inner, outer, SOFTCAP)
        q = soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V)
        losses += block_sum(tl.where(q == 0.0, 0.0, q * ((top - z) + log_total)))
        if GRADIENT:
            dz = dlogits(x, 0.0, top, pull / total, bend / total, q * dy, 0.0, inner, outer, SOFTCAP, False, BEND)
            tl.store(out_ptr + row * V + cols, dz.to(out_ptr.dtype.element_ty), mask=mask)
    loss = z_loss * lse * lse + tl.sum(losses, axis=0)
    tl.store(loss_ptr + row, loss)
    if top_ptr is not None:
        tl.store(top_ptr + row, top)
        tl.store(total_ptr + row, total)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + row, entropy)
    if best_ptr is not None:
        tl.store(best_ptr + row, meet_best(peak, best)[1])


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4))
def _soft_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_soft_losses``: as for labels, with half of the columns, since two tensors are read."""
    return block_settings(V, itemsize, 8, device)


def launch_rows(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: Upstream,
    rows: Rows,
    loss: Loss,
    out: torch.Tensor | None,
) -> None:
    """``launch_losses`` for a target (R,) of labels or (R, V) of probabilities."""
    if not is_soft(target):
        launch_losses(logits, target, class_weight, upstream, rows, loss, out)
        return
    R, V = logits.shape
    chosen = _soft_settings(V, max(logits.element_size(), target.element_size()), gpu(logits.device))
    launch(
        _soft_losses,
        (R,),
        (logits, out, target, class_weight, *upstream, *rows),
        (blocks_of(V, chosen), 0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)[1:]),
        V=V,
        **chosen,
        SOFTCAP=loss.softcap is not None,
        GRADIENT=out is not None,
        fuse_multiply_add=False,
    )
