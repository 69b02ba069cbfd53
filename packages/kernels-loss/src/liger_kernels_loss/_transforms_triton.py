"""The logit transforms for kernels: the same formula as ``transforms.py``, on fp32 values."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tanh(x):
    """tanh of fp32 to 2 ulp. Below 0.6 an odd polynomial, because (1 - e) / (1 + e) loses all digits near 0."""
    u = x * x
    p = -0.053786680 + u * (0.020805378 - u * 0.0059058606)  # least largest relative error on [0, 0.6], our own fit
    small = x + x * u * (-0.33333299 + u * (0.13331959 + u * p))
    magnitude = tl.abs(x)
    e = tl.exp2(magnitude * (-2.0 * LOG2E))  # the tensor first: the interpreter cannot multiply a constexpr by one
    large = (1.0 - e) * (1.0 / (1.0 + e))
    return tl.where(magnitude < 0.6, small, tl.where(x < 0, -large, large))


@triton.jit
def transform(logits, inner, outer, SOFTCAP: tl.constexpr):
    """Logits of any dtype -> z = outer * tanh(inner * logits) in fp32; without SOFTCAP inner * logits."""
    z = logits.to(tl.float32) * inner
    if SOFTCAP:
        z = outer * tanh(z)
    return z


@triton.jit
def transform_slope(logits, inner, outer, SOFTCAP: tl.constexpr):
    """dz/dlogits. 1 - tanh^2 is 4 e / (1 + e)^2, e = exp(-2 |x|), and keeps its digits where the softcap saturates."""
    slope = inner
    if SOFTCAP:
        e = tl.exp2(tl.abs(logits.to(tl.float32) * inner) * (-2.0 * LOG2E))
        r = 1.0 / (1.0 + e)
        slope = (4.0 * inner * outer) * (e * r * r)
    return slope
