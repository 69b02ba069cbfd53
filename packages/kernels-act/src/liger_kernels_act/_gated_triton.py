"""Triton kernels of the gated activations: one pass over tiles of rows, everything in fp32.

gate and up are two tensors, the halves of one packed tensor, or its elements in turn; the arithmetic is the same.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import GPU, Launch, ceil_div, gpu, next_power_of_2, prepare, private_op, refuse_second_derivative
from liger.settings import cached, settings
from liger_kernels_act._gated_math_triton import ACTIVATION, CLAMPED, activate, factors, product

OP = {"silu": "silu_mul", "tanh": "gelu_mul", "none": "gelu_mul", "clamped": "silu_mul_clamped"}
TILE = 1024  # elements of one program: 4 warps x 32 lanes x 8 elements, one 16-byte load each in bf16
NUMBERS = ["R", "gate_multiplier", "down_multiplier", "alpha", "limit", "up_offset"]


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _tile(R, H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Rows, columns and mask of this program; column blocks of one row are neighbours."""
    across = tl.cdiv(H, BLOCK)
    rows = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    return rows[:, None], cols[None, :], (rows < R)[:, None] & (cols < H)[None, :]


@triton.jit
def _load_both(
    g_ptr,
    u_ptr,
    R,
    H: tl.constexpr,
    G_STRIDE: tl.constexpr,
    U_STRIDE: tl.constexpr,
    G_AT: tl.constexpr,
    U_AT: tl.constexpr,
    IN_TURN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """gate and up in fp32. Elements in turn are read as one dense tile, whose loads are as wide as those of others."""
    if IN_TURN:
        rows, cols, mask = _tile(R, 2 * H, 2 * BLOCK, ROWS)
        both = tl.load(g_ptr + rows * G_STRIDE + cols, mask=mask, other=0.0)
        g, u = tl.split(tl.reshape(both, (ROWS, BLOCK, 2)))
    else:
        rows, cols, mask = _tile(R, H, BLOCK, ROWS)
        g = tl.load(g_ptr + rows * G_STRIDE + (G_AT + cols), mask=mask, other=0.0)
        u = tl.load(u_ptr + rows * U_STRIDE + (U_AT + cols), mask=mask, other=0.0)
    return g.to(tl.float32), u.to(tl.float32)


@triton.jit(do_not_specialize=NUMBERS)
def _forward(
    g_ptr,  # (R, H), rows G_STRIDE apart, from column G_AT on
    u_ptr,  # (R, H), rows U_STRIDE apart, from column U_AT on
    y_ptr,  # (R, H)
    R,
    gate_multiplier,
    down_multiplier,
    alpha,
    limit,
    up_offset,
    H: tl.constexpr,
    G_STRIDE: tl.constexpr,
    U_STRIDE: tl.constexpr,
    G_AT: tl.constexpr,
    U_AT: tl.constexpr,
    IN_TURN: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    G: tl.constexpr = g_ptr.dtype.element_ty
    g, u = _load_both(g_ptr, u_ptr, R, H, G_STRIDE, U_STRIDE, G_AT, U_AT, IN_TURN, BLOCK, ROWS)
    g, u = factors(g, u, gate_multiplier, limit, up_offset, G, u_ptr.dtype.element_ty, ACT)
    rows, cols, mask = _tile(R, H, BLOCK, ROWS)
    tl.store(y_ptr + rows * H + cols, product(g, u, alpha, down_multiplier, G, y_ptr.dtype.element_ty, ACT), mask=mask)


@triton.jit(do_not_specialize=NUMBERS)
def _backward(
    dy_ptr,  # (R, H), rows DY_STRIDE apart
    g_ptr,  # (R, H), rows G_STRIDE apart, from column G_AT on
    u_ptr,  # (R, H), rows U_STRIDE apart, from column U_AT on
    dg_ptr,  # (R, H), rows D_STRIDE apart, from column G_AT on; or None: gate needs no gradient
    du_ptr,  # (R, H), rows D_STRIDE apart, from column U_AT on; or None: up needs no gradient
    y_ptr,  # (R, H) or None: the product of the forward is not wanted
    R,
    gate_multiplier,
    down_multiplier,
    alpha,
    limit,
    up_offset,
    H: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    G_STRIDE: tl.constexpr,
    U_STRIDE: tl.constexpr,
    D_STRIDE: tl.constexpr,
    G_AT: tl.constexpr,
    U_AT: tl.constexpr,
    IN_TURN: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    G: tl.constexpr = g_ptr.dtype.element_ty
    rows, cols, mask = _tile(R, H, BLOCK, ROWS)
    dy = tl.load(dy_ptr + rows * DY_STRIDE + cols, mask=mask, other=0.0).to(tl.float32) * down_multiplier
    g, u = _load_both(g_ptr, u_ptr, R, H, G_STRIDE, U_STRIDE, G_AT, U_AT, IN_TURN, BLOCK, ROWS)
    z, v = factors(g, u, gate_multiplier, limit, up_offset, G, u_ptr.dtype.element_ty, ACT)
    a, slope = activate(z, alpha, G, ACT)
    dg = dy * v * slope * gate_multiplier
    du = dy * a
    if ACT == CLAMPED:
        dg = tl.where(g <= limit, dg, 0.0)
        du = tl.where((u >= -limit) & (u <= limit), du, 0.0)
    if IN_TURN:
        both = tl.reshape(tl.join(dg, du), (ROWS, 2 * BLOCK)).to(dg_ptr.dtype.element_ty)
        both_rows, both_cols, both_mask = _tile(R, 2 * H, 2 * BLOCK, ROWS)
        tl.store(dg_ptr + both_rows * D_STRIDE + both_cols, both, mask=both_mask)
    else:
        if dg_ptr is not None:
            at = dg_ptr + rows * D_STRIDE + (G_AT + cols)
            tl.store(at, dg.to(dg_ptr.dtype.element_ty), mask=mask)
        if du_ptr is not None:
            at = du_ptr + rows * D_STRIDE + (U_AT + cols)
            tl.store(at, du.to(du_ptr.dtype.element_ty), mask=mask)
    if y_ptr is not None:
        y = product(z, v, alpha, down_multiplier, G, y_ptr.dtype.element_ty, ACT)
        tl.store(y_ptr + rows * H + cols, y, mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _as_rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """x (..., H) with rows that are dense in themselves, and the distance between rows; copies only if it must."""
    width = x.shape[-1] if x.dim() else 1
    if x.is_contiguous():
        return x, width
    rows = x.reshape(-1, width) if x.numel() else x.reshape(0, width)
    if rows.stride(1) != 1 and width > 1:
        rows = rows.contiguous()
    return rows, rows.stride(0) if rows.shape[0] > 1 else width


def _size(x: torch.Tensor) -> tuple[int, int]:
    """R and H of x (..., H)."""
    H = x.shape[-1] if x.dim() else 1
    return x.numel() // max(H, 1), H


@settings(BLOCK=(256, 512, 1024, 2048, 4096), ROWS=(1, 2, 4, 8), num_warps=(4, 8))
def _tile_settings(H: int, itemsize: int, backward: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_forward`` and ``_backward``: a tile of a wide row, or of several narrow ones.

    4 warps with one 16-byte load each of a 16-bit tensor, whatever the direction; tables may tell them apart.
    """
    block = min(TILE, next_power_of_2(max(H, 1)))
    return {"BLOCK": block, "ROWS": TILE // block, "num_warps": 4}


def _columns(layout: str, H: int) -> dict[str, Any]:
    """Where gate and up begin in a row of a packed tensor, and whether their elements alternate."""
    return {
        "G_AT": H if layout == "up_gate" else 0,
        "U_AT": H if layout == "gate_up" else 0,
        "IN_TURN": layout == "interleaved",
    }


@cached
def _plan(
    H: int, strides: tuple[int, ...], layout: str, act: str, itemsize: int, device: GPU
) -> tuple[Launch, int, int]:
    """The launch for rows of gate and up, or dy, gate and up, that far apart; rows of a program, programs of a row."""
    backward = len(strides) == 3
    tile = _tile_settings(H, itemsize, backward, device)
    names = ("DY_STRIDE", "G_STRIDE", "U_STRIDE") if backward else ("G_STRIDE", "U_STRIDE")
    apart = dict(zip(names, strides, strict=True))
    if backward:
        apart["D_STRIDE"] = 2 * H if layout else H
    constants = {"H": H, **apart, **_columns(layout, H), "ACT": ACTIVATION[act], **tile}
    return prepare(_backward if backward else _forward, **constants), tile["ROWS"], ceil_div(H, tile["BLOCK"])


def _forward_fake(
    gate: torch.Tensor, up: torch.Tensor | None, layout: str, act: str, numbers: Sequence[float]
) -> torch.Tensor:
    if up is None:
        return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // 2))
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return torch.empty_like(gate, dtype=dtype, memory_format=torch.contiguous_format)


@private_op("gated_forward", _forward_fake)
def launch_forward(
    gate: torch.Tensor, up: torch.Tensor | None, layout: str, act: str, numbers: Sequence[float]
) -> torch.Tensor:
    """gate, up (..., H) of any strides, or gate (..., 2 H) packed by ``layout`` and no up -> y (..., H) contiguous."""
    y = _forward_fake(gate, up, layout, act, numbers)
    g, g_stride = _as_rows(gate)
    u, u_stride = (g, g_stride) if up is None else _as_rows(up)
    R, H = _size(y)
    forward, tile, across = _plan(H, (g_stride, u_stride), layout, act, g.element_size(), gpu(g.device))
    forward((ceil_div(R, tile) * across,), (g, u, y), (R, *numbers))
    return y


def write_backward(
    dy: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    results: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    layout: str,
    act: str,
    numbers: Sequence[float],
) -> None:
    """Fill ``results``, all contiguous: dgate, dup, and y with the forward's bits; what is None is not wanted.

    Without up ``results[0]`` is the gradient (..., 2 H) of both.
    """
    (d, d_stride), (g, g_stride) = _as_rows(dy), _as_rows(gate)
    u, u_stride = (g, g_stride) if up is None else _as_rows(up)
    dgate, dup, y = results
    R, H = _size(dy)
    strides = (d_stride, g_stride, u_stride)
    backward, tile, across = _plan(H, strides, layout, act, g.element_size(), gpu(g.device))
    tensors = (d, g, u, dgate, dgate if up is None else dup, y)
    backward((ceil_div(R, tile) * across,), tensors, (R, *numbers))


def _backward_fake(
    dy: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    layout: str,
    act: str,
    numbers: Sequence[float],
    need_gate: bool,
    need_up: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gradient_like(gate, need_gate), _gradient_like(gate if up is None else up, need_up)


def _gradient_like(x: torch.Tensor, needed: bool) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format) if needed else x.new_empty(0)


@private_op("gated_backward", _backward_fake)
def launch_backward(
    dy: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    layout: str,
    act: str,
    numbers: Sequence[float],
    need_gate: bool,
    need_up: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> dgate, dup in the shapes of gate and up, contiguous; an empty tensor for what is not needed."""
    dgate, dup = _backward_fake(dy, gate, up, layout, act, numbers, need_gate, need_up)
    results = (dgate if need_gate else None, dup if need_up else None, None)
    write_backward(dy, gate, up, results, layout, act, numbers)
    return dgate, dup


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Gated(torch.autograd.Function):
    """Saves gate and up, and recomputes the activation, which costs less than reading it would."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor | None, layout: str, act: str, numbers: Sequence[float]
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.rest = layout, act, numbers
        return launch_forward(gate, up, layout, act, numbers)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layout, act, _ = ctx.rest
        refuse_second_derivative(OP[act] + ("_packed" if layout else ""))
        gate, up = ctx.saved_tensors
        need_gate, need_up, *_ = ctx.needs_input_grad
        dgate, dup = launch_backward(dy, gate, up, *ctx.rest, need_gate, need_up)
        return dgate if need_gate else None, dup if need_up else None, None, None, None


def _gated(gate: torch.Tensor, up: torch.Tensor | None, layout: str, act: str, *numbers: float) -> torch.Tensor:
    """``numbers``: gate_multiplier, down_multiplier, alpha, limit, up_offset, also those that ``act`` does without."""
    return _Gated.apply(gate, up, layout, act, numbers)  # type: ignore[no-any-return, no-untyped-call]


def silu_mul_triton(
    gate: torch.Tensor, up: torch.Tensor, *, gate_multiplier: float, down_multiplier: float
) -> torch.Tensor:
    """See ``liger_kernels_act.silu_mul``."""
    return _gated(gate, up, "", "silu", float(gate_multiplier), float(down_multiplier), 1.0, 0.0, 0.0)


def gelu_mul_triton(
    gate: torch.Tensor, up: torch.Tensor, *, approximate: str, gate_multiplier: float, down_multiplier: float
) -> torch.Tensor:
    """See ``liger_kernels_act.gelu_mul``."""
    return _gated(gate, up, "", approximate, float(gate_multiplier), float(down_multiplier), 1.0, 0.0, 0.0)


def silu_mul_clamped_triton(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: float, limit: float, up_offset: float
) -> torch.Tensor:
    """See ``liger_kernels_act.silu_mul_clamped``."""
    return _gated(gate, up, "", "clamped", 1.0, 1.0, float(alpha), float(limit), float(up_offset))


def silu_mul_packed_triton(
    x: torch.Tensor, *, layout: str, gate_multiplier: float, down_multiplier: float
) -> torch.Tensor:
    """See ``liger_kernels_act.silu_mul_packed``."""
    return _gated(x, None, layout, "silu", float(gate_multiplier), float(down_multiplier), 1.0, 0.0, 0.0)


def gelu_mul_packed_triton(
    x: torch.Tensor, *, approximate: str, layout: str, gate_multiplier: float, down_multiplier: float
) -> torch.Tensor:
    """See ``liger_kernels_act.gelu_mul_packed``."""
    return _gated(x, None, layout, approximate, float(gate_multiplier), float(down_multiplier), 1.0, 0.0, 0.0)


def silu_mul_clamped_packed_triton(
    x: torch.Tensor, *, layout: str, alpha: float, limit: float, up_offset: float
) -> torch.Tensor:
    """See ``liger_kernels_act.silu_mul_clamped_packed``."""
    return _gated(x, None, layout, "clamped", 1.0, 1.0, float(alpha), float(limit), float(up_offset))
