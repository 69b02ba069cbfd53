"""Triton kernels of the vocabulary-parallel cross-entropies: the statistics of a shard's rows, and their gradient."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2
from liger.settings import settings
from liger_kernels_loss import _linear_cross_entropy_triton  # noqa: F401  (the chunk loop's backend)
from liger_kernels_loss._blocks_triton import block_sum, columns
from liger_kernels_loss._loss import Loss, Wants, is_soft
from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss._row_terms_triton import block_settings, blocks_of, class_weights, dlogits
from liger_kernels_loss._statistics_triton import fold, fold_best, meet, meet_best, nothing, read_block
from liger_kernels_loss._transforms_triton import transform
from liger_kernels_loss._vocab_parallel import parallel_cross_entropy, parallel_linear_cross_entropy
from liger_kernels_loss._vocab_parallel_rows import MATHS, Maths, Place
from liger_kernels_loss.transforms import inner_and_outer


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def fold_distance(
    z,  # a block of transformed logits, -inf beyond the row
    w,  # weights of its columns, 0 beyond the row
    before,  # (THREADS,) the largest z before the block
    top,  # (THREADS,) and with it
    distance,  # (THREADS,) so far: sum of w * (before - z)
    mass,  # (THREADS,) sum of w
):
    """-> distance with respect to ``top`` and mass, with the block."""
    to = top[None, :, None]
    down = tl.where((w == 0.0) | (z == to), 0.0, w * (to - z))
    return carried(before, top, distance, mass) + block_sum(down), mass + block_sum(w)


@triton.jit
def carried(before, top, distance, mass):
    """The distance with respect to ``top`` instead of ``before``."""
    return distance + tl.where(mass == 0.0, 0.0, (top - before) * mass)


@triton.jit(do_not_specialize=["R", "blocks", "first", "classes", "ignore_index", "inner", "outer"])
def _statistics(
    logits_ptr,  # (R, V)
    target_ptr,  # (R,) int64, or with SOFT (R, V) floating
    w_ptr,  # (V,) fp32 or None
    out_ptr,  # (K, R) fp32: the rows of _vocab_parallel_rows.fields
    R,
    blocks,
    first,
    classes,
    ignore_index,
    inner,
    outer,
    V: tl.constexpr,  # columns of this shard
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    SOFT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
    ENTROPY: tl.constexpr,
    BEST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    out_ptr += row
    if not SOFT:
        y = tl.load(target_ptr + row)
        kept = y != ignore_index
        blocks = tl.where(kept, blocks, 0)  # of an ignored row nothing is read
        at = y - first
        here = (at >= 0) & (at < V) & kept
        own = transform(tl.load(logits_ptr + at, mask=here, other=0.0), inner, outer, SOFTCAP)
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = columns(DEPTH, THREADS, EACH)
    top, total, bent = nothing(THREADS, -float("inf")), nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    peak, best = nothing(THREADS, -float("inf")), tl.zeros((THREADS,), tl.int32)
    found, mass = nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    away, width = nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    for i in range(blocks):
        cols = i * BLOCK + within
        mask, x, z = read_block(logits_ptr, cols, inner, outer, V, SOFTCAP)
        before = top
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        w = tl.where(mask, class_weights(w_ptr, cols, mask), 0.0)
        if SOFT:
            t = tl.load(target_ptr + row * V + cols, mask=mask, other=0.0).to(tl.float32)
            found, mass = fold_distance(z, t * w, before, top, found, mass)
        if SMOOTH:
            away, width = fold_distance(z, w, before, top, away, width)
        if BEST:
            peak, best = fold_best(x, cols, mask, inner, peak, best)
    before = top
    top, total, bent = meet(top, total, bent, ENTROPY)
    if SOFT:
        found, mass = tl.sum(carried(before, top, found, mass), axis=0), tl.sum(mass, axis=0)
    else:
        mass = tl.where(here, class_weights(w_ptr, at, here), 0.0)
        mass = tl.where((y < 0) | (y >= classes), float("nan"), mass)  # a label out of range must not go unnoticed
        found = tl.where(here & (own != top), mass * (top - own), 0.0)
        top = tl.where(kept, top, 0.0)
        mass = tl.where(kept, mass, 0.0)
    tl.store(out_ptr, top)
    tl.store(out_ptr + R, total)
    tl.store(out_ptr + 2 * R, mass)
    tl.store(out_ptr + 3 * R, found)
    out_ptr += 4 * R
    if SMOOTH:
        tl.store(out_ptr, tl.sum(carried(before, top, away, width), axis=0))
        tl.store(out_ptr + R, tl.sum(width, axis=0))
        out_ptr += 2 * R
    if ENTROPY:
        tl.store(out_ptr, bent)
        out_ptr += R
    if BEST:
        peak, best = meet_best(peak, best)
        tl.store(out_ptr, peak)
        tl.store(out_ptr + R, (best + first).to(tl.float32))


@triton.jit(do_not_specialize=["R", "first", "ignore_index", "inner", "outer"])
def _gradient(
    logits_ptr,  # (R, V)
    out_ptr,  # (R, V) for dlogits; may be logits_ptr
    target_ptr,  # (R,) int64, or with SOFT (R, V) floating
    w_ptr,  # (V,) fp32 or None
    rows_ptr,  # (4 or 5, R) fp32: top, pull, hit, smooth, with BEND bend
    R,
    first,
    ignore_index,
    inner,
    outer,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
    BEND: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < V
    top = tl.load(rows_ptr + row)
    pull = tl.load(rows_ptr + R + row)
    hit = tl.load(rows_ptr + 2 * R + row)
    smooth = tl.load(rows_ptr + 3 * R + row)
    bend = 0.0
    if BEND:
        bend = tl.load(rows_ptr + 4 * R + row)
    x = tl.load(logits_ptr + row * V + cols, mask=mask, other=0.0)
    w = class_weights(w_ptr, cols, mask)
    if SOFT:
        t = tl.load(target_ptr + row * V + cols, mask=mask, other=0.0).to(tl.float32)
        hits = hit * t * w
    else:
        y = tl.load(target_ptr + row)
        hits = tl.where(cols == y - first, hit * w, 0.0)
    dz = dlogits(x, w, top, pull, bend, hits, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
    if not SOFT:
        dz = tl.where(y == ignore_index, 0.0, dz)
    tl.store(out_ptr + row * V + cols, dz.to(out_ptr.dtype.element_ty), mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4))
def _statistics_settings(V: int, itemsize: int, soft: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_statistics``: 16 columns a thread, half of them if probabilities are read too."""
    return block_settings(V, itemsize, 8 if soft else 16, device)


@settings(BLOCK=(1024, 2048, 4096, 8192), num_warps=(1, 2, 4, 8, 16))
def _gradient_settings(V: int, itemsize: int, soft: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_gradient``: 16 bytes a load and 4 loads a thread in 16 bit."""
    block = min(next_power_of_2(V), 2048 if soft or V % 2 else 4096)
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 512))}


def _launch_statistics(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    place: Place,
    loss: Loss,
    wants: Wants,
    out: torch.Tensor,
) -> None:
    """As ``_vocab_parallel_torch.torch_statistics``."""
    R, V = logits.shape
    soft = is_soft(target)
    chosen = _statistics_settings(V, logits.element_size(), soft, gpu(logits.device))
    transform = inner_and_outer(loss.softcap, loss.logit_scale, loss.temperature)
    launch(
        _statistics,
        (R,),
        (logits, target, class_weight, out),
        (R, blocks_of(V, chosen), *place, loss.ignore_index, *transform),
        V=V,
        **chosen,
        SOFT=soft,
        SOFTCAP=loss.softcap is not None,
        SMOOTH=loss.label_smoothing != 0.0,
        ENTROPY=wants.entropy,
        BEST=wants.best,
        fuse_multiply_add=False,
    )


def _launch_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    coefficients: torch.Tensor,
    place: Place,
    loss: Loss,
    out: torch.Tensor,
) -> None:
    """As ``_vocab_parallel_torch.torch_gradient``."""
    R, V = logits.shape
    soft = is_soft(target)
    chosen = _gradient_settings(V, logits.element_size(), soft, gpu(logits.device))
    launch(
        _gradient,
        (R, ceil_div(V, chosen["BLOCK"])),
        (logits, out, target, class_weight, coefficients),
        (R, place.first, loss.ignore_index, *inner_and_outer(loss.softcap, loss.logit_scale, loss.temperature)),
        V=V,
        **chosen,
        SOFT=soft,
        SOFTCAP=loss.softcap is not None,
        SMOOTH=loss.label_smoothing != 0.0,
        BEND=coefficients.shape[0] == 5,
        fuse_multiply_add=False,
    )


MATHS["triton"] = Maths(_launch_statistics, _launch_gradient)


def vocab_parallel_cross_entropy_triton(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_cross_entropy``."""
    return parallel_cross_entropy("triton", *tensors, **options)


def vocab_parallel_linear_cross_entropy_triton(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.vocab_parallel_linear_cross_entropy``."""
    return parallel_linear_cross_entropy("triton", *tensors, **options)
