"""SiLU of a gate times a value: y = silu(m gate) * up * d,  silu(g) = g * sigmoid(g).

Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU), eq. 6. The multipliers m and d, 1 but for falcon-h1,
are those of muP.
Shapes: gate, up and y (..., H), all equal. R is the number of rows, the product of the leading dimensions.
Precision: silu in fp32, rounded to gate.dtype, then times up: what ``F.silu(gate) * up`` does, so the reference equals
upstream's MLPs bit for bit. y has the dtype promoted from gate and up. m * gate is rounded to gate.dtype, as upstream
does. Upstream multiplies by d after the down projection; here y is, rounded before and after, which is the same but for
rounding and bit-equal if d is a power of two.
Gradients: with g = m gate and s = sigmoid(g), dgate = m d dy * up * s * (1 + g * (1 - s)) and dup = d dy * silu(g), in
fp32, rounded once to the input's dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from liger.dispatch import public, run
from liger_kernels_act._pair import check_numbers, check_pair, scaled


# -- Reference ---------------------------------------------------------------------------------------------------------
def silu_mul_reference(
    gate: torch.Tensor, up: torch.Tensor, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    return scaled(F.silu(scaled(gate, gate_multiplier)) * up, down_multiplier)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("silu_mul")
def silu_mul(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``silu(gate * gate_multiplier) * up * down_multiplier``, elementwise.

    Args:
        gate: (..., H), floating; any strides. Rows of a packed (..., 2 H) tensor are read in place.
        up: the same shape and device, possibly another dtype.
        gate_multiplier: gate times this, rounded to gate.dtype, is what is activated.
        down_multiplier: y is multiplied by it; see the module's docstring for rounding.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in the dtype promoted from gate and up.

    Raises:
        ValueError: the shapes differ.
        TypeError: a tensor is not floating, up is on another device, or a multiplier is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> gate, up = torch.tensor([[-1.0, 0.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0]])
        >>> liger.ops.silu_mul(gate, up)
        tensor([[-0.2689,  0.0000,  5.2848]])
    """
    check_numbers("silu_mul", gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    check_pair("silu_mul", gate, up)
    options = {"gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
    return run("silu_mul", (gate, up), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
