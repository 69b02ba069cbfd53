"""Launches of gated_rms_norm, and its gradient; the kernels are in ``_gated_kernels_triton``.

Rows up to 8192 columns are held in registers; wider ones are read twice. In the forward the second read is from L2. The
backward of wide rows takes the sum along each row first, then tiles of columns, which add up dweight on the way.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch

from liger._partials_triton import add_partials
from liger.launch import GPU, as_rows, ceil_div, gpu, launch, next_power_of_2, private_op, refuse_second_derivative
from liger.settings import settings
from liger_kernels_norm._gated_kernels_triton import _backward, _backward_wide, _forward, _forward_wide, _row_means

WIDE = 8192  # columns a program holds


# -- How much a program does -------------------------------------------------------------------------------------------
def _tile(N: int) -> dict[str, int]:
    """2048 elements a program for narrow rows, 16 values of a tensor a thread for wide ones."""
    block = next_power_of_2(N)
    rows = max(1, 2048 // block)
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(16, max(4, block * rows // 512))}


@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16))
def _forward_settings(N: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward``."""
    return _tile(N)


@settings(ROWS=(1, 2, 4, 8, 16), num_warps=(4, 8, 16), STAGES=(1, 2, 3, 4), PROGRAMS=(1, 2, 4))
def _backward_settings(N: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``, and ``PROGRAMS`` per multiprocessor.

    dy, x and gate of the next ``STAGES - 1`` tiles are on their way through shared memory. Of narrow tiles there are
    two programs, of which one computes while the other sums its rows, and 48 KB; of wide ones one, and 72 to 96 KB: on
    an H200 rows of 4096 took 187 us with the former and 169 with the latter.
    """
    tile = _tile(N)
    size = tile["BLOCK"] * tile["ROWS"]
    programs = 2 if size <= 2048 else 1
    loaded = 3 * itemsize * size * programs
    ahead = max(1, min(3, (65536 if programs == 2 else 98304) // loaded))
    while ahead and loaded * ahead > device.shared:
        ahead -= 1
    return {**tile, "num_warps": 8 if size <= 2048 else 16, "STAGES": 1 + ahead, "PROGRAMS": programs}


# -- Launches ----------------------------------------------------------------------------------------------------------
def _forward_fake(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor | None, eps: float, how: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    groups, _, first, llama = how
    promote = llama and not first and weight is not None
    dtype = torch.promote_types(x.dtype, weight.dtype) if promote else x.dtype  # type: ignore[union-attr]
    return torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[0] * groups, dtype=torch.float32)


@private_op("gated_rms_norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor | None, eps: float, how: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, gate (R, H) contiguous, how = [groups, SILU, FIRST, LLAMA] -> y (R, H), rstd (R * groups,) fp32."""
    groups, silu, first, llama = how
    y, rstd = _forward_fake(x, gate, weight, eps, how)
    rows, N = rstd.numel(), x.shape[1] // groups
    tensors = (x, gate, weight, y, rstd)
    consts: dict[str, Any] = {"SILU": silu, "FIRST": first, "LLAMA": llama}
    if N > WIDE:
        launch(_forward_wide, (rows,), tensors, (eps,), num_warps=16, N=N, G=groups, BLOCK=WIDE // 2, **consts)
    else:
        chosen = _forward_settings(N, x.element_size(), gpu(x.device))
        consts = {"N": N, "G": groups, **chosen, **consts}
        launch(_forward, (ceil_div(rows, chosen["ROWS"]),), tensors, (rows, eps), **consts)
    return y, rstd


def _backward_fake(
    dy: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    how: list[int],
    needs: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx, dgate, dw = (
        torch.empty_like(t) if need and t is not None else x.new_empty(0)
        for t, need in zip((x, gate, weight), needs, strict=True)
    )
    return dx, dgate, dw


@private_op("gated_rms_norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    how: list[int],
    needs: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dy, x, gate (R, H) contiguous -> dx, dgate (R, H), dw (H,); an empty tensor for what is not needed."""
    groups, silu, first, _ = how
    R, N = x.shape[0], x.shape[1] // groups
    made = _backward_fake(dy, x, gate, weight, rstd, how, needs)
    device, splits = gpu(x.device), min(ceil_div(R, 8), 16)
    if N <= WIDE:
        chosen = _backward_settings(N, x.element_size(), device).copy()
        splits = min(ceil_div(R, chosen["ROWS"]), max(1, chosen.pop("PROGRAMS") * device.processors // groups))
    parts = x.new_empty((splits, groups * N), dtype=torch.float32) if needs[2] else None
    out = [t if need else None for t, need in zip(made[:2], needs, strict=False)]
    inputs = (dy, x, gate, weight, rstd)
    consts: dict[str, Any] = {"SILU": silu, "FIRST": first}
    if N <= WIDE:
        consts = {"N": N, "G": groups, **chosen, **consts}
        launch(_backward, (splits * groups,), (*inputs, *out, parts), (R,), **consts)
    else:
        means = torch.empty_like(rstd)
        shape: dict[str, Any] = {"N": N, "G": groups}
        blocks = ceil_div(N, WIDE // 2)
        launch(_row_means, (R * groups,), (*inputs, means), (blocks,), num_warps=16, **shape, BLOCK=WIDE // 2, **consts)
        grid = (ceil_div(N, 256) * groups, splits)
        consts = {**shape, "COLS": 256, "ROWS": 8, **consts}
        launch(_backward_wide, grid, (*inputs, means, *out, parts), (R,), num_warps=4, **consts)
    if parts is not None:
        add_partials(parts, made[2])
    return made


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _GatedRMSNorm(torch.autograd.Function):
    """Saves x, gate, weight and rstd; the normalised value and the activation are recomputed."""

    @staticmethod
    def forward(ctx, x, gate, weight, eps, how):
        rows, gates = as_rows(x), as_rows(gate)
        weight = weight if weight is None else weight.contiguous()
        y, rstd = _launch_forward(rows, gates, weight, eps, how)
        ctx.save_for_backward(rows, gates, weight, rstd)
        ctx.how, ctx.shape = how, x.shape
        return y if x.dim() == 2 else y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("gated_rms_norm")
        needs = list(ctx.needs_input_grad[:3])
        made = _launch_backward(as_rows(dy), *ctx.saved_tensors, ctx.how, needs)
        shapes = (ctx.shape, ctx.shape, None)
        out = [_shaped(t, shape) if need else None for t, shape, need in zip(made, shapes, needs, strict=True)]
        return *out, None, None


def _shaped(t: torch.Tensor, shape: torch.Size | None) -> torch.Tensor:
    return t if shape is None or len(shape) == 2 else t.view(shape)


def gated_rms_norm_triton(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    eps: float,
    activation: str,
    norm_before_gate: bool,
    groups: int,
    cast: str,
) -> torch.Tensor:
    """See ``liger_kernels_norm.gated_rms_norm``."""
    how = [groups, int(activation == "silu"), int(norm_before_gate), int(cast == "llama")]
    return _GatedRMSNorm.apply(x, gate, weight, eps, how)  # type: ignore[no-any-return]
