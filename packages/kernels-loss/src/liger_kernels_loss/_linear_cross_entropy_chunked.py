"""The chunk loop of linear_cross_entropy and its autograd.Functions, for any device and backend.

A backend does two things: ``step`` turns a chunk's logits into losses and, in place, dlogits; ``scale`` multiplies a
gradient by the upstream gradient. All products are torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from liger.launch import private_op, refuse_second_derivative
from liger_kernels_loss._loss import Loss, divide, divisor
from liger_kernels_loss.transforms import head

MIB = 1 << 20
ROUNDINGS = 4  # chunks whose sum may be rounded in the weight's dtype: relative error of bf16 dW 2.4e-3 against 1.7e-3
SMALL_SUM = 256 * MIB  # an fp32 dW of at most this size is not worth a rounding per chunk
# Below 1024 rows the sums of dW dominate (22.0 against 20.0 ms at N=4096, H=4096, V=128256 on an H200), above 4096
# nothing is won.
ACCELERATOR_MB, ACCELERATOR_ROWS = 1024, (1024, 4096)
CPU_MB, CPU_ROWS = 64, (64, 4096)  # as fast as 256 MiB within the noise; 8 MiB takes half as long again


class Backend(NamedTuple):
    """What differs between kernels; ``_linear_cross_entropy_torch`` says what each does.

    ``step(logits, target, class_weight, upstream, rows, loss, gradient)`` and ``scale(x, factor, out)``.
    """

    step: Callable[..., None]
    scale: Callable[..., None]


BACKENDS: dict[str, Backend] = {}


# -- The chunk loop ----------------------------------------------------------------------------------------------------
def chunk_rows(rows: int, classes: int, item: int, workspace_mb: float | None, device: str) -> int:
    """Rows of one chunk, evened out so that the last chunk is not a small one."""
    megabytes, (low, high) = (CPU_MB, CPU_ROWS) if device == "cpu" else (ACCELERATOR_MB, ACCELERATOR_ROWS)
    fit = int((workspace_mb or megabytes) * MIB) // (classes * item)
    most = max(1, fit) if workspace_mb else min(high, max(low, fit))
    chunks = max(1, -(-rows // most))
    even = -(-rows // chunks)
    tiles = -(-even // 128) * 128  # whole tiles of the products
    return max(1, tiles if even >= 256 and tiles <= most else even)


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

    ``upstream`` (N,) multiplies each row's gradient, a 0-dimensional one that of all rows except for its power of two,
    which ``_scaled`` brings in. What is not needed is an empty tensor.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    rows, dx, dw, db = _outputs(hidden, weight, accum_dtype, need_hidden, need_weight, need_bias)
    N, V = hidden.shape[0], weight.shape[0]
    size = chunk_rows(N, V, hidden.element_size(), workspace_mb, hidden.device.type)
    wide = accum_dtype is None and dw.dtype == torch.bfloat16 and _worth_fp32(dw.numel(), size, N)
    total = torch.empty_like(dw, dtype=torch.float32) if need_weight and wide else dw
    logits = hidden.new_empty((min(size, N), V))
    step = BACKENDS[backend].step
    if upstream is not None and upstream.dim() == 0:
        upstream = _mantissa(upstream).expand(N)
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


def _worth_fp32(elements: int, size: int, N: int) -> bool:
    """Whether dW is summed in fp32: beyond ``ROUNDINGS`` chunks, or beyond one if the sum is small."""
    return ROUNDINGS * size < N or (size < N and elements * 4 <= SMALL_SUM)


def _add_product(total: torch.Tensor, dz: torch.Tensor, h: torch.Tensor, first: bool) -> None:
    """total (V, H) = or += dz^T h, summed in the dtype of ``total``."""
    left = dz.t()
    if total.dtype == dz.dtype:
        torch.mm(left, h, out=total) if first else torch.addmm(total, left, h, out=total)
    elif dz.device.type == "cuda":
        wide = total.dtype
        torch.mm(left, h, out_dtype=wide, out=total) if first else torch.addmm(
            total, left, h, out_dtype=wide, out=total
        )
    else:  # products of two dtypes exist on CUDA alone
        left, h = left.to(total.dtype), h.to(total.dtype)
        torch.mm(left, h, out=total) if first else torch.addmm(total, left, h, out=total)


def _without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    if device == "meta" or not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


def _scaled_fake(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


@private_op("linear_cross_entropy_scaled", _scaled_fake)
def _scaled(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, _upstream(dy, factor), out)
    return out


def _scaled_in_place(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    out = x if x.dtype == dtype else torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, _upstream(dy, factor), out)
    return out


def _upstream(dy: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """dy times the power of two of ``factor``, the part that ``chunked`` left out; 0 and inf went in whole."""
    return dy if factor is None else dy * (factor / _mantissa(factor)).nan_to_num(nan=1.0)


def _mantissa(factor: torch.Tensor) -> torch.Tensor:
    """m of factor = m * 2^e, m in [32, 64): dlogits times m use the range of fp16 and leave room for their products."""
    return torch.frexp(factor).mantissa * 64.0


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Reduced(torch.autograd.Function):
    """Sum of the rows' losses over ``by``. The gradients are scaled where they lie and handed out by the backward.

    A further backward finds none and computes them again, so the saved gradients never need a second copy of (V, H).
    While compiling they are saved tensors, scaled out of place, and the compiler reuses their memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        by: torch.Tensor | None,
        needs: tuple[bool, bool, bool],
        options: tuple[Any, ...],
    ) -> torch.Tensor:
        factor = None if by is None else by.reciprocal()
        rows, *made = chunked(hidden, weight, target, bias, class_weight, factor, *options, *needs)
        ctx.options, ctx.needs, ctx.compiled = options, needs, torch.compiler.is_compiling()
        ctx.dtypes = (hidden.dtype, weight.dtype, weight.dtype)
        if ctx.compiled:
            ctx.save_for_backward(factor, *made)
        else:
            ctx.save_for_backward(factor, hidden, weight, target, bias, class_weight)
            ctx.factor, ctx.made = factor, made
        return divide(rows.sum(), by)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative("linear_cross_entropy")
        if ctx.compiled:
            scale = _scaled
            factor, *made = ctx.saved_tensors
        else:
            scale, factor = _scaled_in_place, ctx.factor
            made, ctx.made = ctx.made, None
        if made is None:
            _, *inputs = ctx.saved_tensors
            _, *made = chunked(*inputs, factor, *ctx.options, *ctx.needs)
        backend, each = ctx.options[0], zip(made, ctx.dtypes, ctx.needs, strict=True)
        out = [scale(x, dy, factor, dtype, backend) if needed else None for x, dtype, needed in each]
        return *out, None, None, None, None, None


class _Rows(torch.autograd.Function):
    """The rows' losses. Each row has its own upstream gradient, so everything is computed in the backward, again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        needs: tuple[bool, bool, bool],
        options: tuple[Any, ...],
    ) -> torch.Tensor:
        rows: torch.Tensor
        rows, *_ = chunked(hidden, weight, target, bias, class_weight, None, *options, False, False, False)
        ctx.save_for_backward(hidden, weight, target, bias, class_weight)
        ctx.options, ctx.needs = options, needs
        return rows

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative("linear_cross_entropy")
        hidden, weight, *others = ctx.saved_tensors
        _, *made = chunked(hidden, weight, *others, dy, *ctx.options, *ctx.needs)
        dtypes = (hidden.dtype, weight.dtype, weight.dtype)
        out = [x.to(d) if n else None for x, d, n in zip(made, dtypes, ctx.needs, strict=True)]
        return *out, None, None, None, None


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
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long().contiguous()
    class_weight = None if class_weight is None else class_weight.contiguous()
    options = (backend, *Loss(**loss), accum_dtype, workspace_mb)
    enabled = torch.is_grad_enabled()  # under no_grad a Function's needs_input_grad still says True
    needs = tuple([enabled and t is not None and t.requires_grad for t in (flat, weight, bias)])
    inputs = flat, weight, bias, labels, class_weight
    stat = torch.float64 if flat.dtype == torch.float64 else torch.float32
    by = divisor(labels, class_weight, stat, loss["ignore_index"], reduction, num_items)
    if not any(needs):
        rows, *_ = chunked(flat, weight, labels, bias, class_weight, None, *options, False, False, False)
        return rows.view(target.shape) if reduction == "none" else divide(rows.sum(), by)
    if reduction == "none":
        return _Rows.apply(*inputs, needs, options).view(target.shape)  # type: ignore[no-any-return, no-untyped-call]
    return _Reduced.apply(*inputs, by, needs, options)  # type: ignore[no-any-return, no-untyped-call]
