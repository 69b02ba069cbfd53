"""The chunk loop of linear_cross_entropy, its autograd.Function, and the plain torch kernel. Any device.

A backend does two things: ``step`` turns a chunk's logits into losses and, in place, dlogits; ``scale`` multiplies a
gradient by the upstream gradient. All products are torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from liger.launch import private_op

from liger_kernels_loss._loss import Loss, divide
from liger_kernels_loss.transforms import head, transform_

MIB = 1 << 20
ROUNDINGS = 4  # chunks whose sum may be rounded in the weight's dtype: relative error of bf16 dW 2.4e-3 against 1.7e-3
ACCELERATOR_MB, ACCELERATOR_ROWS = 1024, (1024, 4096)  # below 1024 rows the sums of dW dominate, above 4096 nothing is won
CPU_MB, CPU_ROWS = 64, (64, 4096)
BLOCK = 1 << 18  # elements that plain torch works on at a time, so that its passes over them stay in cache


class Backend(NamedTuple):
    """``step(logits, target, class_weight, upstream, rows, loss, gradient)`` and ``scale(x, factor, out)``; see the torch ones."""

    step: Callable[..., None]
    scale: Callable[..., None]


BACKENDS: dict[str, Backend] = {}


# -- Plain torch -------------------------------------------------------------------------------------------------------
def torch_step(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    upstream: torch.Tensor | None,
    rows: torch.Tensor,
    loss: Loss,
    gradient: bool,
) -> None:
    """Write the losses of logits (n, V) to rows (n,); with ``gradient`` replace the logits by dlogits.

    ``upstream`` (n,) multiplies each row of the gradient; None stands for ones.
    """
    size = max(1, BLOCK // logits.shape[1])
    total = None if class_weight is None or not loss.label_smoothing else class_weight.sum()
    for start in range(0, logits.shape[0], size):
        part = slice(start, start + size)
        raw = logits[part]
        z = raw if raw.dtype == rows.dtype else raw.to(rows.dtype)
        scale = None if upstream is None else upstream[part, None].to(rows.dtype)
        rows[part] = _torch_block(z, target[part], class_weight, total, scale, loss, gradient)
        if gradient and z is not raw:
            raw.copy_(z)


def _torch_block(
    z: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    class_total: torch.Tensor | None,
    upstream: torch.Tensor | None,
    loss: Loss,
    gradient: bool,
) -> torch.Tensor:
    """Losses (n,) of a block of fp32 logits z (n, V), which ends as dlogits or as garbage."""
    ignored = (target == loss.ignore_index)[:, None]
    labels = target[:, None].masked_fill(ignored, 0)
    capped = gradient and loss.softcap is not None
    slope = torch.empty_like(z) if capped else None
    transform_(z, softcap=loss.softcap, logit_scale=loss.logit_scale, slope=slope)
    top, own = z.amax(1, keepdim=True), z.gather(1, labels)
    smooth = loss.label_smoothing / z.shape[1]
    if smooth:
        away = z - own
        away = (away if class_weight is None else away.mul_(class_weight)).sum(1, keepdim=True)
        mass = z.shape[1] if class_total is None else class_total
    total = z.sub_(top).exp_().sum(1, keepdim=True)
    log_total = total.log()
    lse = top + log_total
    hit = (1.0 - loss.label_smoothing) * (torch.ones_like(own) if class_weight is None else class_weight[labels])
    nll = (top - own) + log_total  # both terms are >= 0, so a log-prob is never above 0
    out, pull = hit * nll, hit
    if smooth:
        out, pull = out + smooth * (mass * nll - away), pull + smooth * mass
    if loss.z_loss:
        out, pull = out + loss.z_loss * lse.square(), pull + 2.0 * loss.z_loss * lse
    if gradient:
        scale = torch.full_like(own, 1.0 if capped else loss.logit_scale)
        scale = scale if upstream is None else scale * upstream
        z.mul_(pull * scale / total).scatter_add_(1, labels, -hit * scale)
        if smooth:
            z.sub_(smooth * scale * (1.0 if class_weight is None else class_weight))
        if slope is not None:
            z.mul_(slope)
        z.masked_fill_(ignored, 0.0)
    return out.masked_fill_(ignored, 0.0).squeeze(1)


def torch_scale(x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * factor, multiplied in the dtype of the 0-dimensional ``factor`` and rounded once; ``out`` may be ``x``."""
    for a, b in zip(x.view(-1).split(BLOCK), out.view(-1).split(BLOCK), strict=True):
        b.copy_(a.to(factor.dtype) * factor)


BACKENDS["torch"] = Backend(torch_step, torch_scale)


# -- The chunk loop ----------------------------------------------------------------------------------------------------
def chunk_rows(rows: int, classes: int, item: int, workspace_mb: float | None, device: str) -> int:
    """Rows of one chunk, evened out so that the last chunk is not a small one."""
    megabytes, (low, high) = (CPU_MB, CPU_ROWS) if device == "cpu" else (ACCELERATOR_MB, ACCELERATOR_ROWS)
    fit = int((workspace_mb or megabytes) * MIB) // (classes * item)
    most = max(1, fit) if workspace_mb else min(high, max(low, fit))
    chunks = max(1, -(-rows // most))
    even = -(-rows // chunks)
    if even >= 256:
        even = -(-even // 128) * 128  # whole tiles of the products
    return max(1, min(even, most, rows))


def _gradient_dtype(weight: torch.Tensor, accum_dtype: torch.dtype | None) -> torch.dtype:
    """Sums over rows can leave fp16's range before they are divided, so there dW stays fp32 until then."""
    return accum_dtype or (torch.float32 if weight.dtype == torch.float16 else weight.dtype)


def _outputs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    accum_dtype: torch.dtype | None,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    stat = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    rows = hidden.new_empty(hidden.shape[0], dtype=stat)
    dx = hidden.new_empty(hidden.shape if need_hidden else 0)
    dw = weight.new_empty(weight.shape if need_weight else 0, dtype=_gradient_dtype(weight, accum_dtype))
    return rows, dx, dw, weight.new_empty(weight.shape[0] if need_bias else 0, dtype=stat)


def _fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    upstream: torch.Tensor | None,
    backend: str,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _outputs(hidden, weight, accum_dtype, need_hidden, need_weight, need_bias)


@private_op("linear_cross_entropy", _fake)
def chunked(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    upstream: torch.Tensor | None,
    backend: str,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden (N, H), target (N,) -> losses (N,), and of their sum: dhidden (N, H), dweight (V, H), dbias (V,) fp32.

    ``upstream`` (N,) multiplies each row's gradient. What is not needed is an empty tensor.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    rows, dx, dw, db = _outputs(hidden, weight, accum_dtype, need_hidden, need_weight, need_bias)
    N, V = hidden.shape[0], weight.shape[0]
    size = chunk_rows(N, V, hidden.element_size(), workspace_mb, hidden.device.type)
    wide = accum_dtype is None and dw.dtype == torch.bfloat16 and N > ROUNDINGS * size
    total = torch.empty_like(dw, dtype=torch.float32) if need_weight and wide else dw
    logits = hidden.new_empty((min(size, N), V))
    step = BACKENDS[backend].step
    with torch.no_grad(), _without_autocast(hidden.device.type):
        for start in range(0, N, size):
            h, z = hidden[start : start + size], logits[: min(size, N - start)]
            part = slice(start, start + size)
            head(h, weight, bias, out=z)
            factor = None if upstream is None else upstream[part]
            step(z, target[part], class_weight, factor, rows[part], loss, need_hidden or need_weight or need_bias)
            if need_hidden:
                torch.mm(z, weight, out=dx[part])
            if need_weight:
                _add_product(total, z, h, first=start == 0)
            if need_bias:
                db.copy_(z.sum(0, dtype=db.dtype)) if start == 0 else db.add_(z.sum(0, dtype=db.dtype))
        if N == 0:
            total.zero_(), db.zero_()
    return rows, dx, dw if total is dw else dw.copy_(total), db


def _add_product(total: torch.Tensor, dz: torch.Tensor, h: torch.Tensor, first: bool) -> None:
    """total (V, H) = or += dz^T h, summed in the dtype of ``total``."""
    left = dz.t()
    if total.dtype == dz.dtype:
        torch.mm(left, h, out=total) if first else torch.addmm(total, left, h, out=total)
    elif dz.device.type == "cuda":
        wide = {"out_dtype": total.dtype, "out": total}
        torch.mm(left, h, **wide) if first else torch.addmm(total, left, h, **wide)
    else:  # products of two dtypes exist on CUDA alone
        left, h = left.to(total.dtype), h.to(total.dtype)
        torch.mm(left, h, out=total) if first else torch.addmm(total, left, h, out=total)


def _without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    if device == "meta" or not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


def _scaled_fake(x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


@private_op("loss_scaled", _scaled_fake)
def _scaled(x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, factor, out)
    return out


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Summed(torch.autograd.Function):
    """Sum of the rows' losses. The gradients made in the forward are scaled where they lie and handed out by the backward.

    A further backward finds none and computes them again, so the saved gradients never need a second copy of (V, H).
    While compiling they are saved tensors, scaled out of place, and the compiler reuses their memory.
    """

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, class_weight, needs, options):
        rows, *made = chunked(hidden, weight, target, bias, class_weight, None, *options, *needs)
        ctx.options, ctx.needs, ctx.compiled = options, needs, torch.compiler.is_compiling()
        ctx.dtypes = (hidden.dtype, weight.dtype, weight.dtype)
        if ctx.compiled:
            ctx.save_for_backward(*made)
        else:
            ctx.save_for_backward(hidden, weight, target, bias, class_weight)
            ctx.made = made
        return rows.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        scale = _scaled
        if ctx.compiled:
            made = ctx.saved_tensors
        else:
            made, ctx.made, scale = ctx.made, None, _scaled_in_place
        if made is None:
            _, *made = chunked(*ctx.saved_tensors, None, *ctx.options, *ctx.needs)
        backend = ctx.options[0]
        out = [scale(x, dy, d, backend) if n else None for x, d, n in zip(made, ctx.dtypes, ctx.needs, strict=True)]
        return *out, None, None, None, None


class _Rows(torch.autograd.Function):
    """The rows' losses. Each row has its own upstream gradient, so everything is computed in the backward, again."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, class_weight, needs, options):
        rows, *_ = chunked(hidden, weight, target, bias, class_weight, None, *options, False, False, False)
        ctx.save_for_backward(hidden, weight, target, bias, class_weight)
        ctx.options, ctx.needs = options, needs
        return rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        hidden, weight, *others = ctx.saved_tensors
        _, *made = chunked(hidden, weight, *others, dy.contiguous(), *ctx.options, *ctx.needs)
        dtypes = (hidden.dtype, weight.dtype, weight.dtype)
        out = [x.to(d) if n else None for x, d, n in zip(made, dtypes, ctx.needs, strict=True)]
        return *out, None, None, None, None


def _scaled_in_place(x: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    out = x if x.dtype == dtype else torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, factor, out)
    return out


def linear_cross_entropy_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    *,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    check_labels: bool,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    **loss: Any,
) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    del check_labels
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long()
    options = (backend, *Loss(**loss), accum_dtype, workspace_mb)
    enabled = torch.is_grad_enabled()  # under no_grad a Function's needs_input_grad still says True
    needs = tuple([enabled and t is not None and t.requires_grad for t in (flat, weight, bias)])
    per_row = reduction == "none"
    if any(needs):
        function = _Rows if per_row else _Summed
        out = function.apply(flat, weight, bias, labels, class_weight, needs, options)
    else:
        rows, *_ = chunked(flat, weight, labels, bias, class_weight, None, *options, False, False, False)
        out = rows if per_row else rows.sum()
    if per_row:
        return out.view(target.shape)
    how = {"ignore_index": loss["ignore_index"], "reduction": reduction, "num_items": num_items}
    return divide(out, labels, class_weight, **how)


def linear_cross_entropy_torch(*tensors: torch.Tensor | None, **options: Any) -> torch.Tensor:
    """Plain torch on any device; see ``liger_kernels_loss.linear_cross_entropy``."""
    return linear_cross_entropy_chunked("torch", *tensors, **options)
