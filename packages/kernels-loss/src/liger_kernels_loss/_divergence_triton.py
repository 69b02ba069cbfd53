"""Triton kernels of jsd and tvd: two rows of logits, read for their statistics, for the loss, and for the gradient.

Logarithms are to base 2. A row's statistics are its largest logit and total = sum exp2((z - top) * scale), apart:
log2 p = (z - top) * scale - log2(total) is accurate however large the logits are, and so are differences of such.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2, private_op
from liger.settings import settings
from liger_kernels_loss._pairs import NumItems, pair_loss, row_divisor
from liger_kernels_loss._rows_triton import LN2
from liger_kernels_loss._scale_triton import scaled

# KL of beta = 0, tvd, KL of beta = 1, the others; the gradients of the last two hold logarithms
FORWARD, VARIATION, REVERSE, BETWEEN = (tl.constexpr(i) for i in range(4))
FORMS = {"forward": FORWARD, "reverse": REVERSE, "between": BETWEEN, "variation": VARIATION}
ALONE = 65536  # columns above which a row pair has a multiprocessor for itself
CACHED = 32 << 20  # bytes of rows in work that stay in the cache for their further reads
NUMBERS = ["R", "blocks", "dy_stride", "ignore_index", "beta", "scale", "slope"]


# -- One row -----------------------------------------------------------------------------------------------------------
@triton.jit
def _load(row_ptr, cols, mask, LAST: tl.constexpr):
    """Logits in fp32, -inf beyond the row; ``LAST``: the row is not needed again."""
    z = tl.load(row_ptr + cols, mask=mask, other=-float("inf"), eviction_policy="evict_first" if LAST else "evict_last")
    return z.to(tl.float32)


@triton.jit
def _columns(DEPTH: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr):
    """Columns of a block (DEPTH, THREADS, EACH). All that a thread has is summed before threads meet, after a row."""
    deep, wide = tl.arange(0, DEPTH)[:, None, None], tl.arange(0, THREADS)[None, :, None]
    return (deep * THREADS + wide) * EACH + tl.arange(0, EACH)[None, None, :]


@triton.jit
def _sum(x):
    """(DEPTH, THREADS, EACH) -> (THREADS,)."""
    return tl.sum(tl.sum(x, axis=2), axis=0)


@triton.jit
def _grow(z, top, total, scale):
    """The running statistics (THREADS,) with a block z more."""
    higher = tl.maximum(top, tl.max(tl.max(z, axis=2), axis=0))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # so far only -inf: exp of -inf, not of nan
    return higher, total * tl.exp2((top - base) * scale) + _sum(tl.exp2((z - base[None, :, None]) * scale))


@triton.jit
def _whole(top, total, scale):
    """The statistics of the threads -> of the row: top, log2(total)."""
    highest = tl.max(top, axis=0)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    return highest, tl.log2(tl.sum(total * tl.exp2((top - base) * scale), axis=0))


@triton.jit
def _log2(u):
    """log2 of normal u in (0, 1] to 2 ulp, in half the instructions of ``tl.log2``, which knows 0, inf and subnormals.

    u = 2^k * (1 + f) with |f| <= 1/3. The polynomial is the least largest relative error, our own fit.
    """
    bits = u.to(tl.int32, bitcast=True)
    k = (bits - 0x3F2AAAAB) & -0x800000
    f = (bits - k).to(tl.float32, bitcast=True) - 1.0
    high = 0.28871128 + f * (-0.236786529 + f * (0.201799735 + f * (-0.222221166 + f * 0.202784181)))
    low = 1.44269502 + f * (-0.721346557 + f * (0.480895966 + f * (-0.360789567 + f * high)))
    return k.to(tl.float32) * 1.1920928955078125e-07 + f * low


@triton.jit
def _mixture(lq, lp, beta):
    """Log-probs -> max(q, p), the smaller's part of it e <= 1, |log2 p - log2 q|, u = m / max(q, p), whether p > q.

    Only the difference may be large, and its exponential is at most 1: nothing overflows; u >= min(beta, 1 - beta).
    """
    greater = tl.maximum(lq, lp)
    apart = tl.where(greater == -float("inf"), 0.0, lp - lq)
    teacher = apart > 0
    apart = tl.minimum(tl.abs(apart), 1000.0)  # inf times e = 0 would be nan
    e = tl.exp2(-apart)
    near = tl.where(teacher, beta, 1.0 - beta)
    return tl.exp2(greater), e, apart, near + (1.0 - near) * e, teacher


@triton.jit
def _terms(lq, lp, beta, FORM: tl.constexpr):
    """-> the terms of the loss, and q * g, whose sum the gradient needs; logarithms to base 2."""
    if FORM == FORWARD:
        p = tl.exp2(lp)
        loss = tl.where(p == 0.0, 0.0, p * (lp - lq))
        pull = loss  # not needed
    elif FORM == REVERSE:
        q = tl.exp2(lq)
        loss = tl.where(q == 0.0, 0.0, q * (lq - lp))
        pull = loss
    elif FORM == BETWEEN:
        most, e, apart, u, teacher = _mixture(lq, lp, beta)
        w = _log2(u)
        far = tl.where(teacher, 1.0 - beta, beta) * e  # the smaller one's part of m / max(q, p)
        loss = -most * (u * w + far * apart)
        q = tl.where(teacher, most * e, most)
        pull = -(1.0 - beta) * q * (w + tl.where(teacher, apart, 0.0))
    else:
        q, p = tl.exp2(lq), tl.exp2(lp)
        loss = 0.5 * tl.abs(q - p)
        pull = q * _sign(lq, lp)
    return loss, pull


@triton.jit
def _sign(lq, lp):
    """Half the sign of q - p."""
    return tl.where(lq > lp, 0.5, tl.where(lq < lp, -0.5, 0.0))


@triton.jit
def _gradient(lq, lp, pull, beta, FORM: tl.constexpr):
    """dloss/dz * temperature, logarithms to base 2; pull is the sum of q * g."""
    if FORM == FORWARD:
        d = tl.exp2(lq) - tl.exp2(lp)
    elif FORM == REVERSE:
        q = tl.exp2(lq)
        d = tl.where(q == 0.0, 0.0, q * ((lq - lp) - pull))
    elif FORM == BETWEEN:
        most, e, apart, u, teacher = _mixture(lq, lp, beta)
        q = tl.where(teacher, most * e, most)
        d = -q * ((1.0 - beta) * (_log2(u) + tl.where(teacher, apart, 0.0)) + pull)
    else:
        d = tl.exp2(lq) * (_sign(lq, lp) - pull)
    return d


@triton.jit
def _row(
    q_ptr,  # (V,) student
    p_ptr,  # (V,) teacher
    loss_ptr,  # () fp32 or None
    d_ptr,  # (V,)
    factor,  # upstream gradient / temperature
    blocks,
    beta,
    scale,
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,
    FORM: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    unit = LN2 if FORM >= REVERSE else 1.0  # of the gradient
    BLOCK: tl.constexpr = DEPTH * THREADS * EACH
    within = _columns(DEPTH, THREADS, EACH)
    q_top = tl.full((THREADS,), -float("inf"), tl.float32)
    p_top = tl.full((THREADS,), -float("inf"), tl.float32)
    q_total = tl.zeros((THREADS,), tl.float32)
    p_total = tl.zeros((THREADS,), tl.float32)
    for i in range(blocks):
        cols = i * BLOCK + within
        zq, zp = _load(q_ptr, cols, cols < V, False), _load(p_ptr, cols, cols < V, False)
        q_top, q_total = _grow(zq, q_top, q_total, scale)
        p_top, p_total = _grow(zp, p_top, p_total, scale)
    q_high, q_log = _whole(q_top, q_total, scale)
    p_high, p_log = _whole(p_top, p_total, scale)
    losses = tl.zeros((THREADS,), tl.float32)
    pulls = tl.zeros((THREADS,), tl.float32)
    if FORM != FORWARD or not GRADIENT:
        for i in range(blocks):  # backwards: the end of the row is what the nearest cache still holds
            cols = (blocks - 1 - i) * BLOCK + within
            lq = (_load(q_ptr, cols, cols < V, False) - q_high) * scale - q_log
            lp = (_load(p_ptr, cols, cols < V, False) - p_high) * scale - p_log
            loss, pull = _terms(lq, lp, beta, FORM)
            losses += _sum(loss)
            pulls += _sum(pull)
    wrong = 0.0 * (q_log + p_log)  # nan if a logit is nan or inf, which comparisons above would hide
    pull = tl.sum(pulls, axis=0) + wrong
    if GRADIENT:
        for i in range(blocks):
            cols = (i if FORM != FORWARD else blocks - 1 - i) * BLOCK + within
            lq = (_load(q_ptr, cols, cols < V, True) - q_high) * scale - q_log
            lp = (_load(p_ptr, cols, cols < V, True) - p_high) * scale - p_log
            d = _gradient(lq, lp, pull, beta, FORM) * (factor * unit)
            tl.store(d_ptr + cols, d.to(d_ptr.dtype.element_ty), mask=cols < V, eviction_policy="evict_first")
            if FORM == FORWARD:
                losses += _sum(_terms(lq, lp, beta, FORM)[0])
    if loss_ptr is not None:
        tl.store(loss_ptr, tl.sum(losses, axis=0) * (1.0 if FORM == VARIATION else LN2) + wrong)


# -- Rows --------------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=NUMBERS)
def _divergences(
    student_ptr,  # (R, V)
    teacher_ptr,  # (R, V)
    target_ptr,  # (R,) int64 or None
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number; or None for ones
    loss_ptr,  # (R,) fp32
    d_ptr,  # (R, V) or None
    R,
    blocks,  # ceil(V / (DEPTH * THREADS * EACH)); as a constant it makes LLVM unroll the loops until they spill
    dy_stride,
    ignore_index,
    beta,
    scale,  # log2(e) / temperature
    slope,  # 1 / temperature
    V: tl.constexpr,
    DEPTH: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,  # columns side by side of one thread: a load of 16 bytes
    FORM: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    for row in range(tl.program_id(0), R, tl.num_programs(0)):
        start = row * tl.full((), V, tl.int64)
        ignored = False
        if target_ptr is not None:
            ignored = tl.load(target_ptr + row) == ignore_index
        if ignored:
            tl.store(loss_ptr + row, 0.0)
            if GRADIENT:
                within = _columns(DEPTH, THREADS, EACH)
                for i in range(blocks):
                    cols = i * (DEPTH * THREADS * EACH) + within
                    zero = tl.zeros((DEPTH, THREADS, EACH), d_ptr.dtype.element_ty)
                    tl.store(d_ptr + start + cols, zero, mask=cols < V)
        else:
            factor = slope
            if dy_ptr is not None:
                factor = slope * tl.load(dy_ptr + row * dy_stride)
            _row(
                student_ptr + start, teacher_ptr + start, loss_ptr + row, d_ptr + start if GRADIENT else None, factor,
                blocks, beta, scale, V, DEPTH, THREADS, EACH, FORM, GRADIENT,
            )  # fmt: skip


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4, 8), PROGRAMS=(1, 2, 4, 8))
def _settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_divergences``, and its programs for each multiprocessor.

    As many row pairs are in work as stay in the cache for their further reads, but no multiprocessor is idle. With odd
    V each value is loaded and masked alone, which takes registers.
    """
    lanes, most = (64, 8) if device.name.startswith("gfx") else (32, 16)
    each = 1 if V % 2 else 16 // max(itemsize, 2)
    warps = max(1, min(most if V > ALONE else most // 2, next_power_of_2(V) // (lanes * each)))
    programs = min(4, max(1, CACHED // (2 * V * itemsize * device.processors)))
    depth = 4 if V % 2 else 2 if itemsize == 2 and device.name == "sm90" else 1  # elsewhere 2 spill
    return {"DEPTH": depth, "THREADS": warps * lanes, "EACH": each, "num_warps": warps, "PROGRAMS": programs}


def _divergence_fake(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    form: str,
    beta: float,
    temperature: float,
    ignore_index: int,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = student.new_empty(student.shape[:-1], dtype=torch.float32)
    return rows, torch.empty_like(student, memory_format=torch.contiguous_format) if gradient else rows.new_empty(0)


@private_op("divergence", _divergence_fake)
def _divergence(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    form: str,
    beta: float,
    temperature: float,
    ignore_index: int,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """student and teacher (..., V) of any strides -> losses (...,) fp32, dstudent (..., V) contiguous or empty."""
    rows, made = _divergence_fake(student, teacher, target, dy, op, form, beta, temperature, ignore_index, gradient)
    V, device = student.shape[-1], gpu(student.device)
    R = rows.numel()
    chosen = {**_settings(V, max(student.element_size(), teacher.element_size()), device)}
    programs = chosen.pop("PROGRAMS") * device.processors
    blocks = ceil_div(V, chosen["DEPTH"] * chosen["THREADS"] * chosen["EACH"])
    labels = None if target is None else target.contiguous()
    # one for each row, or one number: a gradient may arrive expanded
    factor = None if dy is None else dy.reshape(-1)
    stride = 0 if factor is None or factor.numel() == 1 else factor.stride(0)
    launch(
        _divergences,
        (min(R, programs),),
        (student.contiguous(), teacher.contiguous(), labels, factor, rows, made if gradient else None),
        (R, blocks, stride, ignore_index, beta, math.log2(math.e) / temperature, 1.0 / temperature),
        V=V,
        **chosen,
        FORM=FORMS[form].value,
        GRADIENT=gradient,
    )
    return rows, made


def _launched(
    op: str,
    form: str,
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    beta: float,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    labels = None if target is None else target.long()
    rows = student.numel() // student.shape[-1]
    by = row_divisor(rows, student, labels, ignore_index, reduction, num_items)
    options = (op, form, beta, temperature, ignore_index)
    return pair_loss(_divergence, scaled, student, teacher, labels, by, reduction != "none", options)


def jsd_triton(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    *,
    beta: float,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    """See ``liger_kernels_loss.jsd``."""
    form = {0.0: "forward", 1.0: "reverse"}.get(beta, "between")
    return _launched("jsd", form, student, teacher, target, beta, temperature, ignore_index, reduction, num_items)
