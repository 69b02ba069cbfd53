"""Rotary position embedding with three axes of positions (time, height, width), half layout: the rope of vision models.

cos and sin are given for each axis; each pair of columns reads the table of one: y1 = x1 * c1 - x2 * s1,
y2 = x2 * c2 + x1 * s2 as in ``rope``, with (c, s) of pair j from axis a(j). With ``sections`` (n0, n1, n2):

=====================  ================================================================  ======================
interleaved            a(j)                                                              used by
=====================  ================================================================  ======================
False                  0 for the first n0 pairs, 1 for the next n1, then 2               qwen2_vl, qwen2_5_vl
True                   1 where j % 3 = 1 and j < 3 * n1, 2 where j % 3 = 2 and           qwen3_vl
                       j < 3 * n2, otherwise 0
=====================  ================================================================  ======================

Source: Wang et al. 2024, "Qwen2-VL", section 2.1 (M-RoPE); Bai et al. 2025, "Qwen3-VL Technical Report" (interleaved).
Shapes: q (B, Nq, T, D), k (B, Nk, T, D), with ``unsqueeze_dim=2`` heads behind tokens; cos, sin (3, B or 1, T, D_rot);
D_rot = 2 * sum(sections) <= D.
Precision: as ``rope`` with ``cast="none"``: products and sum rounded to the dtype promoted from x and cos. Choosing a
table rounds nothing, so a kernel has the bits of upstream, which gathers one table first.
Memory: no gathered table; results and gradients have the strides of their input, as in ``rope``.
Gradients: those of ``rope``. cos and sin get none, and are refused if they require one: no model trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import public, run
from liger_kernels_rope._arguments import check_heads, check_tables, refuse_trained
from liger_kernels_rope.rope import turn


# -- Reference ---------------------------------------------------------------------------------------------------------
def choose_axes(table: torch.Tensor, sections: Sequence[int], interleaved: bool) -> torch.Tensor:
    """(3, ..., 2 P) -> (..., 2 P): each pair from its own axis."""
    if not interleaved:
        parts = torch.split(table, [*sections, *sections], dim=-1)
        return torch.cat([part[at % 3] for at, part in enumerate(parts)], dim=-1)
    out = table[0].clone()
    half = out.shape[-1] // 2
    for axis in (1, 2):
        for start in (0, half):
            columns = slice(start + axis, start + min(3 * sections[axis], half), 3)
            out[..., columns] = table[axis, ..., columns]
    return out


def mrope_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    sections: Sequence[int] = (16, 24, 24),
    interleaved: bool = False,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch; bit-equal to upstream's choice of tables and rotation."""
    cos, sin = (choose_axes(t, sections, interleaved).unsqueeze(unsqueeze_dim) for t in (cos, sin))
    return turn(q, cos, sin, "half", "none"), turn(k, cos, sin, "half", "none")


# -- Public ------------------------------------------------------------------------------------------------------------
@public("mrope")
def mrope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    sections: Sequence[int] = (16, 24, 24),
    interleaved: bool = False,
    unsqueeze_dim: int = 1,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys by positions on three axes.

    Args:
        q: (B, Nq, T, D), floating, any strides; (B, T, Nq, D) with ``unsqueeze_dim=2``.
        k: (B, Nk, T, D) or (B, T, Nk, D).
        cos: (3, B, T, D_rot) or (3, 1, T, D_rot), floating, one table for each axis, halves as in ``rope``.
        sin: like cos.
        sections: pairs of each axis, three numbers with the sum D_rot / 2.
        interleaved: whether the axes take turns.
        unsqueeze_dim: where the head axis is, 1 or 2.
        kernel: choose a kernel by hand.

    Returns:
        q and k rotated, shapes and memory layouts as given, dtypes promoted from q or k and cos.

    Raises:
        ValueError: shapes or sections do not match, an unknown ``unsqueeze_dim``, or cos or sin requires a gradient.
        TypeError: a tensor is not floating or lies on another device than q, sin has another dtype than cos, or
            ``sections`` are no integers.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import mrope
        >>> q = k = torch.ones(1, 1, 1, 6)
        >>> cos, sin = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 1, 1, 6), torch.zeros(3, 1, 1, 6)
        >>> mrope(q, k, cos, sin, sections=(1, 1, 1))[0]
        tensor([[[[1., 2., 3., 1., 2., 3.]]]])
    """
    batch, length, width = check_heads("mrope", q, k, unsqueeze_dim)
    if batch is None:
        raise ValueError(f"mrope: q has shape {tuple(q.shape)}, expected 4 dimensions")
    check_tables("mrope", cos, sin, q, unsqueeze_dim, (3, batch, length), width, True)
    refuse_trained("mrope", cos=cos, sin=sin)
    if any(type(n) is not int for n in sections):
        raise TypeError(f"mrope: sections are {sections!r}, expected three integers")
    if len(sections) != 3 or min(sections) < 0 or 2 * sum(sections) != cos.shape[-1]:
        raise ValueError(
            f"mrope: sections are {tuple(sections)}, expected three numbers with the sum {cos.shape[-1] // 2}, half "
            f"the columns of cos {tuple(cos.shape)}"
        )
    options = {"sections": tuple(sections), "interleaved": bool(interleaved), "unsqueeze_dim": unsqueeze_dim}
    return run("mrope", (q, k, cos, sin), options, sizes={"P": width // 2}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def mrope_inputs(
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
    """q and k (B, T, N, 2 P) transposed; cos and sin (3, B, T, 2 P); a quarter of the P pairs belongs to time.

    Variants: "heads last"; "in turns", as qwen3_vl has it: the axes take turns until two of them end, and share cos and
    sin (3, 1, T, 2 P) over the batch; "partial", heads of 3 P columns.
    """
    width = 3 * P if variant == "partial" else 2 * P
    q, k = (torch.randn(B, T, n, width, generator=generator).to(device, dtype) for n in (NQ, NK))
    height = (P - P // 4 + 1) // 2
    options: dict[str, Any] = {"sections": (P // 4, height, P - P // 4 - height)}
    if variant == "heads last":
        options["unsqueeze_dim"] = 2
    else:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    if variant == "in turns":
        options = {"sections": (P - 2 * (5 * P // 16), 5 * P // 16, 5 * P // 16), "interleaved": True}
    angle = 6.3 * torch.rand(3, 1 if variant == "in turns" else B, T, 2 * P, generator=generator)
    made = (q.detach().requires_grad_(), k.detach().requires_grad_())
    return (*made, angle.cos().to(device, dtype), angle.sin().to(device, dtype)), options


def mrope_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Either way: read and write q and k, or their gradients, read one column of three of cos and sin."""
    q, k, cos, sin = tensors
    moved = 2 * (q.nbytes + k.nbytes) + (cos.nbytes + sin.nbytes) // 3
    return {"forward": moved, "backward": moved}
