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
    large = (1.0 - e) / (1.0 + e)
    return tl.where(magnitude < 0.6, small, tl.where(x < 0, -large, large))


@triton.jit
def transform(logits, inner, outer, SOFTCAP: tl.constexpr):
    """Logits of any dtype -> z = outer * tanh(inner * logits) in fp32; without SOFTCAP inner * logits."""
    z = logits.to(tl.float32) * inner
    if SOFTCAP:
        z = outer * tanh(z)
    return z


@triton.jit
def transform_slope(z, inner, outer, SOFTCAP: tl.constexpr):
    """dz/dlogits, from the transformed z."""
    slope = inner
    if SOFTCAP:
        t = z * (1.0 / outer)
        slope = inner * outer - (inner * outer) * t * t
    return slope
