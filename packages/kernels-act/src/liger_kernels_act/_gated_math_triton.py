"""The arithmetic of the gated activations, everything in fp32, rounded where upstream rounds."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

SILU, GELU_TANH, GELU, CLAMPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
ACTIVATION = {"silu": 0, "tanh": 1, "none": 2, "clamped": 3}


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
def activate(g, alpha, ACT: tl.constexpr):
    """act(g) and its derivative; what the caller does not use is removed by the compiler."""
    if ACT == SILU:
        y, s, rest = _sigmoid_gate(g, g)
        return y, s * (1.0 + g * rest)  # this form stays accurate where the slope is near 0
    if ACT == CLAMPED:
        y, s, rest = _sigmoid_gate(g, alpha * g)
        return y, s * (1.0 + alpha * g * rest)
    if ACT == GELU_TANH:
        # (1 + tanh(u)) / 2 = sigmoid(2 u), and triton itself has no tanh
        square = g * g
        y, s, rest = _sigmoid_gate(g, g * (1.5957691216057308 + 0.07135481627260025 * square))
        return y, s * (1.0 + g * rest * (1.5957691216057308 + 0.21406444881780074 * square))
    cdf = 0.5 * (1.0 + tl.erf(0.7071067811865476 * g))
    return g * cdf, cdf + g * 0.3989422804014327 * tl.exp(-0.5 * g * g)


@triton.jit
def factors(g, u, gate_multiplier, limit, up_offset, G: tl.constexpr, U: tl.constexpr, ACT: tl.constexpr):
    """What is activated and what it is multiplied with, rounded to the dtypes of gate and up as upstream does."""
    if ACT == CLAMPED:
        g = tl.where(g > limit, limit, g)  # not tl.minimum, which drops nan
        u = tl.where(u > limit, limit, tl.where(u < -limit, -limit, u)).to(U).to(tl.float32)
        return g.to(G).to(tl.float32), (u + up_offset).to(U).to(tl.float32)
    return (g * gate_multiplier).to(G).to(tl.float32), u


@triton.jit
def product(g, u, alpha, down_multiplier, G: tl.constexpr, Y: tl.constexpr, ACT: tl.constexpr):
    """y from what `factors` returns, in its dtype."""
    if ACT == CLAMPED:
        a = g * (1.0 / (1.0 + tl.exp(-(alpha * g).to(G).to(tl.float32)))).to(G).to(tl.float32)
    else:
        a, _ = activate(g, alpha, ACT)
    a = a.to(G).to(tl.float32)  # upstream rounds here
    y = (a * u).to(Y)
    return (y.to(tl.float32) * down_multiplier).to(Y)
