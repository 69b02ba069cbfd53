"""GELU of a gate times a value: y = gelu(gate) * up.

Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; Shazeer 2020, "GLU Variants Improve Transformer".
Shapes: gate, up and y (..., H), all equal. R is the number of rows, the product of the leading dimensions.

===========  ===========================================================================================
approximate  gelu(g)
===========  ===========================================================================================
"tanh"       g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3)))   (Gemma: "gelu_pytorch_tanh", "gelu_new")
"none"       g/2 * (1 + erf(g / sqrt(2)))                        (the exact one: "gelu")
===========  ===========================================================================================

Precision: gelu in fp32, rounded to gate.dtype, then times up: what ``F.gelu(gate) * up`` does, so the reference equals
upstream's MLPs bit for bit. y has the dtype promoted from gate and up. Gradients: dgate = dy * up * gelu'(gate) and
dup = dy * gelu(gate), in fp32, rounded once to the input's dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from liger.dispatch import public, run
from liger_kernels_act._pair import check_pair

APPROXIMATIONS = ("tanh", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def gelu_mul_reference(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    return F.gelu(gate, approximate=approximate) * up


# -- Public ------------------------------------------------------------------------------------------------------------
@public("gelu_mul")
def gelu_mul(
    gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh", kernel: str | None = None
) -> torch.Tensor:
    """``gelu(gate) * up``, elementwise.

    Args:
        gate: (..., H), floating; any strides. Rows of a packed (..., 2 H) tensor are read in place.
        up: the same shape and device, possibly another dtype.
        approximate: "tanh" or "none" (exact), as in ``torch.nn.functional.gelu``; see the module's docstring.
        kernel: choose a kernel by hand.

    Returns:
        (..., H), contiguous, in the dtype promoted from gate and up.

    Raises:
        ValueError: the shapes differ, or an unknown ``approximate``.
        TypeError: a tensor is not floating, or up is on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"gelu_mul: approximate is {approximate!r}, expected one of {', '.join(APPROXIMATIONS)}")
    check_pair("gelu_mul", gate, up)
    return run("gelu_mul", (gate, up), {"approximate": approximate}, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
