"""GELU of a gate times a value, both in one tensor, as a merged projection returns them: y = gelu(m gate) * up * d.

Source: ``gelu_mul``. Shapes: x (..., 2 H) and y (..., H); R is the number of rows of x. The layouts are those of
``silu_mul_packed``; the two forms of GELU, the precision and the gradients those of ``gelu_mul``.
"""

from __future__ import annotations

import torch

from liger.dispatch import check_choice, public, run
from liger_kernels_act._pair import check_numbers, check_packed, halves
from liger_kernels_act.gelu_mul import APPROXIMATIONS, gelu_mul_reference


# -- Reference ---------------------------------------------------------------------------------------------------------
def gelu_mul_packed_reference(
    x: torch.Tensor,
    *,
    approximate: str = "tanh",
    layout: str = "gate_up",
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    gate, up = halves(x, layout)
    multipliers = {"gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
    return gelu_mul_reference(gate, up, approximate=approximate, **multipliers)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("gelu_mul_packed")
def gelu_mul_packed(
    x: torch.Tensor,
    *,
    approximate: str = "tanh",
    layout: str = "gate_up",
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``gelu(gate * gate_multiplier) * up * down_multiplier`` of the gate and up that x holds.

    Args:
        x: (..., 2 H), floating; any strides.
        approximate: "tanh" or "none" (exact); see ``gelu_mul``.
        layout: "gate_up", "up_gate" or "interleaved"; see ``silu_mul_packed``.
        gate_multiplier, down_multiplier: as in ``silu_mul``.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in x.dtype.

    Raises:
        ValueError: an odd last dimension, or an unknown ``layout`` or ``approximate``.
        TypeError: x is not floating, or a multiplier is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.gelu_mul_packed(torch.tensor([[-1.0, 1.0, 2.0, 3.0]]), layout="interleaved", approximate="none")
        tensor([[-0.1587,  5.8635]])
    """
    check_choice("gelu_mul_packed", "approximate", approximate, APPROXIMATIONS)
    check_packed("gelu_mul_packed", x, layout)
    check_numbers("gelu_mul_packed", gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    options = {
        "approximate": approximate,
        "layout": layout,
        "gate_multiplier": gate_multiplier,
        "down_multiplier": down_multiplier,
    }
    return run("gelu_mul_packed", (x,), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
