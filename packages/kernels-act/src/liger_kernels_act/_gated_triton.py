"""Triton kernels of silu_mul and gelu_mul: one pass over tiles of rows, everything in fp32."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import ceil_div, launch, next_power_of_2, private_op, refuse_second_derivative

SILU, GELU_TANH, GELU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
ACTIVATION = {"silu": 0, "tanh": 1, "none": 2}
TILE = 1024  # elements of one program: 4 warps x 32 lanes x 8 elements, one 16-byte load each in bf16


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit
def _sigmoid_gate(g, x):
    """g * sigmoid(x), sigmoid(x) and 1 - sigmoid(x), without cancellation on either side of 0."""
    e = tl.exp(-tl.abs(x))
    small = e / (1.0 + e)
    big = 1.0 / (1.0 + e)
    positive = x >= 0
    # exp overflows to inf for x < -88, which gives -0 as it should
    return g / (1.0 + tl.exp(-x)), tl.where(positive, big, small), tl.where(positive, small, big)


@triton.jit
def _act(g, ACT: tl.constexpr):
    """act(g) and its derivative; what the caller does not use is removed by the compiler."""
    if ACT == SILU:
        y, s, rest = _sigmoid_gate(g, g)
        return y, s * (1.0 + g * rest)  # this form stays accurate where the slope is near 0
    if ACT == GELU_TANH:
        # (1 + tanh(u)) / 2 = sigmoid(2 u), and triton itself has no tanh
        square = g * g
        y, s, rest = _sigmoid_gate(g, g * (1.5957691216057308 + 0.07135481627260025 * square))
        return y, s * (1.0 + g * rest * (1.5957691216057308 + 0.21406444881780074 * square))
    cdf = 0.5 * (1.0 + tl.erf(0.7071067811865476 * g))
    return g * cdf, cdf + g * 0.3989422804014327 * tl.exp(-0.5 * g * g)


@triton.jit
def _tile(R, H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Rows, columns and mask of this program; column blocks of one row are neighbours."""
    across = tl.cdiv(H, BLOCK)
    rows = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    return rows[:, None], cols[None, :], (rows < R)[:, None] & (cols < H)[None, :]


@triton.jit(do_not_specialize=["R"])
def _forward(
    g_ptr,  # (R, H), rows G_STRIDE apart
    u_ptr,  # (R, H), rows U_STRIDE apart
    y_ptr,  # (R, H)
    R,
    H: tl.constexpr,
    G_STRIDE: tl.constexpr,
    U_STRIDE: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows, cols, mask = _tile(R, H, BLOCK, ROWS)
    g = tl.load(g_ptr + rows * G_STRIDE + cols, mask=mask, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + rows * U_STRIDE + cols, mask=mask, other=0.0).to(tl.float32)
    a, _ = _act(g, ACT)
    a = a.to(g_ptr.dtype.element_ty).to(tl.float32)  # upstream rounds here
    tl.store(y_ptr + rows * H + cols, (a * u).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["R"])
def _backward(
    dy_ptr,  # (R, H), rows DY_STRIDE apart
    g_ptr,  # (R, H), rows G_STRIDE apart
    u_ptr,  # (R, H), rows U_STRIDE apart
    dg_ptr,  # (R, H) or None: gate needs no gradient
    du_ptr,  # (R, H) or None: up needs no gradient
    R,
    H: tl.constexpr,
    DY_STRIDE: tl.constexpr,
    G_STRIDE: tl.constexpr,
    U_STRIDE: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows, cols, mask = _tile(R, H, BLOCK, ROWS)
    dy = tl.load(dy_ptr + rows * DY_STRIDE + cols, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + rows * G_STRIDE + cols, mask=mask, other=0.0).to(tl.float32)
    a, slope = _act(g, ACT)
    if dg_ptr is not None:
        u = tl.load(u_ptr + rows * U_STRIDE + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(dg_ptr + rows * H + cols, (dy * u * slope).to(dg_ptr.dtype.element_ty), mask=mask)
    if du_ptr is not None:
        tl.store(du_ptr + rows * H + cols, (dy * a).to(du_ptr.dtype.element_ty), mask=mask)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _as_rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """x (..., H) as rows that are dense in themselves, and the distance between rows; copies only if it must."""
    width = x.shape[-1] if x.dim() else 1
    rows = x.reshape(-1, width) if x.numel() else x.reshape(0, width)
    if rows.stride(1) != 1 and width > 1:
        rows = rows.contiguous()
    return rows, rows.stride(0) if rows.shape[0] > 1 else width


def _grid(R: int, H: int) -> tuple[tuple[int], dict[str, int]]:
    block = min(TILE, next_power_of_2(max(H, 1)))
    rows = TILE // block
    return (ceil_div(R, rows) * ceil_div(H, block),), {"BLOCK": block, "ROWS": rows}


def _forward_fake(gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return torch.empty(gate.shape, dtype=dtype, device=gate.device)


@private_op("gated_forward", _forward_fake)
def _launch_forward(gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
    """gate, up (..., H) of any strides -> y (..., H) contiguous."""
    y = _forward_fake(gate, up, act)
    (g, g_stride), (u, u_stride) = _as_rows(gate), _as_rows(up)
    R, H = g.shape
    grid, tile = _grid(R, H)
    consts: dict[str, Any] = {"H": H, "G_STRIDE": g_stride, "U_STRIDE": u_stride, "ACT": ACTIVATION[act], **tile}
    launch(_forward, grid, (g, u, y), (R,), num_warps=4, **consts)
    return y


def _backward_fake(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, act: str, need_gate: bool, need_up: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _gradient_like(gate, need_gate), _gradient_like(up, need_up)


def _gradient_like(x: torch.Tensor, needed: bool) -> torch.Tensor:
    return torch.empty(x.shape if needed else (0,), dtype=x.dtype, device=x.device)


@private_op("gated_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, act: str, need_gate: bool, need_up: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> dgate, dup (..., H) contiguous; an empty tensor for what is not needed."""
    dgate, dup = _backward_fake(dy, gate, up, act, need_gate, need_up)
    (d, d_stride), (g, g_stride), (u, u_stride) = _as_rows(dy), _as_rows(gate), _as_rows(up)
    R, H = g.shape
    grid, tile = _grid(R, H)
    strides = {"DY_STRIDE": d_stride, "G_STRIDE": g_stride, "U_STRIDE": u_stride}
    tensors = (d, g, u, dgate if need_gate else None, dup if need_up else None)
    consts: dict[str, Any] = {"H": H, **strides, "ACT": ACTIVATION[act], **tile}
    launch(_backward, grid, tensors, (R,), num_warps=4, **consts)
    return dgate, dup


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Gated(torch.autograd.Function):
    """Saves gate and up, and recomputes the activation, which costs less than reading it would."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, act: str) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return _launch_forward(gate, up, act)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        refuse_second_derivative("silu_mul" if ctx.act == "silu" else "gelu_mul")
        gate, up = ctx.saved_tensors
        need_gate, need_up, _ = ctx.needs_input_grad
        dgate, dup = _launch_backward(dy, gate, up, ctx.act, need_gate, need_up)
        return dgate if need_gate else None, dup if need_up else None, None


def silu_mul_triton(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See ``liger_kernels_act.silu_mul``."""
    return _Gated.apply(gate, up, "silu")  # type: ignore[no-any-return, no-untyped-call]


def gelu_mul_triton(gate: torch.Tensor, up: torch.Tensor, *, approximate: str) -> torch.Tensor:
    """See ``liger_kernels_act.gelu_mul``."""
    return _Gated.apply(gate, up, approximate)  # type: ignore[no-any-return, no-untyped-call]
