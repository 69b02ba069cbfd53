"""The logit transforms for kernels: the same formula as ``transforms.py``, on fp32 values."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import triton
import triton.language as tl

from liger._math_triton import tanh


@triton.jit
def transform(logits, inner, outer, SOFTCAP: tl.constexpr):
    """Logits of any dtype -> z = outer * tanh(inner * logits) in fp32; without SOFTCAP inner * logits."""
    z = logits.to(tl.float32) * inner
    if SOFTCAP:
        z = outer * tanh(z, True)[0]
    return z


@triton.jit
def transform_slope(logits, inner, outer, SOFTCAP: tl.constexpr):
    """dz/dlogits."""
    slope = inner
    if SOFTCAP:
        slope = (inner * outer) * tanh(logits.to(tl.float32) * inner, True)[1]
    return slope
