"""rope, mrope and rope_complex as one autograd node around the kernel of ``_turn_triton``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from liger.launch import private_op, refuse_second_derivative
from liger.numerics import acc
from liger_kernels_rope._turn_triton import Form, dense_last, launch_turn
from liger_kernels_rope.rope import arrange, partner


# -- Launches ----------------------------------------------------------------------------------------------------------
def _tables(cos: torch.Tensor, sin: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin; views of the parts of complex numbers, which come without a sin."""
    if sin is not None:
        return cos, sin
    cos = cos.resolve_conj()  # else its imaginary part is a view whose sign is not in memory
    return cos.real, cos.imag


def _forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor | None,
    heads: int,
    layout: str,
    tables: str,
    cast: str,
    sections: Sequence[int],
    alternate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    def like(x: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(x.dtype, cos.dtype) if cast == "none" else x.dtype
        return torch.empty_like(dense_last(x), dtype=dtype)

    return like(q), like(k)


@private_op("rope_forward", _forward_fake)
def _launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor | None,
    heads: int,
    layout: str,
    tables: str,
    cast: str,
    sections: Sequence[int],
    alternate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn q and k of any strides; the results have the same strides where the input is dense."""
    form = Form(heads, layout, tables, cast, tuple(sections), alternate)
    yq, yk = _forward_fake(q, k, cos, sin, *form)
    launch_turn(((dense_last(q), yq), (dense_last(k), yk)), *_tables(cos, sin), form, False)
    return yq, yk


def _backward_fake(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor | None,
    q_strides: Sequence[int],
    k_strides: Sequence[int],
    q_dtype: torch.dtype,
    k_dtype: torch.dtype,
    heads: int,
    layout: str,
    tables: str,
    cast: str,
    sections: Sequence[int],
    alternate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    def like(dy: torch.Tensor | None, strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if dy is None:
            return torch.empty(0, dtype=dtype, device=cos.device)
        return torch.empty_strided(dy.shape, strides, dtype=dtype, device=dy.device)

    return like(dyq, q_strides, q_dtype), like(dyk, k_strides, k_dtype)


@private_op("rope_backward", _backward_fake)
def _launch_backward(
    dyq: torch.Tensor | None,
    dyk: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor | None,
    q_strides: Sequence[int],
    k_strides: Sequence[int],
    q_dtype: torch.dtype,
    k_dtype: torch.dtype,
    heads: int,
    layout: str,
    tables: str,
    cast: str,
    sections: Sequence[int],
    alternate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> dq, dk with the given strides; an empty tensor where no gradient comes in."""
    form = Form(heads, layout, tables, cast, tuple(sections), alternate)
    dq, dk = _backward_fake(dyq, dyk, cos, sin, q_strides, k_strides, q_dtype, k_dtype, *form)
    pairs = [(None, None) if dy is None else (dense_last(dy), dx) for dy, dx in ((dyq, dq), (dyk, dk))]
    launch_turn(pairs, *_tables(cos, sin), form, True)
    return dq, dk


# -- Autograd ----------------------------------------------------------------------------------------------------------
def _table_gradient(
    grads: Sequence[torch.Tensor | None], turned: Sequence[torch.Tensor], table: torch.Tensor, form: Form
) -> torch.Tensor | None:
    """Gradient of cos, or of sin if ``turned`` holds the partners: summed over heads, q and k, shared rows, pairs."""
    parts = [
        (acc(dy[..., : x.shape[-1]]) * acc(x)).sum(form.heads)
        for dy, x in zip(grads, turned, strict=True)
        if dy is not None
    ]
    if not parts:
        return None
    total = parts[0] + parts[1] if len(parts) == 2 else parts[0]
    if table.dim() == 3 and table.shape[0] == 1:
        total = total.sum(0, keepdim=True)
    if form.tables == "pair":
        ones, twos = (total[..., ::2], total[..., 1::2]) if form.layout == "interleaved" else total.chunk(2, -1)
        total = ones + twos
    return total.to(table.dtype)


class _Rope(torch.autograd.Function):
    """Saves cos and sin; q and k only if cos or sin need a gradient."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor | None, form: Form, op: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        yq, yk = _launch_forward(q, k, cos, sin, *form)
        tables = any(ctx.needs_input_grad[2:4])
        ctx.save_for_backward(cos, sin, *((q, k) if tables else ()))
        ctx.op, ctx.form, ctx.like = op, form, (yq.stride(), yk.stride(), q.dtype, k.dtype)
        ctx.set_materialize_grads(False)
        return yq, yk

    @staticmethod
    def backward(ctx: Any, dyq: torch.Tensor | None, dyk: torch.Tensor | None) -> tuple[Any, ...]:
        refuse_second_derivative(ctx.op)
        cos, sin, *inputs = ctx.saved_tensors
        form: Form = ctx.form
        need_q, need_k, need_cos, need_sin, _, _ = ctx.needs_input_grad
        grad_q, grad_k = dyq if need_q else None, dyk if need_k else None
        dq = dk = dcos = dsin = None
        if grad_q is not None or grad_k is not None:
            dq, dk = _launch_backward(grad_q, grad_k, cos, sin, *ctx.like, *form)
        if need_cos or need_sin:
            width = cos.shape[-1] * (2 if form.tables == "pair" else 1)
            plain = [arrange(x[..., :width], form.layout) for x in inputs]
            if need_cos:
                dcos = _table_gradient((dyq, dyk), plain, cos, form)
            if need_sin:
                dsin = _table_gradient((dyq, dyk), [partner(x, form.layout) for x in plain], sin, form)
        return None if grad_q is None else dq, None if grad_k is None else dk, dcos, dsin, None, None


def rope_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    unsqueeze_dim: int,
    layout: str,
    tables: str,
    cast: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_rope.rope``."""
    form = Form(unsqueeze_dim, layout, tables, cast)
    return _Rope.apply(q, k, cos, sin, form, "rope")  # type: ignore[no-any-return, no-untyped-call]


def mrope_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    sections: Sequence[int],
    interleaved: bool,
    unsqueeze_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_rope.mrope``."""
    form = Form(unsqueeze_dim, sections=tuple(sections), alternate=interleaved)
    return _Rope.apply(q, k, cos, sin, form, "mrope")  # type: ignore[no-any-return, no-untyped-call]


def rope_complex_triton(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, unsqueeze_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_rope.rope_complex``."""
    form = Form(unsqueeze_dim, "interleaved", "pair", "fp32")
    return _Rope.apply(q, k, freqs, None, form, "rope_complex")  # type: ignore[no-any-return, no-untyped-call]
