"""Triton kernels of cross_entropy: the forward makes the gradient too, for an upstream gradient of 1.

The backward then has nothing to do in training, where backward() is called on the loss. It looks at the upstream
gradient on the device and computes the gradient anew, from the logits, if it is another number.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings
from liger_kernels_loss._loss import Loss, RowResults, Rows, Upstream, Wants, class_total, combine, is_soft, spread
from liger_kernels_loss._result import CrossEntropyOutput, Result, make_result
from liger_kernels_loss._row_terms_triton import (
    NUMBERS,
    class_weights,
    dlogits,
    flags,
    numbers,
    row_coefficients,
)
from liger_kernels_loss._soft_triton import launch_rows

OP = "cross_entropy"
PROGRAMS = 8  # of a backward for each multiprocessor, where most launches find their work done


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=NUMBERS)
def _backward(
    logits_ptr,  # (R, V)
    out_ptr,  # (R, V) for dlogits; may be logits_ptr
    target_ptr,  # (R,) int64
    w_ptr,  # (V,) fp32 or None
    w_total_ptr,  # (1,) fp32 or None
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number; None for ones
    dlse_ptr,  # (R,) fp32 or None
    dentropy_ptr,  # (R,) fp32 or None
    top_ptr,  # (R,) fp32
    total_ptr,  # (R,) fp32
    entropy_ptr,  # (R,) fp32 or None
    done_ptr,  # () fp32 or None: if it is 1, out holds the gradient already
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
):
    BEND: tl.constexpr = dentropy_ptr is not None
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    items = R * BLOCKS
    if done_ptr is not None:
        items = tl.where(tl.load(done_ptr) == 1.0, 0, items)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        row = item // BLOCKS
        start = row * tl.full((), V, tl.int64)
        y = tl.load(target_ptr + row)
        weight = class_weights(w_ptr, y, (y >= 0) & (y < V))
        weight = tl.where((y >= 0) & (y < V), weight, float("nan"))  # a label out of range must not go unnoticed
        top, total = tl.load(top_ptr + row), tl.load(total_ptr + row)
        entropy = 0.0
        if BEND:
            entropy = tl.load(entropy_ptr + row)
        pull, bend, hit, smooth = row_coefficients(
            weight, top, total, entropy, w_total_ptr, dy_ptr, dlse_ptr, dentropy_ptr, row, dy_stride,
            smoothing, z_loss, V, SMOOTH,
        )  # fmt: skip
        cols = (item % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
        mask = cols < V
        x = tl.load(logits_ptr + start + cols, mask=mask, other=0.0)
        w = class_weights(w_ptr, cols, mask)
        here = tl.where(cols == y.to(tl.int32), hit, 0.0)
        dz = dlogits(x, w, top, pull, bend, here, smooth, inner, outer, SOFTCAP, SMOOTH, BEND)
        dz = tl.where(y == ignore_index, 0.0, dz)
        tl.store(out_ptr + start + cols, dz.to(out_ptr.dtype.element_ty), mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(BLOCK=(1024, 2048, 4096, 8192, 16384), num_warps=(1, 2, 4, 8, 16))
def _backward_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``: 16 bytes a load, 4 loads a thread in 16 bit; half of it with odd V."""
    block = min(next_power_of_2(V), 4096 if V % 2 else 8192)
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 512))}


def _launch_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: Upstream,
    rows: Rows,
    loss: Loss,
    out: torch.Tensor,
    done: torch.Tensor | None = None,
) -> None:
    """Write dlogits into ``out``, which may be the logits, from the rows' statistics; nothing if ``done`` is 1."""
    if is_soft(target):
        launch_rows(logits, target, class_weight, upstream, rows._replace(loss=torch.empty_like(rows.loss)), loss, out)
        return
    R, V = logits.shape
    chosen = _backward_settings(V, logits.element_size(), gpu(logits.device))
    items = R * ceil_div(V, chosen["BLOCK"])
    few = PROGRAMS * gpu(logits.device).processors
    launch(
        _backward,
        (items if done is None else min(items, few),),
        (logits, out, target, class_weight, class_total(class_weight, loss), *upstream, *rows[1:4], done),
        (R, 0 if upstream.loss is None else upstream.loss.stride(0), *numbers(loss)),
        V=V,
        **chosen,
        **flags(loss),
        fuse_multiply_add=False,
    )


def _forward_fake(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    factor: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    gradient: bool,
) -> tuple[torch.Tensor | None, ...]:
    rows = Rows.empty(logits.shape[0], logits, Wants(lse, entropy, best))
    return *rows, torch.empty_like(logits) if gradient else None


@private_op("cross_entropy_forward", _forward_fake)
def _launch_forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    factor: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits (R, V) contiguous -> the fields of ``Rows``, and the gradient of sum(loss * factor)."""
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    rows = Rows.empty(logits.shape[0], logits, Wants(lse, entropy, best))
    out = torch.empty_like(logits) if gradient else None
    launch_rows(logits, target, class_weight, Upstream(spread(factor, logits)), rows, loss, out)
    return *rows, out  # type: ignore[return-value]


def _backward_fake(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    dy: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
    entropy: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
) -> torch.Tensor:
    return torch.empty_like(logits)


@private_op("cross_entropy_backward", _backward_fake)
def _launch_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    dy: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
    entropy: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
) -> torch.Tensor:
    """Upstream gradients (R,), dy of any stride -> dlogits (R, V)."""
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    out, rows = torch.empty_like(logits), Rows(top, top, total, entropy)
    _launch_gradient(logits, target, class_weight, Upstream(dy, dlse, dentropy), rows, loss, out)
    return out


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _CrossEntropy(torch.autograd.Function):
    """The reduced loss if there is one, and the results of the rows.

    Saves the logits, two numbers a row, and the gradient for an upstream gradient of 1, if the forward has made it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        class_weight: torch.Tensor | None,
        result: Result,
        eager_gradient: bool,
        inplace: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        flat = logits.reshape(-1, logits.shape[-1]).contiguous()
        factor = result.factor() if result.reduced else None
        wants = result.wants._replace(lse=True)
        made: list[torch.Tensor | None] = list(
            _launch_forward(flat, result.target, class_weight, factor, *result.loss, *wants, eager_gradient)
        )
        rows = Rows(*made[:5])  # type: ignore[arg-type]
        entropy = rows.entropy if wants.entropy else None
        ctx.save_for_backward(
            logits if inplace else flat, result.target, class_weight, factor, rows.top, rows.total, entropy
        )
        ctx.made = made[5] if eager_gradient else None
        ctx.loss, ctx.shape, ctx.inplace = result.loss, logits.shape, inplace
        ctx.set_materialize_grads(False)
        lse = rows.top + rows.total.log() if result.wants.lse else None  # type: ignore[operator, union-attr]
        best = rows.best if wants.best else None
        if best is not None:
            ctx.mark_non_differentiable(best)
        return result.reduce(rows.loss) if result.reduced else None, rows.loss, lse, entropy, best

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(OP)
        logits, target, class_weight, factor, top, total, entropy = ctx.saved_tensors
        flat = logits.view(-1, logits.shape[-1])
        upstream = combine(dy[0], factor, *dy[1:4], like=top)
        made, ctx.made = ctx.made, None
        if made is None and not ctx.inplace:
            args = (flat, target, class_weight, *upstream, top, total, entropy, *ctx.loss)
            return _launch_backward(*args).view(ctx.shape), None, None, None, None
        done = dy[0] if all(d is None for d in dy[1:]) else None
        out = flat if made is None else made
        rows = Rows(top, top, total, entropy)
        _launch_gradient(flat, target, class_weight, upstream, rows, ctx.loss, out, None if made is None else done)
        if made is None:
            torch.autograd.graph.increment_version(logits)
        return out.view(ctx.shape), None, None, None, None


def cross_entropy_triton(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    *,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
    check_labels: bool,
    inplace_backward: bool,
    **loss: Any,
) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.cross_entropy``."""
    del check_labels
    class_weight = None if weight is None else weight.contiguous()
    result = make_result(target, class_weight, token_weight, logits, Loss(**loss), reduction, num_items, returns)
    compiling = torch.compiler.is_compiling()
    inplace = inplace_backward and not compiling  # a compiler plans memory by itself
    gradient = logits.requires_grad and torch.is_grad_enabled() and result.reduced and not (inplace or compiling)
    total, *rows = _CrossEntropy.apply(logits, class_weight, result, gradient, inplace)  # type: ignore[no-untyped-call]
    return result.finish(RowResults(*rows), total)
