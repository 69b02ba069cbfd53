"""A clamped gate times its sigmoid times a clamped value: y = (u + o) * g * sigmoid(alpha g).

g = min(gate, limit) and u = clamp(up, -limit, limit); o is the offset of up.

Source: gpt_oss (OpenAI 2025), ``GptOssExperts``: alpha 1.702, with which g * sigmoid(alpha g) is close to gelu(g),
limit 7 and o 1.
Shapes: gate, up and y (..., H), all equal. R is the number of rows, the product of the leading dimensions.
Precision: each step in fp32 and rounded, to gate.dtype or to up.dtype, as upstream's expression does, so the reference
has its bits. y has the dtype promoted from gate and up.
Gradients: with s = sigmoid(alpha g), dgate = dy * (u + o) * s * (1 + alpha g (1 - s)) where gate <= limit, and
dup = dy * g * s where -limit <= up <= limit; 0 elsewhere. At the limit itself the gradient passes, as in torch.clamp.
In fp32, rounded once to the input's dtype.
"""

from __future__ import annotations

import torch

from liger.dispatch import public, run
from liger_kernels_act._pair import check_limit, check_numbers, check_pair


# -- Reference ---------------------------------------------------------------------------------------------------------
def silu_mul_clamped_reference(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: float = 1.702, limit: float = 7.0, up_offset: float = 1.0
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's experts."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + up_offset) * (gate * torch.sigmoid(gate * alpha))


# -- Public ------------------------------------------------------------------------------------------------------------
@public("silu_mul_clamped")
def silu_mul_clamped(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
    kernel: str | None = None,
) -> torch.Tensor:
    """``(up + up_offset) * gate * sigmoid(alpha * gate)``, elementwise, of clamped gate and up.

    Args:
        gate: (..., H), floating; any strides. It is cut off above ``limit``.
        up: the same shape and device, possibly another dtype. It is cut off above ``limit`` and below ``-limit``.
        alpha: steepness of the sigmoid; 1 gives SiLU.
        limit: above 0; ``math.inf`` clamps nothing.
        up_offset: added to the clamped up.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in the dtype promoted from gate and up.

    Raises:
        ValueError: the shapes differ, or limit is not above 0.
        TypeError: a tensor is not floating, up is on another device, or an option is no number.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> gate, up = torch.tensor([[-1.0, 2.0, 9.0]]), torch.tensor([[1.0, 3.0, -9.0]])
        >>> liger.ops.silu_mul_clamped(gate, up)
        tensor([[ -0.3084,   7.7426, -41.9997]])
    """
    check_pair("silu_mul_clamped", gate, up)
    check_numbers("silu_mul_clamped", alpha=alpha, limit=limit, up_offset=up_offset)
    check_limit("silu_mul_clamped", limit)
    options = {"alpha": alpha, "limit": limit, "up_offset": up_offset}
    return run("silu_mul_clamped", (gate, up), options, sizes={}, kernel=kernel)  # type: ignore[no-any-return]
