"""L2 norm: y = x / sqrt(sum(x^2) + eps), over the last dimension.

Source: queries and keys of linear attention (Qwen3-Next and its kin), where eps is added and not a lower bound as in
``torch.nn.functional.normalize``.
Shapes: x and y (..., H). R is the number of rows, the product of the leading dimensions.
Precision: ``cast="fp32"`` computes in fp32 and rounds once; ``cast="none"`` rounds each step to x.dtype, as upstream's
``l2norm`` does in plain torch.
Gradients: with r = 1 / sqrt(sum(x^2) + eps) and xhat = x * r, dx = (dy - xhat * sum(dy * xhat)) * r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, public
from liger.numerics import acc
from liger_kernels_norm._arguments import check_input
from liger_kernels_norm._distributed import run_rows
from liger_kernels_norm.rms_norm import rows_like_hidden_states

CASTS = ("fp32", "none")


# -- Reference ---------------------------------------------------------------------------------------------------------
def l2norm_reference(x: torch.Tensor, *, eps: float = 1e-6, cast: str = "fp32") -> torch.Tensor:
    """The definition, in plain torch; with "none" bit-equal to upstream's function."""
    h = x if cast == "none" else acc(x)
    return (h * torch.rsqrt((h * h).sum(-1, keepdim=True) + eps)).to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("l2norm")
def l2norm(x: torch.Tensor, *, eps: float = 1e-6, cast: str = "fp32", kernel: str | None = None) -> torch.Tensor:
    """Divide each row by its Euclidean length.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
            A DTensor gives one placed as it is, but replicated where its last dimension was split.
        eps: added to the sum of squares.
        cast: "fp32" or "none"; see the module's docstring.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) in x.dtype.

    Raises:
        ValueError: an unknown ``cast``, or ``eps`` is negative or not finite,
            or DTensors lie on different meshes.
        TypeError: an argument is of the wrong type, or x is not floating.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger import ops
        >>> ops.l2norm(torch.tensor([[3.0, 4.0]]), eps=0.0)
        tensor([[0.6000, 0.8000]])
    """
    check_choice("l2norm", "cast", cast, CASTS)
    eps = check_eps("l2norm", eps)
    check_input("l2norm", x)
    return run_rows("l2norm", (x,), {"eps": eps, "cast": cast}, sizes={"H": x.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def l2norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn. There are no variants."""
    return (rows_like_hidden_states(R, H, generator).to(device, dtype),), {}
