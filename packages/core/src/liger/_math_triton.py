"""Arithmetic on fp32 in fewer instructions than Triton's own.

``FP32`` says that the result is kept in fp32, and has to be right to a few ulp; for 16-bit results 1e-6 is enough.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
LOG2E_REST = tl.constexpr(1.925963033500011e-08)  # log2(e) less LOG2E in fp32


@triton.jit
def exp(x):
    """e^x in 2 instructions; ``tl.exp`` takes 3 more to keep results below 1e-38, which are 0 here."""
    return tl.exp2(x * LOG2E)


@triton.jit
def reciprocal(x, FP32: tl.constexpr):
    """1 / x of finite x >= 1e-30 in 2 instructions, or 4; a division takes 8."""
    root = tl.rsqrt(x)
    r = root * root
    if FP32:
        r = tl.fma(r, tl.fma(-x, r, 1.0), r)  # Newton's step
    return r


@triton.jit
def sigmoid(x, FP32: tl.constexpr):
    """sigmoid(x) and sigmoid(-x), without cancellation on either side of 0."""
    size = tl.abs(x)
    power = size * -LOG2E
    e = tl.exp2(power)
    if FP32:  # what the product lost, and LOG2E by its rounding, would be 1e-6 of sigmoid(-16)
        lost = tl.fma(size, -LOG2E_REST, tl.fma(size, -LOG2E, -power)) * LN2
        e = tl.where(e == 0.0, 0.0, tl.fma(e, lost, e))  # of an infinite power inf - inf is lost
    large = reciprocal(1.0 + e, FP32)
    small = e * large
    return tl.where(x >= 0, large, small), tl.where(x >= 0, small, large)


@triton.jit
def tanh(x, FP32: tl.constexpr):
    """tanh(x) and its slope, 1 - tanh(x)^2.

    Below 0.6 an odd polynomial, because (1 - e) / (1 + e) loses all digits near 0; above it the slope is
    4 e / (1 + e)^2, because 1 - t^2 loses them where tanh saturates.
    """
    u = x * x
    p = tl.fma(u, tl.fma(u, -0.0059058606, 0.020805378), -0.053786680)  # least largest relative error, our own fit
    p = tl.fma(u, tl.fma(u, p, 0.13331959), -0.33333299)
    small = tl.fma(x * u, p, x)
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    r = reciprocal(1.0 + e, FP32)
    large = (1.0 - e) * r
    near = tl.abs(x) < 0.6
    t = tl.where(near, small, tl.where(x < 0, -large, large))
    return t, tl.where(near, 1.0 - small * small, 4.0 * (e * r * r))
