"""Rotary position embedding, half layout, of queries and keys together.

With the first D_rot columns of each head split into halves, x = (x1, x2, rest), and cos = (c1, c2), sin = (s1, s2):
y1 = x1 * c1 - x2 * s1,  y2 = x2 * c2 + x1 * s2,  rest unchanged.

Source: Su et al. 2021, "RoFormer", eq. 34; the half layout is GPT-NeoX's, Hugging Face's ``rotate_half``.
Shapes: q (B, Nq, T, D) and k (B, Nk, T, D); with ``unsqueeze_dim=2`` (B, T, Nq, D) and (B, T, Nk, D).
cos, sin (B or 1, T, D_rot), D_rot <= D and even; the halves of cos and sin may differ.
Precision: both products and their sum are rounded to the output's dtype, promoted from the input and cos; gradients
likewise to the input's dtype. That is upstream's order, so in bf16 and fp16 every kernel has upstream's bits.
Memory: outputs and gradients have the strides of their input (if it is dense), so a transposed view of a projection
gets a gradient that the projection's backward reads without a copy.
Gradients: the transposed rotation, dx1 = dy1 * c1 + dy2 * s2, dx2 = dy2 * c2 - dy1 * s1. cos and sin get theirs in
plain torch, if they require one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_tensor, public, run


# -- Reference ---------------------------------------------------------------------------------------------------------
def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(x1, x2) -> (-x2, x1) along the last dimension."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope_reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch; bit-equal to upstream's ``apply_rotary_pos_emb``."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    width = cos.shape[-1]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., :width], x[..., width:]
        turned = turned * cos + rotate_half(turned) * sin
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    return rotate(q), rotate(k)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("rope")
def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    unsqueeze_dim: int = 1,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys.

    Args:
        q: (B, Nq, T, D), floating, any strides; (B, T, Nq, D) with ``unsqueeze_dim=2``.
        k: (B, Nk, T, D) or (B, T, Nk, D).
        cos: (B, T, D_rot) or (1, T, D_rot), floating; D_rot is even and at most D. Columns from D_rot on pass through.
        sin: like cos.
        unsqueeze_dim: where the head axis is, 1 or 2.
        kernel: choose a kernel by hand.

    Returns:
        q and k rotated, shapes and memory layouts as given, dtypes promoted from q or k and cos.

    Raises:
        ValueError: shapes do not match, or an unknown ``unsqueeze_dim``.
        TypeError: a tensor is not floating or lies on another device than q, or sin has another dtype than cos.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    _check(q, k, cos, sin, unsqueeze_dim)
    options = {"unsqueeze_dim": unsqueeze_dim}
    return run("rope", (q, k, cos, sin), options, sizes={"D": q.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> None:
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"rope: unsqueeze_dim is {unsqueeze_dim!r}, expected 1 or 2")
    for name, t, dims in (("q", q, 4), ("k", k, 4), ("cos", cos, 3), ("sin", sin, 3)):
        check_tensor("rope", name, t)
        if not t.dtype.is_floating_point or t.device != q.device:
            raise TypeError(f"rope: {name} must be floating on {q.device} like q, got {t.dtype} on {t.device}")
        if t.dim() != dims:
            raise ValueError(f"rope: {name} has shape {tuple(t.shape)}, expected {dims} dimensions")
    time = 3 - unsqueeze_dim
    batch, length, width = q.shape[0], q.shape[time], q.shape[-1]
    if (k.shape[0], k.shape[time], k.shape[-1]) != (batch, length, width):
        heads = ("Nk", length) if unsqueeze_dim == 1 else (length, "Nk")
        raise ValueError(
            f"rope: k has shape {tuple(k.shape)}, expected {(batch, *heads, width)} to match q {tuple(q.shape)}"
        )
    if cos.shape[0] not in (1, batch) or cos.shape[1] != length:
        raise ValueError(
            f"rope: cos has shape {tuple(cos.shape)}, expected (1 or {batch}, {length}, D_rot) to match"
            f" q {tuple(q.shape)} with unsqueeze_dim={unsqueeze_dim}"
        )
    if cos.shape[2] % 2 or not 0 < cos.shape[2] <= width:
        raise ValueError(f"rope: cos has {cos.shape[2]} columns, expected an even number of at most {width}")
    if sin.shape != cos.shape:
        raise ValueError(f"rope: sin has shape {tuple(sin.shape)}, expected {tuple(cos.shape)} like cos")
    if sin.dtype != cos.dtype:
        raise TypeError(f"rope: sin has dtype {sin.dtype}, expected {cos.dtype} like cos")


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def rope_inputs(
    device: str,
    dtype: torch.dtype,
    *,
    T: int,
    B: int,
    NQ: int,
    NK: int,
    D: int,
    generator: torch.Generator,
    variant: str = "",
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """q and k as upstream makes them, (B, T, N, D) transposed; cos and sin (1, T, D) with halves that differ.

    Variants, of which "heads last" goes with others: "per row", cos and sin (B, T, D); "partial", D_rot about D / 2;
    "fp32 cos"; "heads last", ``unsqueeze_dim=2``; "packed", q and k are views of one projection; "equal halves" of cos
    and sin, as in models; "trained tables", cos and sin require gradients.
    """
    both = torch.randn(B, T, NQ + NK, D, generator=generator).to(device, dtype)
    q, k = both[:, :, :NQ], both[:, :, NQ:]
    if variant != "packed":
        q, k = q.contiguous(), k.contiguous()
    if "heads last" not in variant:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    width = 2 * max(D // 4, 1) if "partial" in variant else D - D % 2
    angle = 6.3 * torch.rand(B if "per row" in variant else 1, T, width, generator=generator)
    if variant == "equal halves":
        angle = angle[..., : width // 2].repeat(1, 1, 2)
    table = torch.float32 if variant == "fp32 cos" else dtype
    cos, sin = angle.cos().to(device, table), angle.sin().to(device, table)
    options = {"unsqueeze_dim": 2} if "heads last" in variant else {}
    for t in (cos, sin):
        t.requires_grad_(variant == "trained tables")
    return (q.detach().requires_grad_(), k.detach().requires_grad_(), cos, sin), options


def rope_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Either way: read and write q and k, or their gradients, read cos and sin."""
    q, k, cos, sin = tensors
    moved = 2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes
    return {"forward": moved, "backward": moved}
