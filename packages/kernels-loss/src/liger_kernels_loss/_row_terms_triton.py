"""What the kernels of losses with one label a row share: class weights, gradient, numbers and block sizes."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from liger._math_triton import LN2, exp
from liger.launch import GPU, ceil_div, next_power_of_2
from liger_kernels_loss._loss import Loss
from liger_kernels_loss._transforms_triton import transform, transform_slope
from liger_kernels_loss.transforms import inner_and_outer

ALONE = 65536  # columns above which a row has a multiprocessor for itself
NUMBERS = ["R", "blocks", "dy_stride", "ignore_index", "smoothing", "inner", "outer", "z_loss"]


# -- In kernels --------------------------------------------------------------------------------------------------------
@triton.jit
def class_weights(w_ptr, at, mask):
    """Class weights at the columns ``at``; 1 without weights."""
    w = 1.0
    if w_ptr is not None:
        w = tl.load(w_ptr + at, mask=mask, other=0.0)
    return w


@triton.jit
def weight_mass(w_total_ptr, V: tl.constexpr):
    """Sum of the class weights; V without weights."""
    mass = V * 1.0
    if w_total_ptr is not None:
        mass = tl.load(w_total_ptr)
    return mass


@triton.jit
def label_terms(logit, w_ptr, y, inner, outer, V: tl.constexpr, SOFTCAP: tl.constexpr):
    """-> z and class weight of label y; nan for a label outside [0, V), so that it cannot go unnoticed."""
    inside = (y >= 0) & (y < V)
    own = transform(logit, inner, outer, SOFTCAP)
    weight = class_weights(w_ptr, y, inside)
    return tl.where(inside, own, float("nan")), tl.where(inside, weight, float("nan"))


@triton.jit
def upstream(ptr, row, stride):
    """The gradient of one of the row's results; 1 where no tensor is given."""
    dy = 1.0
    if ptr is not None:
        dy = tl.load(ptr + row * stride)
    return dy


@triton.jit
def row_coefficients(
    weight,  # class weight of the label
    top,
    total,
    entropy,
    w_total_ptr,  # (1,) fp32 or None: sum of class weights
    dy_ptr,  # (R,) fp32 of any stride, or None for ones: upstream gradient of the loss
    dlse_ptr,  # (R,) fp32 or None: of lse
    dentropy_ptr,  # (R,) fp32 or None: of the entropy
    row,
    dy_stride,
    smoothing,
    z_loss,
    V: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """-> pull, bend, hit, smooth; dloss/dz = exp(z - top) * (pull - bend * (z - top)) - smooth * w - [c = y] * hit."""
    log_total = tl.log2(total) * LN2
    dy = upstream(dy_ptr, row, dy_stride)
    hit = (1.0 - smoothing) * weight
    pull = hit + 2.0 * z_loss * (top + log_total)
    smooth = smoothing / V
    if SMOOTH:
        pull += smooth * weight_mass(w_total_ptr, V)
    pull = pull * dy
    bend = 0.0
    if dlse_ptr is not None:
        pull += tl.load(dlse_ptr + row)
    if dentropy_ptr is not None:
        bend = tl.load(dentropy_ptr + row)
        pull += bend * (log_total - entropy)
    return pull / total, bend / total, hit * dy, smooth * dy


@triton.jit
def dlogits(
    logits, w, top, pull, bend, hit, smooth, inner, outer,
    SOFTCAP: tl.constexpr, SMOOTH: tl.constexpr, BEND: tl.constexpr,
):  # fmt: skip
    """Logits and their class weights -> the gradient of the logits in fp32."""
    z = transform(logits, inner, outer, SOFTCAP)
    if BEND:
        away = tl.where(z == -float("inf"), 0.0, z - top)
        dz = exp(z - top) * (pull - bend * away) - hit
    else:
        dz = exp(z - top) * pull - hit
    if SMOOTH:
        dz = dz - smooth * w
    return dz * transform_slope(logits, inner, outer, SOFTCAP)


# -- In launches -------------------------------------------------------------------------------------------------------
def numbers(loss: Loss) -> tuple[int | float, ...]:
    """What kernels take as ``ignore_index, smoothing, inner, outer, z_loss``."""
    transform = inner_and_outer(loss.softcap, loss.logit_scale, loss.temperature)
    return loss.ignore_index, float(loss.label_smoothing), *transform, float(loss.z_loss)


def blocks_of(V: int, chosen: Mapping[str, int]) -> int:
    """Blocks of a row."""
    return ceil_div(V, chosen["DEPTH"] * chosen["THREADS"] * chosen["EACH"])


def flags(loss: Loss) -> dict[str, bool]:
    return {"SOFTCAP": loss.softcap is not None, "SMOOTH": loss.label_smoothing != 0.0}


def block_settings(V: int, itemsize: int, values: int, device: GPU) -> dict[str, int]:
    """A block of ``values`` 16-bit values a thread, and the threads of a row.

    A row wider than ``ALONE`` has a multiprocessor for itself, with all of its threads, so that all rows in work stay
    in the cache for their second read; of narrower ones there are two or more, and one loads while another stores. With
    odd V each value is loaded alone, which takes registers.
    """
    each = 1 if V % 2 else 16 // max(itemsize, 2)
    most = device.most_warps if V > ALONE else device.most_warps // 2
    warps = min(most, max(1, next_power_of_2(V) // (device.lanes * each)))
    depth = max(1, values * 2 // max(itemsize, 2) // (each * (4 if V % 2 else 1)))
    depth = min(depth, max(1, next_power_of_2(V) // (warps * device.lanes * each)))
    return {"DEPTH": depth, "THREADS": warps * device.lanes, "EACH": each, "num_warps": warps}
