"""Rotary position embedding by complex numbers: columns 2j and 2j + 1 are one number, which freqs[j] turns.

(y[2j] + i y[2j + 1]) = (x[2j] + i x[2j + 1]) * freqs[j]

Source: Su et al. 2021, "RoFormer", eq. 13; the form of llama4 (text and vision) and deepseek_v2.
Shapes: q (B, Nq, T, D), k (B, Nk, T, D), with ``unsqueeze_dim=2``, as in llama4, heads behind tokens; freqs
(B or 1, T, D / 2) complex64; without a batch as in ``rope``.
Precision: in float32, rounded once to x's dtype. A kernel rounds each product; eager on a GPU may not.
Memory: freqs are read as they are, two numbers side by side; results and gradients have the strides of their input, as
in ``rope``.
Gradients: dx = dy times the conjugate of freqs. freqs get none, and are refused if they require one: no model trains
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_tensor, public, run
from liger.numerics import acc
from liger_kernels_rope._arguments import check_heads, refuse_trained


# -- Reference ---------------------------------------------------------------------------------------------------------
def rope_complex_reference(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch; bit-equal to upstream's ``apply_rotary_emb``."""
    freqs = freqs.unsqueeze(unsqueeze_dim)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        wide = acc(x)
        return torch.view_as_real(torch.complex(wide[..., ::2], wide[..., 1::2]) * freqs).flatten(-2).to(x.dtype)

    return multiply(q), multiply(k)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("rope_complex")
def rope_complex(
    q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor, *, unsqueeze_dim: int = 1, kernel: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys by complex numbers.

    Args:
        q: (B, Nq, T, D), floating, D even, any strides; (B, T, Nq, D) with ``unsqueeze_dim=2``. Without a batch
            (T, Nq, D), or (Nq, T, D) with ``unsqueeze_dim=0``.
        k: the same with Nk heads.
        freqs: (B, T, D / 2) or (1, T, D / 2), complex64; (T, D / 2) without a batch.
        unsqueeze_dim: where the head axis of q and k is.
        kernel: choose a kernel by hand.

    Returns:
        q and k rotated, shapes, dtypes and memory layouts as given.

    Raises:
        ValueError: shapes do not match, an unknown ``unsqueeze_dim``, or freqs require a gradient.
        TypeError: q or k is not floating, freqs are not complex64, or a tensor lies on another device than q.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import rope_complex
        >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 2.0]]]])
        >>> rope_complex(q, k, torch.tensor([[[1j]]]))
        (tensor([[[[0., 1.]]]]), tensor([[[[-2.,  0.]]]]))
    """
    batch, length, width = check_heads("rope_complex", q, k, unsqueeze_dim)
    check_tensor("rope_complex", "freqs", freqs)
    if freqs.dtype != torch.complex64 or freqs.device != q.device:
        raise TypeError(
            f"rope_complex: freqs must be complex64 on {q.device} like q, got {freqs.dtype} on {freqs.device}"
        )
    if width % 2:
        raise ValueError(f"rope_complex: q has {width} columns, expected an even number")
    shapes = [(length, width // 2)] if batch is None else [(n, length, width // 2) for n in {1: 0, batch: 0}]
    if tuple(freqs.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(
            f"rope_complex: freqs have shape {tuple(freqs.shape)}, expected {expected} to match q {tuple(q.shape)} with"
            f" unsqueeze_dim={unsqueeze_dim}"
        )
    refuse_trained("rope_complex", freqs=freqs)
    options = {"unsqueeze_dim": unsqueeze_dim}
    return run("rope_complex", (q, k, freqs), options, sizes={"P": width // 2}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def rope_complex_inputs(
    device: str,
    dtype: torch.dtype,
    *,
    T: int,
    B: int,
    NQ: int,
    NK: int,
    P: int,
    generator: torch.Generator,
    variant: str = "",
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """q and k (B, T, N, 2 P) transposed, freqs (1, T, P) of magnitude about 1.

    Variants: "heads last", as llama4 has them, with freqs (B, T, P); "no batch", q and k (T, N, 2 P).
    """
    q, k = (torch.randn(B, T, n, 2 * P, generator=generator).to(device, dtype) for n in (NQ, NK))
    freqs = torch.randn(B if variant == "heads last" else 1, T, P, 2, generator=generator).to(device)
    freqs = torch.view_as_complex(freqs)
    if variant == "no batch":
        q, k, freqs = q[0], k[0], freqs[0]
    if not variant:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    options = {"unsqueeze_dim": 2} if variant == "heads last" else {}
    return (q.detach().requires_grad_(), k.detach().requires_grad_(), freqs), options


def rope_complex_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Either way: read and write q and k, or their gradients, read freqs."""
    q, k, freqs = tensors
    moved = 2 * (q.nbytes + k.nbytes) + freqs.nbytes
    return {"forward": moved, "backward": moved}
