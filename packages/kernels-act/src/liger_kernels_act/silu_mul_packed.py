"""SiLU of a gate times a value, both in one tensor, as a merged projection returns them: y = silu(m gate) * up * d.

Source: ``silu_mul``. Shapes: x (..., 2 H) and y (..., H); R is the number of rows of x.

=============  =========================================  ==============
layout         gate and up                                upstream
=============  =========================================  ==============
"gate_up"      x[..., :H] and x[..., H:]                  phi3, glm4
"up_gate"      x[..., H:] and x[..., :H]
"interleaved"  x[..., ::2] and x[..., 1::2]               gpt_oss
=============  =========================================  ==============

Precision, multipliers and gradients: as in ``silu_mul``; dgate and dup are written into one dx in the layout of x.
Nothing is split or concatenated.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger_kernels_act._pair import check_numbers, check_packed, halves
from liger_kernels_act.silu_mul import silu_mul_reference


# -- Reference ---------------------------------------------------------------------------------------------------------
def silu_mul_packed_reference(
    x: torch.Tensor, *, layout: str = "gate_up", gate_multiplier: float = 1.0, down_multiplier: float = 1.0
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    gate, up = halves(x, layout)
    return silu_mul_reference(gate, up, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("silu_mul_packed")
def silu_mul_packed(
    x: torch.Tensor,
    *,
    layout: str = "gate_up",
    gate_multiplier: float = 1.0,
    down_multiplier: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``silu(gate * gate_multiplier) * up * down_multiplier`` of the gate and up that x holds.

    Args:
        x: (..., 2 H), floating; any strides.
        layout: "gate_up", "up_gate" or "interleaved"; see the module's docstring.
        gate_multiplier, down_multiplier: as in ``silu_mul``.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in x.dtype.

    Raises:
        ValueError: an odd last dimension, or an unknown ``layout``.
        TypeError: x is not floating, or a multiplier is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.silu_mul_packed(torch.tensor([[-1.0, 2.0, 1.0, 3.0]]))
        tensor([[-0.2689,  5.2848]])
    """
    check_packed("silu_mul_packed", x, layout)
    check_numbers("silu_mul_packed", gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)
    options = {"layout": layout, "gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
    return run("silu_mul_packed", (x,), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
