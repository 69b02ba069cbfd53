"""The chunk loop of head and loss, and its autograd.Function, for any device and backend.

A backend does two things: ``step`` turns a chunk's logits into the rows' results and, in place, dlogits; ``scale``
multiplies a gradient by the upstream gradient. All products are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from liger.launch import private_op, refuse_second_derivative
from liger_kernels_loss._chunks import add_product, chunk_rows, mantissa, no_autocast, unscaled, worth_fp32
from liger_kernels_loss._loss import Loss, RowResults, Rows, Upstream, Wants, combine, is_soft, spread, stat_dtype
from liger_kernels_loss._result import CrossEntropyOutput, Result, make_result
from liger_kernels_loss.transforms import head


class Backend(NamedTuple):
    """What differs between kernels; ``_linear_cross_entropy_torch`` says what each does.

    ``step(logits, target, class_weight, upstream, rows, loss, out)`` and ``scale(x, factor, out)``.
    """

    step: Callable[..., None]
    scale: Callable[..., None]


BACKENDS: dict[str, Backend] = {}


class Needs(NamedTuple):
    """Which gradients are needed."""

    hidden: bool
    weight: bool
    bias: bool


class Chunking(NamedTuple):
    """How the work is cut up, and who does it."""

    backend: str
    accum_dtype: torch.dtype | None
    workspace_mb: float | None


# -- The chunk loop ----------------------------------------------------------------------------------------------------
def _gradients(
    hidden: torch.Tensor, weight: torch.Tensor, accum_dtype: torch.dtype | None, needs: Needs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dhidden, dweight and dbias to be; what is not needed is empty.

    Sums over rows can leave fp16's range before they are divided, so there dW stays fp32 until then.
    """
    dtype = accum_dtype or (torch.float32 if weight.dtype == torch.float16 else weight.dtype)
    dx = hidden.new_empty(hidden.shape if needs.hidden else 0)
    dw = weight.new_empty(weight.shape if needs.weight else 0, dtype=dtype)
    return dx, dw, weight.new_empty(weight.shape[0] if needs.bias else 0, dtype=stat_dtype(hidden))


def _fake(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    dloss: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    rows = Rows.empty(hidden.shape[0], hidden, Wants(lse, entropy, best))
    return *rows, *_gradients(hidden, weight, accum_dtype, Needs(need_hidden, need_weight, need_bias))


@private_op("linear_cross_entropy", _fake)
def chunked(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    dloss: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dentropy: torch.Tensor | None,
    scale: torch.Tensor | None,
    backend: str,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    z_loss: float,
    lse: bool,
    entropy: bool,
    best: bool,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]:
    """hidden (N, H), target (N,) or (N, V) -> the fields of ``Rows``; dhidden (N, H), dweight (V, H), dbias (V,) fp32.

    ``dloss``, ``dlse`` and ``dentropy`` (N,) are the rows' upstream gradients. ``scale``, 0-dimensional, multiplies all
    of them, except for its power of two, which ``unscaled`` brings in. Gradients that are not needed are empty.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    needs = Needs(need_hidden, need_weight, need_bias)
    rows = Rows.empty(hidden.shape[0], hidden, Wants(lse, entropy, best))
    dx, dw, db = _gradients(hidden, weight, accum_dtype, needs)
    N, V = hidden.shape[0], weight.shape[0]
    size = chunk_rows(N, V, hidden.element_size(), workspace_mb, hidden.device.type)
    wide = accum_dtype is None and dw.dtype == torch.bfloat16 and worth_fp32(dw.numel(), size, N)
    total = torch.empty_like(dw, dtype=torch.float32) if need_weight and wide else dw
    logits = hidden.new_empty((min(size, N), V))
    if scale is not None:
        dloss = spread(mantissa(scale), hidden) if dloss is None else dloss * mantissa(scale)
    upstream = Upstream(dloss, dlse, dentropy)
    with torch.no_grad(), no_autocast(hidden.device.type):
        for start in range(0, N, size):
            part = slice(start, start + size)
            h, z = hidden[part], logits[: min(size, N - start)]
            head(h, weight, bias, out=z)
            out = z if any(needs) else None
            BACKENDS[backend].step(z, target[part], class_weight, upstream.part(part), rows.part(part), loss, out)
            if need_hidden:
                torch.mm(z, weight, out=dx[part])
            if need_weight:
                add_product(total, z, h, first=start == 0)
            if need_bias:
                db.copy_(z.sum(0, dtype=db.dtype)) if start == 0 else db.add_(z.sum(0, dtype=db.dtype))
        if N == 0:
            total.zero_(), db.zero_()
    return *rows, dx, dw if total is dw else dw.copy_(total), db  # type: ignore[return-value]


# -- Scaling -----------------------------------------------------------------------------------------------------------
def _scaled_fake(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


@private_op("linear_cross_entropy_scaled", _scaled_fake)
def _scaled(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, unscaled(dy, factor), out)
    return out


def _scaled_in_place(
    x: torch.Tensor, dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype, backend: str
) -> torch.Tensor:
    out = x if x.dtype == dtype else torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, unscaled(dy, factor), out)
    return out


def _scale_all(ctx: Any, made: Sequence[torch.Tensor], dy: Any, by: Callable[..., torch.Tensor]) -> list[Any]:
    """The gradients that are needed, times ``dy`` and what ``chunked`` left out of the scale."""
    each = zip(made, ctx.dtypes, ctx.needs, strict=True)
    return [by(x, dy, ctx.scale, dtype, ctx.options[0]) if needed else None for x, dtype, needed in each]


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Linear(torch.autograd.Function):
    """The reduced loss if there is one, and the results of the rows.

    Gradients of a reduced loss are made in the forward, scaled where they lie and handed out by the backward. A further
    backward finds none and computes them again, so the saved gradients never need a second copy of (V, H). While
    compiling they are saved tensors, scaled out of place, and the compiler reuses their memory. Where rows have
    upstream gradients of their own, everything is computed in the backward, again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        class_weight: torch.Tensor | None,
        result: Result,
        chunking: Chunking,
        needs: Needs,
        op: str,
    ) -> tuple[torch.Tensor | None, ...]:
        inputs = hidden, weight, result.target, bias, class_weight
        scale = None if result.by is None else result.by.reciprocal()
        ctx.op, ctx.options, ctx.needs, ctx.compiled = (
            op,
            (*chunking, *result.loss),
            needs,
            torch.compiler.is_compiling(),
        )
        now = needs if result.reduced else Needs(False, False, False)
        found = chunked(*inputs, result.token_weight, None, None, scale, *ctx.options, *result.wants, *now)
        rows, made = Rows(*found[:5]), found[5:]
        ctx.made = made if any(now) and not ctx.compiled else None
        kept = made if any(now) and ctx.compiled else (None, None, None)
        ctx.save_for_backward(*inputs, result.token_weight, scale, *kept)
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.dtypes = scale, (hidden.dtype, weight.dtype, weight.dtype)
        wants = result.wants
        lse = rows.top + rows.total.log() if wants.lse else None  # type: ignore[operator, union-attr]
        if wants.best:
            ctx.mark_non_differentiable(rows.best)
        total = result.reduce(rows.loss) if result.reduced else None
        return total, rows.loss, lse, rows.entropy if wants.entropy else None, rows.best if wants.best else None

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(ctx.op)
        made, ctx.made = ctx.made, None
        of_the_loss = dy[0] is not None and all(d is None for d in dy[1:])
        if made is not None and of_the_loss:  # saved tensors are not looked at: they may have changed since
            return *_scale_all(ctx, made, dy[0], _scaled_in_place), *[None] * 5, None
        del made
        *inputs, token_weight, scale, dx, dw, db = ctx.saved_tensors
        if of_the_loss:
            made = (dx, dw, db)
            if dw is None:
                again = (token_weight, None, None, scale, *ctx.options, *Wants())
                made = chunked(*inputs, *again, *ctx.needs)[5:]
            return *_scale_all(ctx, made, dy[0], _scaled if ctx.compiled else _scaled_in_place), *[None] * 5
        factor = token_weight if scale is None else scale if token_weight is None else token_weight * scale
        upstream = combine(dy[0], factor, *dy[1:4], like=inputs[0])
        made = chunked(*inputs, *upstream, None, *ctx.options, *Wants(), *ctx.needs)[5:]
        out = [x.to(d) if needed else None for x, d, needed in zip(made, ctx.dtypes, ctx.needs, strict=True)]
        return *out, *[None] * 5


def rows_of(
    op: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    result: Result,
    chunking: Chunking,
    compact: bool,
) -> tuple[torch.Tensor | None, RowResults]:
    """hidden (N, H) and the head -> the reduced loss, None without a reduction, and the results of the rows.

    ``compact`` leaves ignored rows out before the product, which waits for the device.
    """
    if compact and not is_soft(result.target) and not torch.compiler.is_compiling():
        ignore_index = result.loss.ignore_index
        kept = (result.target != ignore_index).nonzero().squeeze(1)
        total, rows = rows_of(op, hidden[kept], weight, bias, class_weight, result.of(kept), chunking, False)
        return total, rows.among(kept, hidden.shape[0], ignore_index)
    enabled = torch.is_grad_enabled()  # under no_grad a Function's needs_input_grad still says True
    needs = Needs(*[enabled and t is not None and t.requires_grad for t in (hidden, weight, bias)])
    total, *found = _Linear.apply(hidden, weight, bias, class_weight, result, chunking, needs, op)  # type: ignore[no-untyped-call]
    return total, RowResults(*found)


def linear_cross_entropy_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    class_weight: torch.Tensor | None,
    token_weight: torch.Tensor | None,
    *,
    reduction: str,
    num_items: int | float | torch.Tensor | None,
    returns: tuple[str, ...],
    check_labels: bool,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    compact: bool,
    **loss: Any,
) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    del check_labels
    flat = hidden.reshape(-1, hidden.shape[-1])
    class_weight = None if class_weight is None else class_weight.contiguous()
    result = make_result(target, class_weight, token_weight, flat, Loss(**loss), reduction, num_items, returns)
    chunking = Chunking(backend, accum_dtype, workspace_mb)
    total, rows = rows_of("linear_cross_entropy", flat, weight, bias, class_weight, result, chunking, compact)
    return result.finish(rows, total)
