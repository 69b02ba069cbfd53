"""``silu_mul_clamped`` of gate and up in one tensor, as in gpt_oss's experts: y = (u + o) * g * sigmoid(alpha g).

Source: ``silu_mul_clamped``. Shapes: x (..., 2 H) and y (..., H); R is the number of rows of x. The layouts are those
of ``silu_mul_packed``; gpt_oss has "interleaved". Precision and gradients: as there; dgate and dup are
written into one dx in the layout of x.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger_kernels_act._pair import check_limit, check_numbers, check_packed, halves
from liger_kernels_act.silu_mul_clamped import silu_mul_clamped_reference


# -- Reference ---------------------------------------------------------------------------------------------------------
def silu_mul_clamped_packed_reference(
    x: torch.Tensor,
    *,
    layout: str = "interleaved",
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's experts."""
    gate, up = halves(x, layout)
    return silu_mul_clamped_reference(gate, up, alpha=alpha, limit=limit, up_offset=up_offset)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("silu_mul_clamped_packed")
def silu_mul_clamped_packed(
    x: torch.Tensor,
    *,
    layout: str = "interleaved",
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``(up + up_offset) * gate * sigmoid(alpha * gate)`` of the gate and up that x holds, clamped.

    Args:
        x: (..., 2 H), floating; any strides.
        layout: "interleaved", "gate_up" or "up_gate"; see ``silu_mul_packed``.
        alpha, limit, up_offset: as in ``silu_mul_clamped``.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in x.dtype.

    Raises:
        ValueError: an odd last dimension, an unknown ``layout``, or limit is not above 0.
        TypeError: x is not floating, or an option is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> liger.ops.silu_mul_clamped_packed(torch.tensor([[-1.0, 1.0, 2.0, 3.0]]))
        tensor([[-0.3084,  7.7426]])
    """
    check_packed("silu_mul_clamped_packed", x, layout)
    check_numbers("silu_mul_clamped_packed", alpha=alpha, limit=limit, up_offset=up_offset)
    check_limit("silu_mul_clamped_packed", limit)
    options = {"layout": layout, "alpha": alpha, "limit": limit, "up_offset": up_offset}
    return run("silu_mul_clamped_packed", (x,), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
