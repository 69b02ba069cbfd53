"""The chunk loop of head and loss, and its autograd.Function, for any loss, device and backend.

A backend does three things: ``step`` and ``pair`` turn a chunk's logits into the rows' results and dlogits, the former
with labels, the latter with a teacher's logits; ``scale`` multiplies a gradient by the upstream gradient. All products
are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from liger.launch import private_op, refuse_second_derivative
from liger_kernels_loss._chunks import add_product, evened, no_autocast, unscaled, worth_fp32
from liger_kernels_loss._loss import RowResults, Rows, Upstream, Wants, combine, stat_dtype
from liger_kernels_loss._result import Result
from liger_kernels_loss.transforms import head


class Backend(NamedTuple):
    """What differs between kernels; ``_linear_cross_entropy_torch`` and ``_divergence_torch`` say what each does.

    ``step(logits, target, class_weight, upstream, rows, loss, out)``, ``scale(x, factor, out)`` and
    ``pair(student, teacher, target, factor, losses, beta, temperature, ignore_index, out)``. The size of a chunk
    depends on ``classes``, if not on those of the weight: ranks that meet in each step take the same chunks.
    """

    step: Callable[..., None]
    scale: Callable[..., None]
    pair: Callable[..., None] | None = None
    classes: int = 0


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


class Work(NamedTuple):
    """What is computed of the chunks.

    ``run(hidden, weight, bias, tensors, upstream, scale, options, wants, needs)`` returns the fields of ``Rows`` and,
    one after another, dhidden, dweight and dbias, which are empty where not needed. ``tensors`` are what it reads
    beside the head, ``options`` begin with those of ``Chunking``. ``size`` is that of ``evened``.
    """

    run: Callable[..., tuple[Rows, Sequence[torch.Tensor]]]
    tensors: tuple[torch.Tensor | None, ...]
    options: tuple[Any, ...]
    size: torch.Tensor | None = None


# -- The chunk loop ----------------------------------------------------------------------------------------------------
def gradients_like(
    hidden: torch.Tensor, weight: torch.Tensor, accum_dtype: torch.dtype | None, needs: Needs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dhidden, dweight and dbias to be; what is not needed is empty.

    Sums over rows can leave fp16's range before they are divided, so there dW stays fp32 until then.
    """
    dtype = accum_dtype or (torch.float32 if weight.dtype == torch.float16 else weight.dtype)
    dx = hidden.new_empty(hidden.shape if needs.hidden else 0)
    dw = weight.new_empty(weight.shape if needs.weight else 0, dtype=dtype)
    return dx, dw, weight.new_empty(weight.shape[0] if needs.bias else 0, dtype=stat_dtype(hidden))


def each_chunk(
    step: Callable[[slice, torch.Tensor], None],
    size: int,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    accum_dtype: torch.dtype | None,
    needs: Needs,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dhidden (N, H), dweight (V, H) and dbias (V,), empty where not needed.

    ``step(rows, logits)`` makes dlogits of the logits of up to ``size`` rows in place, if there is anything to need.
    """
    dx, dw, db = gradients_like(hidden, weight, accum_dtype, needs)
    N, V = hidden.shape[0], weight.shape[0]
    wide = accum_dtype is None and dw.dtype == torch.bfloat16 and worth_fp32(dw.numel(), size, N)
    total = torch.empty_like(dw, dtype=torch.float32) if needs.weight and wide else dw
    logits = hidden.new_empty((min(size, N), V))
    with torch.no_grad(), no_autocast(hidden.device.type):
        for start in range(0, N, size):
            part = slice(start, start + size)
            h, z = hidden[part], logits[: min(size, N - start)]
            head(h, weight, bias, out=z)
            step(part, z)
            if needs.hidden:
                torch.mm(z, weight, out=dx[part])
            if needs.weight:
                add_product(total, z, h, first=start == 0)
            if needs.bias:
                db.copy_(z.sum(0, dtype=db.dtype)) if start == 0 else db.add_(z.sum(0, dtype=db.dtype))
        if N == 0:
            total.zero_(), db.zero_()
    return dx, dw if total is dw else dw.copy_(total), db


# -- Scaling -----------------------------------------------------------------------------------------------------------
def _scaled_fake(x: torch.Tensor, dy: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


@private_op("linear_cross_entropy_scaled", _scaled_fake)
def _scaled(x: torch.Tensor, dy: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    out = torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, dy, out)
    return out


def _scaled_in_place(x: torch.Tensor, dy: torch.Tensor, dtype: torch.dtype, backend: str) -> torch.Tensor:
    out = x if x.dtype == dtype else torch.empty_like(x, dtype=dtype)
    BACKENDS[backend].scale(x, dy, out)
    return out


def _scale_all(ctx: Any, made: Sequence[torch.Tensor], dy: Any, by: Callable[..., torch.Tensor]) -> list[Any]:
    """The gradients that are needed, times ``dy`` and what ``Work.run`` left out of the scale."""
    dy = unscaled(dy, ctx.scale, ctx.dtypes[0])
    each = zip(made, ctx.dtypes, ctx.needs, strict=True)
    return [by(x, dy, dtype, ctx.work.options[0]) if needed else None for x, dtype, needed in each]


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Linear(torch.autograd.Function):
    """The reduced loss if there is one, and the results of the rows.

    Gradients of a reduced loss are made in the forward, scaled where they lie and handed out by the backward. A further
    backward finds none and computes them again, so the saved gradients never need a second copy of (V, H). Where rows
    have upstream gradients of their own, everything is computed in the backward, again.

    While compiling the gradients are saved tensors, scaled out of place, and the compiler reuses their memory. It hands
    the backward zeros for results that nobody used, so rows are only results if they were asked for, and then they
    always have upstream gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        work: Work,
        result: Result,
        needs: Needs,
        op: str,
    ) -> tuple[torch.Tensor | None, ...]:
        scale = None if result.by is None else result.by.reciprocal()
        token_weight = result.token_weight
        if result.reduced:
            token_weight, scale = evened(token_weight, scale, work.size, hidden)
        ctx.op, ctx.needs, ctx.compiled = op, needs, torch.compiler.is_compiling()
        wants, each = result.wants, not result.reduced or "token_loss" in result.returns
        alone = result.reduced and not (ctx.compiled and (each or wants.lse or wants.entropy))
        now = needs if alone else Needs(False, False, False)
        upstream = Upstream(token_weight)
        rows, made = work.run(hidden, weight, bias, work.tensors, upstream, scale, work.options, wants, now)
        ctx.made = made if any(now) and not ctx.compiled else None
        kept = made if any(now) and ctx.compiled else (None, None, None)
        ctx.save_for_backward(hidden, weight, bias, *work.tensors, token_weight, scale, *kept)
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.dtypes = scale, (hidden.dtype, weight.dtype, weight.dtype)
        ctx.work = work._replace(tensors=(), size=None)
        lse = rows.top + rows.total.log() if wants.lse else None  # type: ignore[operator, union-attr]
        if wants.best:
            ctx.mark_non_differentiable(rows.best)
        total = result.reduce(rows.loss) if result.reduced else None
        losses = rows.loss if each or not ctx.compiled else None
        return total, losses, lse, rows.entropy if wants.entropy else None, rows.best if wants.best else None

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative(ctx.op)
        made, ctx.made = ctx.made, None
        of_the_loss = dy[0] is not None and all(d is None for d in dy[1:4])
        if made is not None and of_the_loss:  # saved tensors are not looked at: they may have changed since
            return *_scale_all(ctx, made, dy[0], _scaled_in_place), *[None] * 4
        del made
        hidden, weight, bias, *tensors, token_weight, scale, dx, dw, db = ctx.saved_tensors
        if of_the_loss:
            made = (dx, dw, db)
            if dw is None:
                upstream = Upstream(token_weight)
                made = ctx.work.run(
                    hidden, weight, bias, tensors, upstream, scale, ctx.work.options, Wants(), ctx.needs
                )[1]
            return *_scale_all(ctx, made, dy[0], _scaled if ctx.compiled else _scaled_in_place), *[None] * 4
        factor = token_weight if scale is None else scale if token_weight is None else token_weight * scale
        upstream = combine(dy[0], factor, *dy[1:4], like=hidden)
        made = ctx.work.run(hidden, weight, bias, tensors, upstream, None, ctx.work.options, Wants(), ctx.needs)[1]
        out = [x.to(d) if needed else None for x, d, needed in zip(made, ctx.dtypes, ctx.needs, strict=True)]
        return *out, *[None] * 4


def linear_rows(
    op: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, work: Work, result: Result
) -> tuple[torch.Tensor | None, RowResults]:
    """hidden (N, H) and the head -> the reduced loss, None without a reduction, and the results of the rows."""
    enabled = torch.is_grad_enabled()  # under no_grad a Function's needs_input_grad still says True
    needs = Needs(*[enabled and t is not None and t.requires_grad for t in (hidden, weight, bias)])
    total, *found = _Linear.apply(hidden, weight, bias, work, result, needs, op)  # type: ignore[no-untyped-call]
    return total, RowResults(*found)
