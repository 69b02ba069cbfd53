"""Launches of the norms' Triton kernels and their autograd.Function: one for all, whose options tell what to do."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import math
from typing import Any

import torch

from liger._partials_triton import add_partials
from liger.launch import (
    GPU,
    Launch,
    ceil_div,
    gpu,
    launch,
    next_power_of_2,
    prepare,
    private_op,
    refuse_second_derivative,
)
from liger.settings import cached, settings
from liger_kernels_norm._rows_triton import _backward, _forward
from liger_kernels_norm._wide_triton import _backward_dw_wide, _backward_dx_wide, _backward_parts, _forward_wide

CAST_MODE = {"llama": 0, "fp32-weight": 1, "gemma": 1, "fp32": 1, "none": 2}
HELD = 32768  # columns of a row that a program of the forward holds beside a residual: its sum is not in the L1 cache
HELD_CENTERED, HELD_ALONE = 8192, 4095  # with a mean, which costs another read, and without


# -- How much a program does -------------------------------------------------------------------------------------------
@settings(ROWS=(1, 2, 4, 8, 16, 32), num_warps=(4, 8, 16, 32))
def _forward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward``: a row, or 2048 elements of narrow ones.

    16 values a thread; 64 from 4097 columns on, for one reduction over few warps costs less than the loads it delays.
    """
    block = next_power_of_2(H)
    rows = max(1, 2048 // block)
    values = 16 if H <= 4096 else 64 if H <= 8192 else 32
    return {"BLOCK": block, "ROWS": rows, "num_warps": min(16, max(4, block * rows // (32 * values)))}


@settings(BLOCK=(1024, 2048, 4096, 8192), num_warps=(4, 8, 16))
def _forward_wide_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_forward_wide``: few registers, so that other rows load while one is stored.

    On an H200 rows of 8192, 16384 and 32768 columns take 128, 254 and 526 us, held 132, 262 and 604. With a
    mean the widest would spill in 16 warps.
    """
    return {"BLOCK": 8192 if 8192 < H <= 16384 else 4096, "num_warps": 16 if 8192 <= H <= 65536 else 8}


@settings(ROWS=(1, 2, 4, 8, 16, 32), num_warps=(4, 8, 16, 32), STAGES=(1, 2, 3, 4), PROGRAMS=(1, 2, 3, 4, 6, 8))
def _backward_settings(H: int, itemsize: int, center: bool, device: GPU) -> dict[str, int]:
    """Constants of ``_backward``, and ``PROGRAMS`` per multiprocessor.

    dy and x of the next ``STAGES - 1`` tiles are on their way through shared memory, 48 to 64 KB of them on each
    multiprocessor: that keeps the bus busy. Where they do not fit, more programs hide the loads instead.
    """
    block = next_power_of_2(H)
    rows = max(1, 2048 // block)
    tile = block * rows
    constants = {"BLOCK": block, "ROWS": rows, "num_warps": 4 if tile <= 2048 else 8}
    if H > 8192:  # beside the sums a thread of 32 warps has registers for rows alone, and elsewhere spills
        most = 32 if device.name == "sm90" and not center else 16
        return {**constants, "STAGES": 1, "num_warps": most, "PROGRAMS": 1}
    per_processor = 2 if tile <= 2048 else 1
    ahead = min(3, 65536 // (2 * itemsize * H * rows * per_processor))
    while ahead and 2 * itemsize * tile * per_processor * ahead > device.shared:
        ahead -= 1
    return {**constants, "STAGES": 1 + ahead, "PROGRAMS": per_processor if ahead else 4}


@settings(BLOCK=(1024, 2048, 4096, 8192), num_warps=(8, 16, 32))
def _parts_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``_backward_parts``: the most columns and warps whose registers do not spill.

    On an H200 32 warps, with 24 bytes spilled, take 527 us for 16384 rows of 16384; 16 without spills take 595.
    """
    if device.name == "sm90":
        return {"BLOCK": 4096, "num_warps": 32}
    if device.name.startswith("sm1"):  # its assembler moves the loads of all parts to the front
        return {"BLOCK": 1024, "num_warps": 8}
    return {"BLOCK": 2048, "num_warps": 16}


@cached
def _forward_plan(H: int, N: int, terms: int, cast: str, itemsize: int, device: GPU) -> tuple[Launch, int]:
    """The launch of ``_forward``, and the rows of a program."""
    chosen = _forward_settings(H, itemsize, device)
    return prepare(_forward, H=H, N=N, TERMS=terms, CAST=CAST_MODE[cast], **chosen), chosen["ROWS"]


@cached
def _forward_wide_plan(H: int, N: int, terms: int, cast: str, itemsize: int, device: GPU) -> Launch:
    chosen = _forward_wide_settings(H, itemsize, device)
    return prepare(_forward_wide, H=H, N=N, TERMS=terms, CAST=CAST_MODE[cast], **chosen)


@cached
def _backward_plan(
    H: int, N: int, terms: int, cast: str, center: bool, itemsize: int, device: GPU
) -> tuple[Launch, int, int]:
    """The launch of ``_backward``, the rows of a program at a time, and the most programs along the rows."""
    chosen = _backward_settings(H, itemsize, center, device).copy()
    most = ceil_div(chosen.pop("PROGRAMS") * device.processors, N)
    # one column has g - mean(g) = 0, and not what an fma leaves of the product's rounding
    fuse = not center or H > 1
    constants = {"H": H, "N": N, "CAST": CAST_MODE[cast], "TERMS": terms}
    return prepare(_backward, fuse_multiply_add=fuse, **constants, **chosen), chosen["ROWS"], most


def _backward_limit(x: torch.Tensor, bias: torch.Tensor | None, mean: torch.Tensor | None) -> int:
    """Columns up to which a program keeps the sums of dweight and dbias in registers.

    Beyond 8192 both fit in ``_backward_parts`` alone, which layer_norm has (``mean``).
    """
    return 16384 if x.element_size() == 2 and (bias is None or mean is not None) else 8192


# -- Launches ----------------------------------------------------------------------------------------------------------
def _forward_fake(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    cast: str,
    offset: float,
    center: bool,
    terms: int,
) -> Any:
    s = None if residual is None else torch.empty_like(x, dtype=torch.promote_types(x.dtype, residual.dtype))
    z = x if s is None else s
    rows = math.prod(z.shape[:-1])
    mean = z.new_empty(rows, dtype=torch.float32) if center else None
    rstd = z.new_empty(rows, dtype=torch.float32)
    dtype = z.dtype
    if CAST_MODE[cast] != 1:  # the product with the weight is not cast
        for parameter in (weight, bias):
            if parameter is not None and parameter.dtype != dtype:
                dtype = torch.promote_types(dtype, parameter.dtype)
    return torch.empty_like(z, dtype=dtype), s, mean, rstd


@private_op("norm_forward", _forward_fake)
def _launch_forward(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    cast: str,
    offset: float,
    center: bool,
    terms: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors contiguous -> y, x + residual or None, mean or None, 1 / rms."""
    H = x.shape[-1]
    y, s, mean, rstd = _forward_fake(x, residual, weight, bias, eps, cast, offset, center, terms)
    tensors = (x, residual, weight, bias, y, s, mean, rstd)
    N = 1 if weight is None else weight.numel() // max(H, 1)
    if H * N == 0:
        return y, s, mean, rstd
    rows = rstd.numel()
    shape = (H, N, terms, cast, x.element_size(), gpu(x.device))
    if (HELD if residual is not None else HELD_CENTERED if center else HELD_ALONE) < H:
        _forward_wide_plan(*shape)((rows,), tensors, (eps, offset))
    else:
        forward, tile = _forward_plan(*shape)
        forward((ceil_div(rows // N, tile), N), tensors, (rows // N, eps, offset))
    return y, s, mean, rstd


def _backward_fake(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    cast: str,
    offset: float,
    terms: int,
    need_dx: bool,
    need_dw: bool,
    need_db: bool,
) -> Any:
    return (
        torch.empty_like(x) if need_dx else None,
        torch.empty_like(weight) if need_dw and weight is not None else None,
        torch.empty_like(bias) if need_db and bias is not None else None,
    )


@private_op("norm_backward", _backward_fake)
def _launch_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    cast: str,
    offset: float,
    terms: int,
    need_dx: bool,
    need_dw: bool,
    need_db: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors contiguous -> dx, dweight, dbias; None for what is not needed."""
    dx, dw, db = _backward_fake(dy, ds, x, weight, bias, mean, rstd, cast, offset, terms, need_dx, need_dw, need_db)
    H = x.shape[-1]
    N = 1 if weight is None else weight.numel() // max(H, 1)
    if H * N == 0:
        return dx, dw, db
    R = rstd.numel() // N
    device, size, wide = gpu(x.device), x.element_size(), _backward_limit(x, bias, mean) < H
    in_parts = not wide and H > 8192 and bias is not None
    if wide:
        programs = min(ceil_div(R, 8), 16)
    elif in_parts:
        programs = min(R, device.processors)
    else:
        backward, tile, most = _backward_plan(H, N, terms, cast, mean is not None, size, device)
        programs = min(ceil_div(R, tile), most)
    sums = [t for t in (dw, db) if t is not None]
    parts = x.new_empty((len(sums), programs, N * H), dtype=torch.float32) if sums else None
    dw_parts = None if dw is None else parts
    db_parts = None if db is None else parts if dw is None else parts[1]  # type: ignore[index]
    if wide:
        inputs = (dy, ds, x, weight, mean, rstd)
        constants: dict[str, Any] = {"H": H, "N": N, "CAST": CAST_MODE[cast]}
        _launch_backward_wide(inputs, offset, terms, dx, dw_parts, db_parts, programs, constants)
    elif in_parts:
        held = (dy, x, weight, mean, rstd, dy, x, weight, dx, dw_parts, db_parts)
        launch(_backward_parts, (programs,), held, (R,), H=H, **_parts_settings(H, size, device))
    else:
        again = (dy, x) if H > 8192 else (None, None)
        all_of = (dy, ds, x, weight, mean, rstd, *again, dx, dw_parts, db_parts)
        backward((programs, N), all_of, (R, offset))
    if parts is not None:
        add_partials(parts, *sums)
    return dx, dw, db


def _launch_backward_wide(
    inputs: tuple[torch.Tensor | None, ...],
    offset: float,
    terms: int,
    dx: torch.Tensor | None,
    dw_parts: torch.Tensor | None,
    db_parts: torch.Tensor | None,
    programs: int,
    constants: dict[str, Any],
) -> None:
    """Gradients of rows too wide for ``_backward``: dx by rows, then the sums by columns."""
    dy, _, x, _, mean, rstd = inputs
    assert x is not None
    assert rstd is not None
    H, N = constants["H"], constants["N"]
    if dx is not None:
        block = 8192 if x.element_size() == 2 else 4096  # float32 spills
        shape: dict[str, Any] = {"H": H, "N": N, "TERMS": terms, "BLOCK": block}
        launch(_backward_dx_wide, (rstd.numel(),), (*inputs, dx), (offset,), num_warps=16, **shape)
    if dw_parts is not None or db_parts is not None:
        grid, sums = (ceil_div(H, 512), programs, N), (dy, x, mean, rstd, dw_parts, db_parts)
        tile: dict[str, Any] = {"COLS": 512, "ROWS": 8, "STAGES": 3}
        launch(_backward_dw_wide, grid, sums, (rstd.numel() // N,), num_warps=8, **constants, **tile)


# -- Autograd ----------------------------------------------------------------------------------------------------------
class _Norm(torch.autograd.Function):
    """Saves what was normalised, the parameters and the row statistics; xhat, one product, is recomputed.

    ``form`` is the op's name and the options of the launches: eps, cast, offset, center, terms.
    """

    @staticmethod
    def forward(ctx, x, residual, weight, bias, form):
        x, residual, weight, bias = [t if t is None else t.contiguous() for t in (x, residual, weight, bias)]
        _, eps, cast, offset, center, terms = form
        y, s, mean, rstd = _launch_forward(x, residual, weight, bias, eps, cast, offset, center, terms)
        z = x if residual is None else s
        ctx.save_for_backward(z, weight, bias, mean if center else None, rstd)
        ctx.rest = form, x.dtype, z.dtype if residual is None else residual.dtype
        ctx.set_materialize_grads(False)
        return y if residual is None else (y, s)

    @staticmethod
    def backward(ctx, dy, ds=None):
        (op, _, cast, offset, _, terms), kind, other = ctx.rest
        refuse_second_derivative(op)
        x, weight, bias, mean, rstd = ctx.saved_tensors
        need_x, need_residual, need_dw, need_db, _ = ctx.needs_input_grad
        dy = torch.zeros_like(x) if dy is None else dy.contiguous()  # None: only the sum was used
        ds = ds if ds is None else ds.contiguous()
        needs = need_x or need_residual, need_dw, need_db
        dx, dw, db = _launch_backward(dy, ds, x, weight, bias, mean, rstd, cast, offset, terms, *needs)
        return (
            (dx if dx.dtype == kind else dx.to(kind)) if need_x else None,
            (dx if dx.dtype == other else dx.to(other)) if need_residual else None,
            dw if need_dw else None,
            db if need_db else None,
            None,
        )


def rms_norm_triton(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    cast: str,
    offset: float,
) -> torch.Tensor:
    """See ``liger_kernels_norm.rms_norm``."""
    return _Norm.apply(x, None, weight, bias, ("rms_norm", eps, cast, offset, False, x.shape[-1]))  # type: ignore[no-any-return]


def fused_add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, *, eps: float, cast: str, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``liger_kernels_norm.fused_add_rms_norm``."""
    form = ("fused_add_rms_norm", eps, cast, offset, False, x.shape[-1])
    return _Norm.apply(x, residual, weight, None, form)  # type: ignore[no-any-return]


def layer_norm_triton(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *, eps: float
) -> torch.Tensor:
    """See ``liger_kernels_norm.layer_norm``."""
    return _Norm.apply(x, None, weight, bias, ("layer_norm", eps, "fp32-weight", 0.0, True, x.shape[-1]))  # type: ignore[no-any-return]


def cohere_norm_triton(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """See ``liger_kernels_norm.cohere_norm``."""
    return _Norm.apply(x, None, weight, None, ("cohere_norm", eps, "fp32-weight", 0.0, True, x.shape[-1]))  # type: ignore[no-any-return]


def l2norm_triton(x: torch.Tensor, *, eps: float, cast: str) -> torch.Tensor:
    """See ``liger_kernels_norm.l2norm``."""
    return _Norm.apply(x, None, None, None, ("l2norm", eps, cast, 0.0, False, 1))  # type: ignore[no-any-return]
