"""Triton kernels of cross_entropy: the losses of ``_rows_triton.py``, and a backward that touches each logit once."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings
from liger_kernels_loss._loss import Loss, divide, divisor
from liger_kernels_loss._rows_triton import (
    LN2,
    NUMBERS,
    class_total,
    class_weights,
    flags,
    launch_losses,
    numbers,
    row_gradient,
    row_label,
    weight_mass,
)
from liger_kernels_loss._transforms_triton import transform


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=NUMBERS)
def _backward(
    dy_ptr,  # (R,) fp32 with any stride, 0 for one number
    logits_ptr,  # (R, V)
    target_ptr,  # (R,) int64
    w_ptr,  # (V,) fp32 or None
    w_total_ptr,  # (1,) fp32 or None
    top_ptr,  # (R,) fp32
    total_ptr,  # (R,) fp32
    dlogits_ptr,  # (R, V)
    dy_stride,
    ignore_index,
    smoothing,
    softcap,
    scale,
    z_loss,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < V
    y = tl.load(target_ptr + row)
    out_ptr = dlogits_ptr + row * V + cols
    if y == ignore_index:
        tl.store(out_ptr, tl.zeros((BLOCK,), dlogits_ptr.dtype.element_ty), mask=mask)
    else:
        weight = row_label(logits_ptr + row * V, w_ptr, y, scale, softcap, V, SOFTCAP)[1]
        top, total = tl.load(top_ptr + row), tl.load(total_ptr + row)
        hit = (1.0 - smoothing) * weight
        pull = hit + 2.0 * z_loss * (top + tl.log2(total) * LN2)
        smooth = smoothing / V
        if SMOOTH:
            pull += smooth * weight_mass(w_total_ptr, V)
        factor = tl.load(dy_ptr + row * dy_stride)
        z = transform(tl.load(logits_ptr + row * V + cols, mask=mask, other=0.0), scale, softcap, SOFTCAP)
        hit = tl.where(cols == y.to(tl.int32), hit, 0.0)
        w = class_weights(w_ptr, cols, mask)
        dz = row_gradient(z, w, top, total, pull, hit, smooth, factor, scale, softcap, SOFTCAP, SMOOTH)
        tl.store(out_ptr, dz.to(dlogits_ptr.dtype.element_ty), mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _forward_fake(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, top, total = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))
    return rows, top, total


@private_op("cross_entropy_forward", _forward_fake)
def _launch_forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits (R, V) contiguous -> losses, top, total, each (R,) fp32."""
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    rows, top, total = _forward_fake(logits, target, class_weight, *loss)
    launch_losses(logits, target, class_weight, None, rows, (top, total), loss, False)
    return rows, top, total


@settings(BLOCK=(1024, 2048, 4096, 8192, 16384), num_warps=(1, 2, 4, 8, 16))
def _backward_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``: 16 bytes a load and 4 loads a thread in 16 bit."""
    block = min(next_power_of_2(V), 8192)
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 512))}


def _backward_fake(
    dy: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
) -> torch.Tensor:
    return torch.empty_like(logits)


@private_op("cross_entropy_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    logits: torch.Tensor,
    target: torch.Tensor,
    class_weight: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
) -> torch.Tensor:
    """dy fp32, one number or (R,) of any stride -> dlogits (R, V)."""
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    dlogits = torch.empty_like(logits)
    R, V = logits.shape
    chosen = _backward_settings(V, logits.element_size(), gpu(logits.device))
    tensors = (dy, logits, target, class_weight, class_total(class_weight, loss), top, total, dlogits)
    scalars = (dy.stride(0) if dy.dim() else 0, *numbers(loss))
    launch(_backward, (R, ceil_div(V, chosen["BLOCK"])), tensors, scalars, V=V, **chosen, **flags(loss))
    return dlogits


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _CrossEntropy(torch.autograd.Function):
    """Saves the logits and two numbers a row; the backward reads the logits once more and writes their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        loss: Loss,
        per_row: bool,
    ) -> torch.Tensor:
        flat = logits.reshape(-1, logits.shape[-1]).contiguous()
        rows, top, total = _launch_forward(flat, target, class_weight, *loss)
        ctx.save_for_backward(flat, target, class_weight, top, total)
        ctx.loss, ctx.shape = loss, logits.shape
        out: torch.Tensor = rows if per_row else rows.sum()
        return out

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_second_derivative("cross_entropy")
        dlogits = _launch_backward(dy, *ctx.saved_tensors, *ctx.loss)
        return dlogits.view(ctx.shape), None, None, None, None


def cross_entropy_triton(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float | None,
    logit_scale: float,
    z_loss: float,
    num_items: int | float | torch.Tensor | None,
    check_labels: bool,
) -> torch.Tensor:
    """See ``liger_kernels_loss.cross_entropy``."""
    del check_labels
    labels = target.reshape(-1).long().contiguous()
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    class_weight = None if weight is None else weight.contiguous()
    out: torch.Tensor = _CrossEntropy.apply(logits, labels, class_weight, loss, reduction == "none")  # type: ignore[no-untyped-call]
    if reduction == "none":
        return out.view(target.shape)
    return divide(out, divisor(labels, class_weight, out.dtype, ignore_index, reduction, num_items))
