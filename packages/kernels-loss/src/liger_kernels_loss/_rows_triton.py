"""The kernel that turns rows of logits into losses, statistics and gradients: for every loss with one label a row.

``_statistics_triton.py`` says what the statistics are. The launches do not fuse products with sums: z has to be the
same number wherever it is computed, or top - z_y could be below 0 and a log-prob above it.

A row is read for its statistics and again for its gradient. One that is too wide for the second read to come from the
cache is shared by a team of programs (``liger._teams_triton``), who tell each other what their parts amount to.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger._math_triton import LN2
from liger._teams_triton import ALONE, HEAR, TELL, board, hear, phases, place, tell
from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2
from liger.settings import settings
from liger_kernels_loss._blocks_triton import block_sum, clear, columns
from liger_kernels_loss._loss import Loss, Rows, Upstream, class_total
from liger_kernels_loss._row_terms_triton import (
    NUMBERS,
    block_settings,
    blocks_of,
    class_weights,
    dlogits,
    flags,
    label_terms,
    numbers,
    row_coefficients,
    weight_mass,
)
from liger_kernels_loss._statistics_triton import NOWHERE, fold, fold_best, meet, meet_best, nothing, read_block

SHARED = 131072  # columns above which a row is shared: of 132 in work the second read would come from memory
PART = 32768  # bytes of a part: several of them fit into the nearest cache
WORDS = tl.constexpr(4)  # on the board for each part: top and total; bent and away; peak and best; the label's logit


# -- Kernel ------------------------------------------------------------------------------------------------------------
@triton.jit
def _ignored_row(
    out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, part, blocks, ignore_index, V: tl.constexpr,
    DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    if part == 0:
        tl.store(loss_ptr + row, 0.0)
        if top_ptr is not None:
            tl.store(top_ptr + row, 0.0)
            tl.store(total_ptr + row, 1.0)
        if entropy_ptr is not None:
            tl.store(entropy_ptr + row, 0.0)
        if best_ptr is not None:
            tl.store(best_ptr + row, ignore_index)
    if GRADIENT:
        clear(out_ptr + row * tl.full((), V, tl.int64), part * blocks, blocks, V, DEPTH, THREADS, EACH)


@triton.jit
def _part_statistics(
    logits_ptr, w_ptr, own, first, blocks, inner, outer,
    V: tl.constexpr, DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, ENTROPY: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """-> top, total, bent, away = sum of (z - own) * weight, peak and best of ``blocks`` blocks from ``first`` on."""
    within = columns(DEPTH, THREADS, EACH)
    top, total, bent = nothing(THREADS, -float("inf")), nothing(THREADS, 0.0), nothing(THREADS, 0.0)
    peak, best = nothing(THREADS, -float("inf")), tl.zeros((THREADS,), tl.int32)
    away = nothing(THREADS, 0.0)
    for i in range(blocks):
        cols = (first + i) * (DEPTH * THREADS * EACH) + within
        mask, x, z = read_block(logits_ptr, cols, inner, outer, V, SOFTCAP)
        top, total, bent = fold(z, top, total, bent, ENTROPY)
        if BEST:
            peak, best = fold_best(x, cols, mask, inner, peak, best)
        if SMOOTH:
            away += block_sum(tl.where(mask, (z - own) * class_weights(w_ptr, cols, mask), 0.0))
    top, total, bent = meet(top, total, bent, ENTROPY)
    if BEST:
        peak, best = meet_best(peak, best)
    else:
        peak, best = 0.0, 0
    return top, total, bent, tl.sum(away, axis=0), peak, best


@triton.jit
def _tell(
    word_ptr, logit, top, total, bent, away, peak, best, y, first, blocks, BLOCK: tl.constexpr,
    MORE: tl.constexpr, BEST: tl.constexpr, LABEL: tl.constexpr,
):  # fmt: skip
    tell(word_ptr, top, total)
    if MORE:
        tell(word_ptr + 1, bent, away)
    if BEST:
        tell(word_ptr + 2, peak, best.to(tl.float32, bitcast=True))
    if LABEL:  # who has heard may find the label's column overwritten
        mine = (y >= first * BLOCK) & (y < (first + blocks) * BLOCK)
        # beside a maximum, which is no nan of the caller's: one with the bits of UNWRITTEN would be waited for
        tell(word_ptr + 3, tl.where(mine, logit, 0.0), top)


@triton.jit
def _hear(
    word_ptr, PARTS: tl.constexpr, SEATS: tl.constexpr,
    ENTROPY: tl.constexpr, MORE: tl.constexpr, BEST: tl.constexpr, LABEL: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """-> top, total, bent, away, peak, best and the label's logit of the whole row; the last if LABEL."""
    parts = tl.arange(0, SEATS)
    words, mask = word_ptr + parts * WORDS, parts < PARTS
    top, total = hear(words, mask, -float("inf"), 0.0, PHASE)
    bent, away = nothing(SEATS, 0.0), nothing(SEATS, 0.0)
    if MORE:
        bent, away = hear(words + 1, mask, 0.0, 0.0, PHASE)
    top, total, bent = meet(top, total, bent, ENTROPY)
    peak, best = 0.0, 0
    if BEST:
        peaks, bests = hear(words + 2, mask, -float("inf"), 0.0, PHASE)
        peak, best = meet_best(peaks, tl.where(mask, bests.to(tl.int32, bitcast=True), NOWHERE))
    logit = 0.0
    if LABEL:
        logits, _ = hear(words + 3, mask, 0.0, 0.0, PHASE)
        logit = tl.sum(logits, axis=0)
    return top, total, bent, tl.sum(away, axis=0), peak, best, logit


@triton.jit
def _kept_row(  # noqa: C901  (branches on constants)
    logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
    loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, board_ptr,
    row, part, blocks, dy_stride, smoothing, inner, outer, z_loss,
    V: tl.constexpr, DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, GRADIENT: tl.constexpr,
    PARTS: tl.constexpr, SEATS: tl.constexpr, LABEL: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    BEND: tl.constexpr = dentropy_ptr is not None
    ENTROPY: tl.constexpr = BEND or entropy_ptr is not None
    MORE: tl.constexpr = ENTROPY or SMOOTH
    BEST: tl.constexpr = best_ptr is not None
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    first = part * blocks
    inside = (y >= 0) & (y < V)
    logits_ptr += row * tl.full((), V, tl.int64)
    if PHASE != HEAR or not LABEL:
        # read before the reductions below, whose barriers keep this program's stores of the second pass behind it
        logit = tl.load(logits_ptr + y, mask=inside, other=0.0).to(tl.float32)
        own, weight = label_terms(logit, w_ptr, y, inner, outer, V, SOFTCAP)
    if PHASE != HEAR:
        top, total, bent, away, peak, best = _part_statistics(
            logits_ptr, w_ptr, own, first, blocks, inner, outer,
            V, DEPTH, THREADS, EACH, SOFTCAP, SMOOTH, ENTROPY, BEST,
        )  # fmt: skip
    if PHASE != ALONE:
        word_ptr = board_ptr + row * tl.full((), PARTS * WORDS, tl.int64)
        if PHASE != HEAR:
            mine = word_ptr + part * WORDS
            _tell(mine, logit, top, total, bent, away, peak, best, y, first, blocks, BLOCK, MORE, BEST, LABEL)
        if PHASE != TELL:
            top, total, bent, away, peak, best, heard = _hear(word_ptr, PARTS, SEATS, ENTROPY, MORE, BEST, LABEL, PHASE)
            if LABEL:
                logit = heard
                own, weight = label_terms(logit, w_ptr, y, inner, outer, V, SOFTCAP)
    if PHASE != TELL:
        log_total = tl.log2(total) * LN2
        entropy = log_total
        if ENTROPY:
            entropy -= bent / total
        if part == 0:
            lse = top + log_total
            nll = (top - own) + log_total
            loss = (1.0 - smoothing) * weight * nll + z_loss * lse * lse
            if SMOOTH:
                loss += smoothing / V * (weight_mass(w_total_ptr, V) * nll - away)
            tl.store(loss_ptr + row, loss)
            if top_ptr is not None:
                tl.store(top_ptr + row, top)
                tl.store(total_ptr + row, total)
            if entropy_ptr is not None:
                tl.store(entropy_ptr + row, entropy)
            if BEST:
                tl.store(best_ptr + row, best)
        if GRADIENT:
            out_ptr += row * tl.full((), V, tl.int64)
            pull, bend, hit, smooth = row_coefficients(
                weight, top, total, entropy, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr, row, dy_stride,
                smoothing, z_loss, V, SMOOTH,
            )  # fmt: skip
            within = columns(DEPTH, THREADS, EACH)
            for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
                cols = (first + blocks - 1 - i) * BLOCK + within
                mask = cols < V
                x = tl.load(logits_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first")
                w = class_weights(w_ptr, cols, mask)
                dz = dlogits(x, w, top, pull, bend, 0.0, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
                tl.store(out_ptr + cols, dz.to(out_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")
            # the label's column alone, once the block with it is written: comparing every column spills registers
            tl.debug_barrier()
            dz = dlogits(logit, weight, top, pull, bend, hit, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
            mine = (y >= first * BLOCK) & (y < (first + blocks) * BLOCK)
            tl.store(out_ptr + y, dz.to(out_ptr.dtype.element_ty), mask=inside & mine)


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
    board_ptr,  # (R * PARTS * WORDS + 1,) int64, or None for PHASE ALONE
    R,
    blocks,  # of a part; as a constant it makes LLVM unroll the loops until they spill
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
    PARTS: tl.constexpr,
    SEATS: tl.constexpr,  # the next power of two
    LABEL: tl.constexpr,  # the parts tell the label's logit too: out_ptr is logits_ptr, so others may overwrite it
    PHASE: tl.constexpr,
):
    if PHASE == ALONE:
        row, part = tl.program_id(0), 0
    else:
        row, part = place(board_ptr, R.to(tl.int64) * (PARTS * WORDS), PARTS, PHASE)
    y = tl.load(target_ptr + row)
    if y == ignore_index:
        if PHASE != TELL:
            _ignored_row(
                out_ptr, loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, row, part, blocks, ignore_index,
                V, DEPTH, THREADS, EACH, GRADIENT,
            )  # fmt: skip
    else:
        _kept_row(
            logits_ptr, out_ptr, y, w_ptr, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr,
            loss_ptr, top_ptr, total_ptr, entropy_ptr, best_ptr, board_ptr,
            row, part, blocks, dy_stride, smoothing, inner, outer, z_loss,
            V, DEPTH, THREADS, EACH, SOFTCAP, SMOOTH, GRADIENT, PARTS, SEATS, LABEL, PHASE,
        )  # fmt: skip


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4, 8), BLOCKS=(0, 1, 2, 4, 8, 16, 32))
def _losses_settings(V: int, itemsize: int, softcap: bool, gradient: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_losses``, and ``BLOCKS`` of a part: 0 for a row that one program has alone.

    On an H200 at V=128256, 8, 16, 32 and 64 values a thread take 1.38, 1.26, 1.43 and 2.28 ms for 8192 rows. Parts of
    32 KB in four blocks take 674 us for 2048 rows at V=262144, in two 714, and a row alone 730. With a soft cap, whose
    arithmetic is the limit, sharing costs 10 %.
    """
    if softcap or not gradient or V <= SHARED:
        return {**block_settings(V, itemsize, 16, device), "BLOCKS": 0}
    depth, each = (4, 1) if V % 2 else (2, 16 // max(itemsize, 2))
    blocks = PART // (depth * 256 * each * itemsize)
    return {"DEPTH": depth, "THREADS": 256, "EACH": each, "num_warps": 256 // device.lanes, "BLOCKS": blocks}


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
    softcap, gradient = loss.softcap is not None, out is not None
    chosen = dict(_losses_settings(V, logits.element_size(), softcap, gradient, gpu(logits.device)))
    blocks = chosen.pop("BLOCKS") or blocks_of(V, chosen)
    parts = ceil_div(blocks_of(V, chosen), blocks)
    words = board(R * parts * WORDS.value, logits.device) if parts > 1 else None
    for phase in phases(parts, logits.device) if parts > 1 else (ALONE.value,):
        launch(
            _losses,
            (R * parts,),
            (logits, out, target, class_weight, class_total(class_weight, loss), *upstream, *rows, words),
            (R, blocks, 0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)),
            V=V,
            **chosen,
            **flags(loss),
            GRADIENT=gradient,
            PARTS=parts,
            SEATS=next_power_of_2(parts),
            LABEL=parts > 1 and out is not None and out.data_ptr() == logits.data_ptr(),
            PHASE=phase,
            fuse_multiply_add=False,
        )
