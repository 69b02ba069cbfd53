"""The arithmetic of the gated activations, everything in fp32, rounded where upstream rounds."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import exp, sigmoid

SILU, GELU_TANH, GELU, CLAMPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
ACTIVATION = {"silu": 0, "tanh": 1, "none": 2, "clamped": 3}


@triton.jit
def _bounded(x, g):
    """x clamped to +-256, and the same but nan where the gate g is infinite, as upstream's slope is there.

    Beyond 256 a sigmoid is 0 or 1, but powers of x overflow, and 0 times what has overflowed is nan.
    """
    x = tl.clamp(x, -256.0, 256.0, tl.PropagateNan.ALL)
    return x, tl.fma(g, 0.0, x)


@triton.jit
def activate(g, alpha, G: tl.constexpr, ACT: tl.constexpr):
    """act(g) and its derivative for a gate of dtype G; what the caller does not use is removed by the compiler."""
    FP32: tl.constexpr = tl.float32 == G
    if ACT == SILU:
        s, rest = sigmoid(g, FP32)
        return g * s, s * (1.0 + g * rest)  # this form stays accurate where the slope is near 0
    if ACT == CLAMPED:
        x, slope_x = _bounded(alpha * g, g)
        s, rest = sigmoid(x, FP32)
        return g * s, s * (1.0 + slope_x * rest)
    if ACT == GELU_TANH:
        # (1 + tanh(u)) / 2 = sigmoid(2 u), and triton itself has no tanh
        x, slope_x = _bounded(g, g)
        square = x * x
        s, rest = sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * square), FP32)
        return g * s, s * (1.0 + slope_x * rest * (1.5957691216057308 + 0.21406444881780074 * square))
    cdf = 0.5 * (1.0 + tl.erf(0.7071067811865476 * g))
    return g * cdf, cdf + g * 0.3989422804014327 * exp(-0.5 * g * g)


@triton.jit
def factors(g, u, gate_multiplier, limit, up_offset, G: tl.constexpr, U: tl.constexpr, ACT: tl.constexpr):
    """What is activated and what it is multiplied with, rounded to the dtypes of gate and up as upstream does."""
    if ACT == CLAMPED:
        # rounding the limit rounds what it cuts off
        most = tl.full((), limit, tl.float32).to(G).to(tl.float32)
        beyond = tl.full((), limit, tl.float32).to(U).to(tl.float32)
        u = tl.clamp(u, -beyond, beyond, tl.PropagateNan.ALL)
        return tl.minimum(g, most, tl.PropagateNan.ALL), (u + up_offset).to(U).to(tl.float32)
    return (g * gate_multiplier).to(G).to(tl.float32), u


@triton.jit
def product(g, u, alpha, down_multiplier, G: tl.constexpr, Y: tl.constexpr, ACT: tl.constexpr):
    """y from what `factors` returns, in its dtype."""
    if ACT == CLAMPED:
        s, _ = sigmoid((alpha * g).to(G).to(tl.float32), tl.float32 == G)
        a = g * s.to(G).to(tl.float32)
    else:
        a, _ = activate(g, alpha, G, ACT)
    a = a.to(G).to(tl.float32)  # upstream rounds here
    y = (a * u).to(Y)
    return (y.to(tl.float32) * down_multiplier).to(Y)
