"""LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b, over the last dimension; var is the biased one.

Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
Shapes: x (..., H), w (H,) or None, b (H,) or None, y (..., H). R is the product of the leading dimensions.
Precision: mean, variance, product and sum in fp32, rounded once to x.dtype, whatever the dtype of w and b. The
reference is ``torch.nn.functional.layer_norm``, which does the same, so it has the bits of ``nn.LayerNorm``. The
variance is taken of x - mean, not as a difference of squares, so that a large mean costs no digits.
Gradients: with xhat = (x - mean) / sqrt(var + eps) and g = dy * w,
dx = (g - mean(g) - xhat * mean(g * xhat)) / sqrt(var + eps), dw = sum over rows of dy * xhat, db = sum over rows of dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from liger.dispatch import check_eps, public
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_input
from liger_kernels_norm._distributed import run_rows
from liger_kernels_norm.rms_norm import rows_like_hidden_states


# -- Reference ---------------------------------------------------------------------------------------------------------
def layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *, eps: float = 1e-5
) -> torch.Tensor:
    """The definition: torch's own, of fp32 copies where dtypes differ."""
    if all(p is None or p.dtype == x.dtype for p in (weight, bias)):
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    w, b = (None if p is None else acc(p) for p in (weight, bias))
    return F.layer_norm(acc(x), x.shape[-1:], w, b, eps).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("layer_norm")
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    kernel: str | None = None,
) -> torch.Tensor:
    """LayerNorm over the last dimension.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
            A DTensor gives one placed as it is, but replicated where its last dimension was split.
        weight: (H,), floating, possibly of another dtype than x; None leaves it out.
        bias: (H,), likewise.
        eps: added to the variance.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in x.dtype.

    Raises:
        ValueError: shapes do not match, or ``eps`` is negative or not finite,
            or DTensors lie on different meshes.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger import ops
        >>> ops.layer_norm(torch.tensor([[1.0, 2.0, 3.0]]), eps=0.0)
        tensor([[-1.2247,  0.0000,  1.2247]])
    """
    eps = check_eps("layer_norm", eps)
    check_input("layer_norm", x)
    if weight is not None:
        check_beside("layer_norm", "weight", weight, x, x.shape[-1:], why="the last of x")
    if bias is not None:
        check_beside("layer_norm", "bias", bias, x, x.shape[-1:], why="the last of x")
    return run_rows("layer_norm", (x, weight, bias), {"eps": eps}, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def layer_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, weights around 1, biases around 0.

    Variants: "weightless", without bias too; "no bias"; "mean", rows whose mean is 30 times their deviation.
    """
    x, weight = rows_like_hidden_states(R, H, generator), 1 + 0.2 * torch.randn(H, generator=generator)
    bias = torch.randn(H, generator=generator)
    if variant == "mean":
        x = x + 30 * x.std(-1, keepdim=True, correction=0)
    w = None if variant == "weightless" else weight.to(device, dtype)
    b = None if variant in ("weightless", "no bias") else bias.to(device, dtype)
    return (x.to(device, dtype), w, b), {}
