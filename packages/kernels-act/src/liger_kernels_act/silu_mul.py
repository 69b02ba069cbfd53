"""SiLU of a gate times a value: y = silu(gate) * up,  silu(g) = g * sigmoid(g).

Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU), eq. 6.
Shapes: gate, up and y (..., H), all equal. R is the number of rows, the product of the leading dimensions.
Precision: silu in fp32, rounded to gate.dtype, then times up: what ``F.silu(gate) * up`` does, so the reference equals
upstream's MLPs bit for bit. y has the dtype promoted from gate and up.
Gradients: with s = sigmoid(gate), dgate = dy * up * s * (1 + gate * (1 - s)) and dup = dy * silu(gate), in fp32,
rounded once to the input's dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from liger.dispatch import public, run
from liger_kernels_act._pair import check_pair


# -- Reference ---------------------------------------------------------------------------------------------------------
def silu_mul_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    return F.silu(gate) * up


# -- Public ------------------------------------------------------------------------------------------------------------
@public("silu_mul")
def silu_mul(gate: torch.Tensor, up: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    """``silu(gate) * up``, elementwise.

    Args:
        gate: (..., H), floating; any strides. Rows of a packed (..., 2 H) tensor are read in place.
        up: the same shape and device, possibly another dtype.
        kernel: choose a kernel by hand.

    Returns:
        (..., H), contiguous, in the dtype promoted from gate and up.

    Raises:
        ValueError: the shapes differ.
        TypeError: a tensor is not floating, or up is on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    check_pair("silu_mul", gate, up)
    return run("silu_mul", (gate, up), {}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
