"""GELU of a gate times a value: y = gelu(m gate) * up * d.

Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; Shazeer 2020, "GLU Variants Improve Transformer".
Shapes: gate, up and y (..., H), all equal. R is the number of rows, the product of the leading dimensions.

===========  ===========================================================================================
approximate  gelu(g)
===========  ===========================================================================================
"tanh"       g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3)))   (Gemma: "gelu_pytorch_tanh", "gelu_new")
"none"       g/2 * (1 + erf(g / sqrt(2)))                        (the exact one: "gelu")
===========  ===========================================================================================

Precision: gelu in fp32, rounded to gate.dtype, then times up: what ``F.gelu(gate) * up`` does, so the reference equals
upstream's MLPs bit for bit. y has the dtype promoted from gate and up. The multipliers m and d: as in ``silu_mul``.
Gradients: dgate = m d dy up gelu'(m gate) and dup = d dy * gelu(m gate) in fp32, rounded once to the input's dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from liger.dispatch import check_choice, public, run
from liger_kernels_act._pair import check_numbers, check_pair, scaled

APPROXIMATIONS = ("tanh", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def gelu_mul_reference(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    approximate: str = "tanh",
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    return scaled(F.gelu(scaled(gate, gate_multiplier), approximate=approximate) * up, down_multiplier)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("gelu_mul")
def gelu_mul(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    approximate: str = "tanh",
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``gelu(gate * gate_multiplier) * up * down_multiplier``, elementwise.

    Args:
        gate: (..., H), floating; any strides. Rows of a packed (..., 2 H) tensor are read in place.
        up: the same shape and device, possibly another dtype.
        approximate: "tanh" or "none" (exact), as in ``torch.nn.functional.gelu``; see the module's docstring.
        gate_multiplier, down_multiplier: as in ``silu_mul``.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in the dtype promoted from gate and up.

    Raises:
        ValueError: the shapes differ, or an unknown ``approximate``.
        TypeError: a tensor is not floating, up is on another device, or a multiplier is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> gate, up = torch.tensor([[-1.0, 0.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0]])
        >>> liger.ops.gelu_mul(gate, up, approximate="none")
        tensor([[-0.1587,  0.0000,  5.8635]])
    """
    check_choice("gelu_mul", "approximate", approximate, APPROXIMATIONS)
    check_numbers("gelu_mul", gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    check_pair("gelu_mul", gate, up)
    options = {
        "approximate": approximate,
        "gate_multiplier": gate_multiplier,
        "down_multiplier": down_multiplier,
    }
    return run("gelu_mul", (gate, up), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
