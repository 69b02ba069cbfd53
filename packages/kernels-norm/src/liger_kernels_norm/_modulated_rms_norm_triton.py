"""Launches of modulated_rms_norm, and its gradient; the kernels are in ``_modulated_kernels_triton``.

Rows up to 8192 columns are held in registers; wider ones are read twice. The backward of wide rows takes the sum along
each row first, then tiles of columns.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import functools
from typing import Any

import torch

from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings
from liger_kernels_norm._modulated_kernels_triton import _add_splits, _backward, _forward, _row_means

WIDE = 8192  # columns a program holds


# -- How much a program does -------------------------------------------------------------------------------------------
@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16))
def _forward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Two rows a program, or 4096 elements of narrow ones, 32 values of a tensor a thread.

    Rows of one sample share its scale and shift, which come from L2, and there is no time for many of them.
    """
    if H > WIDE:  # 8 values a thread: with 16, or with more threads, the loops spill on some GPUs
        return {"BLOCK": WIDE // 4, "ROWS": 1, "num_warps": 8}
    block = next_power_of_2(H)
    rows = max(2, 4096 // block)
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(16, max(4, block * rows // 1024))}


@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16), STAGES=(1, 2, 3, 4, 5, 6), PROGRAMS=(1, 2, 3, 4, 6, 8))
def _backward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``, and ``PROGRAMS`` per multiprocessor: wide rows are cut into tiles of columns.

    dy and x of the next ``STAGES - 1`` tiles are on their way through shared memory, 48 to 64 KB of them on each
    multiprocessor. Few programs: each of them writes two rows of partial sums. At H=1152 four of 4 warps took 37 us on
    an H200, two of 8 took 46.
    """
    if H > WIDE:
        return {"COLS": 256, "ROWS": 8, "num_warps": 4, "STAGES": 1, "PROGRAMS": 4}
    block = next_power_of_2(H)
    rows = max(1, 2048 // block)
    programs, warps = (4, 4) if block * rows <= 2048 else (1, 8)
    ahead = max(1, min(5, 65536 // (2 * itemsize * H * rows * programs)))
    while ahead and 2 * itemsize * block * rows * programs * ahead > device.shared:
        ahead -= 1
    return {"COLS": block, "ROWS": rows, "num_warps": warps, "STAGES": 1 + ahead, "PROGRAMS": programs}


# -- Launches ----------------------------------------------------------------------------------------------------------
def _forward_fake(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor | None, eps: float, llama: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = [t.dtype for t in (x, scale, shift, weight) if t is not None]
    dtype = functools.reduce(torch.promote_types, tensors) if llama else x.dtype
    return torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[0], dtype=torch.float32)


@private_op("modulated_rms_norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor | None, eps: float, llama: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (B * T, H), scale, shift (B, H), contiguous -> y (B * T, H), rstd (B * T,) fp32."""
    R, H = x.shape
    y, rstd = _forward_fake(x, scale, shift, weight, eps, llama)
    if H == 0:
        return y, rstd
    chosen = _forward_settings(H, x.element_size(), gpu(x.device))
    T = R // max(1, scale.shape[0])
    launch(
        _forward,
        (ceil_div(R, chosen["ROWS"]),),
        (x, scale, shift, weight, y, rstd),
        (R, T, eps),
        fuse_multiply_add=not llama,  # each step is rounded by itself
        H=H,
        **chosen,
        SAME=T % chosen["ROWS"] == 0,
        LLAMA=llama,
    )
    return y, rstd


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    shift_dtype: torch.dtype,
    needs: list[bool],
) -> list[torch.Tensor]:
    kinds = ((x, x.dtype), (scale, scale.dtype), (scale, shift_dtype), (weight, None))
    return [
        torch.empty_like(like, dtype=dtype) if need and like is not None else x.new_empty(0)
        for (like, dtype), need in zip(kinds, needs, strict=True)
    ]


@private_op("modulated_rms_norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    shift_dtype: torch.dtype,
    needs: list[bool],
) -> list[torch.Tensor]:
    """dy, x (B * T, H), scale (B, H) -> the four gradients; an empty tensor for what is not needed."""
    (R, H), B = x.shape, scale.shape[0]
    made = _backward_fake(dy, x, scale, weight, rstd, shift_dtype, needs)
    if H == 0:
        return made
    dx, dscale, dshift = (t if need else None for t, need in zip(made[:3], needs, strict=False))
    T = R // max(1, B)
    device, means = gpu(x.device), None
    if H > WIDE and dx is not None:
        means = torch.empty_like(rstd)
        held = _forward_settings(H, x.element_size(), device)
        how = {"num_warps": held["num_warps"], "BLOCK": held["BLOCK"]}
        launch(_row_means, (R,), (dy, x, scale, weight, rstd, means), (T,), H=H, **how)
    chosen = _backward_settings(H, x.element_size(), device).copy()
    chosen["ROWS"] = min(chosen["ROWS"], next_power_of_2(T))
    across, programs = ceil_div(H, chosen["COLS"]), chosen.pop("PROGRAMS") * device.processors
    splits = max(1, min(ceil_div(T, chosen["ROWS"]), programs // max(1, B * across)))
    p = x.new_empty((splits, B, H), dtype=torch.float32) if needs[1] or needs[3] else None
    s = x.new_empty((splits, B, H), dtype=torch.float32) if needs[2] else None
    tensors = (dy, x, scale, weight, rstd, means, dx, p, s)
    launch(_backward, (B * splits, across), tensors, (T, splits), H=H, **chosen)
    if p is not None or s is not None:
        dw = made[3] if needs[3] else None
        rows = min(32, next_power_of_2(splits))
        tile: dict[str, Any] = {"COLS": 1024 // rows, "ROWS": rows, "DW_COLS": 32, "DW_ROWS": 64}
        grid = B * ceil_div(H, tile["COLS"]) + (0 if dw is None else ceil_div(H, tile["DW_COLS"]))
        sums = (scale, p, s, weight, dscale, dshift, dw)
        launch(_add_splits, (grid,), sums, (splits, B), num_warps=4, H=H, **tile)
    return made


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _ModulatedRMSNorm(torch.autograd.Function):
    """Saves the inputs and rstd; the normalised value is recomputed."""

    @staticmethod
    def forward(ctx, x, scale, shift, weight, eps, llama):
        x, scales = x.contiguous(), as_rows(scale)
        weight = weight if weight is None else weight.contiguous()
        y, rstd = _launch_forward(as_rows(x), scales, as_rows(shift), weight, eps, llama)
        ctx.save_for_backward(x, scales, weight, rstd)
        ctx.shapes, ctx.shift_dtype = (x.shape, scale.shape, scale.shape), shift.dtype
        return y if x.dim() == 2 else y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("modulated_rms_norm")
        needs = list(ctx.needs_input_grad[:4])
        x, *rest = ctx.saved_tensors
        *made, dw = _launch_backward(as_rows(dy), as_rows(x), *rest, ctx.shift_dtype, needs)
        out = [t.view(shape) if need else None for t, shape, need in zip(made, ctx.shapes, needs, strict=False)]
        return *out, dw if needs[3] else None, None, None


def modulated_rms_norm_triton(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor | None, *, eps: float, cast: str
) -> torch.Tensor:
    """See ``liger_kernels_norm.modulated_rms_norm``."""
    return _ModulatedRMSNorm.apply(x, scale, shift, weight, eps, cast == "llama")  # type: ignore[no-any-return]
