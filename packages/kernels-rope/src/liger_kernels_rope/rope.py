"""Rotary position embedding of queries and keys together.

The first D_rot columns of each head are D_rot / 2 pairs, each of which is turned by its own angle:
y1 = x1 * c1 - x2 * s1,  y2 = x2 * c2 + x1 * s2,  the other columns unchanged.

==============  ================================  ====================  =================================
layout          the pair (x1, x2) stands in       the result stands in  used by
==============  ================================  ====================  =================================
"half"          columns j and D_rot / 2 + j       the same columns      llama and most others, gpt_oss
"interleaved"   columns 2j and 2j + 1             the same columns      cohere, glm, ernie4_5, gpt-j
"deinterleave"  columns 2j and 2j + 1             j and D_rot / 2 + j   deepseek_v3
==============  ================================  ====================  =================================

``tables="column"``: cos and sin have a column for each column of the result, so c1 and c2 may differ. ``"pair"``: one
for each pair, c1 = c2 (gpt_oss; glm, ernie4_5 and deepseek_v3 read only this half of theirs).

Source: Su et al. 2021, "RoFormer", eq. 34; the half layout is GPT-NeoX's, Hugging Face's ``rotate_half``.
Shapes: q (B, Nq, T, D) and k (B, Nk, T, D), heads at ``unsqueeze_dim=2`` (B, T, Nq, D). cos, sin (B or 1, T, C) with
C = D_rot for "column" and D_rot / 2 for "pair"; D_rot <= D. Without a batch, as in vision towers: q (T, Nq, D) with
heads at 1, or (Nq, T, D) at 0, and cos, sin (T, C).
Precision, by ``cast``; in each case every kernel has upstream's bits in the forward:

========  ===================================================================  ========================  ============
cast      both products and their sum are rounded to                           the result's dtype        used by
========  ===================================================================  ========================  ============
"none"    the dtype promoted from x and cos                                    promoted from x and cos   llama, glm
"output"  the same                                                             that of x                 olmo2
"fp32"    float32: x and cos are taken as such, and the result rounded once    that of x                 cohere,
                                                                                                         ernie4_5,
                                                                                                         vision towers
========  ===================================================================  ========================  ============

Memory: outputs and gradients have the strides of their input, if it is dense and the columns of a head are neighbours,
so a transposed view of a projection gets a gradient that the projection's backward reads without a copy.
Gradients: the transposed rotation, dx1 = dy1 * c1 + dy2 * s2, dx2 = dy2 * c2 - dy1 * s1, each product rounded to the
input's dtype unless ``cast="fp32"``. cos and sin get theirs in plain torch, if they require one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, public, run
from liger.numerics import acc
from liger_kernels_rope._arguments import check_heads, check_tables

LAYOUTS = ("half", "interleaved", "deinterleave")
TABLES = ("column", "pair")
CASTS = ("none", "output", "fp32")


# -- Reference ---------------------------------------------------------------------------------------------------------
def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(x1, x2) -> (-x2, x1) along the last dimension."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def arrange(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The columns of x as they stand in the result."""
    return torch.cat((x[..., ::2], x[..., 1::2]), dim=-1) if layout == "deinterleave" else x


def partner(x: torch.Tensor, layout: str) -> torch.Tensor:
    """In each column what sin multiplies: -x2 in that of x1, x1 in that of x2; x as ``arrange`` leaves it."""
    if layout == "interleaved":
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return rotate_half(x)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: str, cast: str) -> torch.Tensor:
    """Rotate the first columns of x, as many as cos and sin have; these broadcast to x."""
    width = cos.shape[-1]
    wide = acc(x) if cast == "fp32" else x
    turned, rest = arrange(wide[..., :width], layout), wide[..., width:]
    turned = turned * cos + partner(turned, layout) * sin
    y = torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
    return y if cast == "none" else y.to(x.dtype)


def rope_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    unsqueeze_dim: int = 1,
    layout: str = "half",
    tables: str = "column",
    cast: str = "none",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch; bit-equal to upstream's functions."""
    if tables == "pair":
        twice = layout == "interleaved"
        cos, sin = (t.repeat_interleave(2, -1) if twice else torch.cat((t, t), -1) for t in (cos, sin))
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return turn(q, cos, sin, layout, cast), turn(k, cos, sin, layout, cast)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("rope")
def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    unsqueeze_dim: int = 1,
    layout: str = "half",
    tables: str = "column",
    cast: str = "none",
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys.

    Args:
        q: (B, Nq, T, D), floating, any strides; (B, T, Nq, D) with ``unsqueeze_dim=2``. Without a batch (T, Nq, D), or
            (Nq, T, D) with ``unsqueeze_dim=0``.
        k: the same with Nk heads.
        cos: (B, T, C) or (1, T, C), floating; (T, C) without a batch. Columns of q and k beyond D_rot pass through.
        sin: like cos.
        unsqueeze_dim: where the head axis of q and k is.
        layout: where the two columns of a pair are, "half", "interleaved" or "deinterleave"; see the module.
        tables: "column", C = D_rot is even; or "pair", C = D_rot / 2.
        cast: what is rounded to which dtype, "none", "output" or "fp32"; see the module.
        kernel: choose a kernel by hand.

    Returns:
        q and k rotated, shapes and memory layouts as given; dtypes promoted from q or k and cos with ``cast="none"``,
        otherwise those of q and k.

    Raises:
        ValueError: shapes do not match, or an unknown value of an option.
        TypeError: a tensor is not floating or lies on another device than q, or sin has another dtype than cos.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import rope
        >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 2.0]]]])
        >>> cos, sin = torch.zeros(1, 1, 2), torch.ones(1, 1, 2)  # a quarter turn
        >>> rope(q, k, cos, sin)
        (tensor([[[[0., 1.]]]]), tensor([[[[-2.,  0.]]]]))
    """
    check_choice("rope", "layout", layout, LAYOUTS)
    check_choice("rope", "tables", tables, TABLES)
    check_choice("rope", "cast", cast, CASTS)
    batch, length, width = check_heads("rope", q, k, unsqueeze_dim)
    per_pair = tables == "pair"
    most = width // 2 if per_pair else width
    check_tables("rope", cos, sin, q, unsqueeze_dim, (batch, length), most, not per_pair)
    options = {"unsqueeze_dim": unsqueeze_dim, "layout": layout, "tables": tables, "cast": cast}
    return run("rope", (q, k, cos, sin), options, sizes={"D": width}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
FORMS: Mapping[str, Mapping[str, Any]] = {
    "gpt_oss": {"tables": "pair"},
    "glm": {"tables": "pair", "layout": "interleaved"},
    "cohere": {"layout": "interleaved", "cast": "fp32"},
    "deepseek": {"tables": "pair", "layout": "deinterleave"},
    "olmo2": {"cast": "output"},
    "vision": {"cast": "fp32"},
}
"""Options of a variant."""


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
    and sin, as in models; "trained tables", cos and sin require gradients; and those of ``FORMS``, the options of a
    model family: "glm" with half of the width, and views of half of a table, "olmo2" with fp32 cos, "vision" without B.
    """
    both = torch.randn(B, T, NQ + NK, D, generator=generator).to(device, dtype)
    q, k = both[:, :, :NQ], both[:, :, NQ:]
    if variant != "packed":
        q, k = q.contiguous(), k.contiguous()
    options = dict(FORMS.get(variant, {}))
    if "heads last" in variant:
        options["unsqueeze_dim"] = 2
    elif variant != "vision":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    width = 2 * max(D // 4, 1) if "partial" in variant or variant == "glm" else D - D % 2
    angle = 6.3 * torch.rand(B if "per row" in variant else 1, T, width, generator=generator)
    if variant == "equal halves":
        angle = angle[..., : width // 2].repeat(1, 1, 2)
    table = torch.float32 if variant in ("fp32 cos", "olmo2") else dtype
    cos, sin = angle.cos().to(device, table), angle.sin().to(device, table)
    if options.get("tables") == "pair":
        cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    tensors = (q, k, cos, sin) if variant != "vision" else (q[0], k[0], cos[0], sin[0])
    made = [t.detach() for t in tensors]
    for at, t in enumerate(made):
        t.requires_grad_(at < 2 or variant == "trained tables")
    return made, options


def rope_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Either way: read and write q and k, or their gradients, read cos and sin."""
    q, k, cos, sin = tensors
    moved = 2 * (q.nbytes + k.nbytes) + cos.nbytes + sin.nbytes
    return {"forward": moved, "backward": moved}
