"""Kernel for rows whose target is a distribution over the classes, and the launch for targets of both kinds."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger.launch import GPU, gpu, launch, next_power_of_2
from liger.settings import settings
from liger_kernels_loss._loss import Loss, Rows, Upstream, is_soft
from liger_kernels_loss._rows_triton import (
    LN2,
    class_weights,
    dlogits,
    fold,
    fold_best,
    launch_losses,
    numbers,
    upstream,
)
from liger_kernels_loss._transforms_triton import transform

NUMBERS = ["dy_stride", "smoothing", "inner", "outer", "z_loss"]


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V: tl.constexpr):
    """w * q' at the columns, q' = (1 - s) * q + s / V; 0 beyond the row."""
    q = tl.load(target_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    q = (1.0 - smoothing) * q + smoothing / V
    return tl.where(mask, q * class_weights(w_ptr, cols, mask), 0.0)


@triton.jit(do_not_specialize=NUMBERS)
def _soft_losses(
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
    dy_stride,
    smoothing,
    inner,
    outer,
    z_loss,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    BEND: tl.constexpr = dentropy_ptr is not None
    ENTROPY: tl.constexpr = BEND or entropy_ptr is not None
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    target_ptr += row * V
    top = -float("inf")
    peak = -float("inf")
    best = 0
    total = 0.0
    bent = 0.0
    mass = 0.0
    for start in range(0, V, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < V
        x = tl.load(logits_ptr + cols, mask=mask, other=0.0)
        z = tl.where(mask, transform(x, inner, outer, SOFTCAP), -float("inf"))
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        mass += tl.sum(soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V), axis=0)
        if best_ptr is not None:
            peak, best = fold_best(x, mask, start, inner, peak, best)
    log_total = tl.log2(total) * LN2
    lse = top + log_total
    entropy = log_total - bent / total
    dy = upstream(dy_ptr, row, dy_stride)
    pull = (mass + 2.0 * z_loss * lse) * dy
    bend = 0.0
    if dlse_ptr is not None:
        pull += tl.load(dlse_ptr + row)
    if BEND:
        bend = tl.load(dentropy_ptr + row)
        pull += bend * (log_total - entropy)
    loss = z_loss * lse * lse
    for start in range(0, V, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < V
        z = transform(tl.load(logits_ptr + cols, mask=mask, other=0.0), inner, outer, SOFTCAP)
        q = soft_weights(target_ptr, w_ptr, cols, mask, smoothing, V)
        loss += tl.sum(tl.where(q == 0.0, 0.0, q * ((top - z) + log_total)), axis=0)
        if GRADIENT:
            dz = dlogits(z, 0.0, top, pull / total, bend / total, q * dy, 0.0, inner, outer, SOFTCAP, False, BEND)
            tl.store(out_ptr + row * V + cols, dz.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(loss_ptr + row, loss)
    if top_ptr is not None:
        tl.store(top_ptr + row, top)
        tl.store(total_ptr + row, total)
    if entropy_ptr is not None:
        tl.store(entropy_ptr + row, entropy)
    if best_ptr is not None:
        tl.store(best_ptr + row, best)


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(BLOCK=(1024, 2048, 4096, 8192, 16384), num_warps=(4, 8, 16, 32))
def _soft_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_soft_losses``: as for labels, with half of the columns, since two tensors are read."""
    most = device.most_warps
    block = min(next_power_of_2(V), 512 * most // (8 if V % 2 else 1))
    return {"BLOCK": block, "num_warps": min(most, max(4, next_power_of_2(V) // 1024))}


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
    launch(
        _soft_losses,
        (R,),
        (logits, out, target, class_weight, *upstream, *rows),
        (0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)[1:]),
        V=V,
        **_soft_settings(V, logits.element_size(), gpu(logits.device)),
        SOFTCAP=loss.softcap is not None,
        GRADIENT=out is not None,
    )
