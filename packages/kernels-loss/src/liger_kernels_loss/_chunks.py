"""Rows in chunks: how many of them, and torch's products on a chunk. Shared by everything that has a head in front."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from liger_kernels_loss._loss import spread

MIB = 1 << 20
ROUNDINGS = 4  # chunks whose sum may be rounded in the weight's dtype: relative error of bf16 dW 2.4e-3 against 1.7e-3
SMALL_SUM = 256 * MIB  # an fp32 dW of at most this size is not worth a rounding per chunk
# On an H200 at H=4096, V=128256, as a share of the plain products: chunks of 1024 rows 88 %, 2048 92 %, 4096 96 %, and
# nothing is won above. So what fits into the first size, or up to the second if that keeps dW at ROUNDINGS chunks, and
# even more if an fp32 dW, which is slower (1.06x at 32768 rows), would take more than the larger chunks.
ACCELERATOR_MB, ACCELERATOR_ROWS = (512, 1280), (1024, 4096)
CPU_MB, CPU_ROWS = 64, (64, 4096)  # as fast as 256 MiB within the noise; 8 MiB takes half as long again
# Elements that passes in torch work on at a time: on a CPU they stay in cache, elsewhere launches matter more.
CPU_BLOCK, BLOCK = 1 << 18, 1 << 25


def block_elements(x: torch.Tensor) -> int:
    return CPU_BLOCK if x.device.type == "cpu" else BLOCK


def block_rows(x: torch.Tensor) -> int:
    """Rows of x (n, V) in a block of that size."""
    return max(1, block_elements(x) // x.shape[1])


def chunk_rows(rows: int, width: int, classes: int, item: int, workspace_mb: float | None, device: str) -> int:
    """Rows of hidden (rows, width) in a chunk, evened out so that the last is not small; ``item``: bytes of a logit."""
    most = _most_rows(rows, width, classes, item, workspace_mb, device)
    chunks = max(1, -(-rows // most))
    even = -(-rows // chunks)
    tiles = -(-even // 128) * 128  # whole tiles of the products
    return max(1, tiles if even >= 256 and tiles <= most else even)


def _most_rows(rows: int, width: int, classes: int, item: int, workspace_mb: float | None, device: str) -> int:
    """The largest chunk."""
    row = classes * item
    if workspace_mb:
        return max(1, int(workspace_mb * MIB) // row)
    if device == "cpu":
        low, high = CPU_ROWS
        return min(high, max(low, CPU_MB * MIB // row))
    (low, high), (usual, largest) = ACCELERATOR_ROWS, (mb * MIB for mb in ACCELERATOR_MB)
    few = -(-rows // ROUNDINGS)
    if few * row <= max(largest, 4 * classes * width):
        return max(few, min(high, max(low, usual // row)))
    return min(high, max(low, largest // row))


def worth_fp32(elements: int, size: int, rows: int) -> bool:
    """Whether dW is summed in fp32: beyond ``ROUNDINGS`` chunks, or beyond one if the sum is small."""
    return ROUNDINGS * size < rows or (size < rows and elements * 4 <= SMALL_SUM)


def add_product(total: torch.Tensor, dz: torch.Tensor, h: torch.Tensor, first: bool) -> None:
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


def no_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    if device == "meta" or not torch.is_autocast_enabled(device):
        return contextlib.nullcontext()
    return torch.autocast(device, enabled=False)


# -- The upstream gradient ---------------------------------------------------------------------------------------------
def evened(
    weight: torch.Tensor | None, scale: torch.Tensor | None, size: torch.Tensor | None, like: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Weights (N,) of the rows of ``like`` and a common scale -> others with equal products, for gradients in fp16.

    ``size``, 0-dimensional: the largest other factor of dlogits, None for 1. It and the largest weight, which could
    leave fp16's range in dlogits, become a part of the scale, most of which ``unscaled`` brings in where it is safe.
    """
    if like.dtype != torch.float16 or (weight is None and size is None):
        return weight, scale
    largest = torch.ones((), device=like.device) if size is None else size
    if weight is not None:
        largest = largest * torch.nn.functional.pad(weight.abs(), (0, 1)).amax()  # of no rows 0
    largest = torch.where((largest > 0.0) & largest.isfinite(), largest, 1.0)
    weight = spread(largest.reciprocal(), like) if weight is None else weight / largest
    return weight, largest if scale is None else scale * largest


def scaled_upstream(dloss: torch.Tensor | None, scale: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """Upstream gradients (N,) of the rows of ``like``; None for ones. ``unscaled`` brings in the rest of ``scale``."""
    if scale is None:
        return dloss
    part = mantissa(scale) if like.dtype == torch.float16 else scale
    return spread(part, like) if dloss is None else dloss * part


def unscaled(dy: torch.Tensor, factor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """dy times the part of ``factor`` that ``scaled_upstream`` leaves out of gradients made in ``dtype``.

    In fp16, whose range is small, it is the power of two; 0 and inf are left whole.
    """
    if factor is None or dtype != torch.float16:
        return dy
    return dy * (factor / mantissa(factor)).nan_to_num(nan=1.0)


def mantissa(factor: torch.Tensor) -> torch.Tensor:
    """m of factor = m * 2^e, m in [32, 64): dlogits times m use the range of fp16 and leave room for their products."""
    return torch.frexp(factor).mantissa * 64.0
