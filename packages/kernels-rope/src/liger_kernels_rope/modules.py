"""The rotary embeddings as modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from liger_kernels_rope.mrope import mrope
from liger_kernels_rope.qk_norm_rope import qk_norm_rope
from liger_kernels_rope.rope import rope
from liger_kernels_rope.rope_complex import rope_complex


class RoPE(torch.nn.Module):
    """Rotary embedding of queries and keys; see ``liger.ops.rope``.

    Args:
        layout: which columns of a head are a pair.
        tables: whether cos and sin have an angle per "column" or per "pair".
        cast: order of casts.
        unsqueeze_dim: where the head axis of q and k is.
    """

    def __init__(
        self, *, layout: str = "half", tables: str = "column", cast: str = "none", unsqueeze_dim: int = 1
    ) -> None:
        super().__init__()
        self.layout, self.tables, self.cast, self.unsqueeze_dim = layout, tables, cast, unsqueeze_dim

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q (B, Nq, T, D), k (B, Nk, T, D), cos and sin (B or 1, T, D_rot) -> both, as they came."""
        dim = self.unsqueeze_dim
        return rope(q, k, cos, sin, layout=self.layout, tables=self.tables, cast=self.cast, unsqueeze_dim=dim)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"layout={self.layout!r}, tables={self.tables!r}, cast={self.cast!r}"


class MRoPE(torch.nn.Module):
    """Rotary embedding with three axes of positions; see ``liger.ops.mrope``.

    Args:
        sections: pairs of columns that belong to each axis.
        interleaved: whether the axes take turns.
        unsqueeze_dim: where the head axis of q and k is.
    """

    def __init__(
        self, sections: Sequence[int] = (16, 24, 24), *, interleaved: bool = False, unsqueeze_dim: int = 1
    ) -> None:
        super().__init__()
        self.sections, self.interleaved, self.unsqueeze_dim = tuple(sections), interleaved, unsqueeze_dim

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q (B, Nq, T, D), k (B, Nk, T, D), cos and sin (3, B or 1, T, D) -> both, as they came."""
        dim = self.unsqueeze_dim
        return mrope(q, k, cos, sin, sections=self.sections, interleaved=self.interleaved, unsqueeze_dim=dim)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.sections}, interleaved={self.interleaved}"


class ComplexRoPE(torch.nn.Module):
    """Rotary embedding by complex numbers; see ``liger.ops.rope_complex``.

    Args:
        unsqueeze_dim: where the head axis of q and k is.
    """

    def __init__(self, *, unsqueeze_dim: int = 1) -> None:
        super().__init__()
        self.unsqueeze_dim = unsqueeze_dim

    def forward(self, q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q (B, Nq, T, D), k (B, Nk, T, D), freqs (B or 1, T, D / 2) complex64 -> both, as they came."""
        return rope_complex(q, k, freqs, unsqueeze_dim=self.unsqueeze_dim)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"unsqueeze_dim={self.unsqueeze_dim}"


class QKNormRope(torch.nn.Module):
    """RMSNorm of each head of queries and keys, then the rotary embedding; see ``liger.ops.qk_norm_rope``.

    Args:
        head_dim: D, the columns of a head.
        eps: added to the mean square.
        cast: order of casts of the norm.
        offset: added to the weights in fp32.
        unsqueeze_dim: where the head axis of q and k is.
    """

    def __init__(
        self,
        head_dim: int,
        eps: float = 1e-6,
        *,
        cast: str = "llama",
        offset: float = 0.0,
        unsqueeze_dim: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.eps, self.cast, self.offset = head_dim, eps, cast, offset
        self.unsqueeze_dim = unsqueeze_dim
        # so that offset + weight starts at 1
        start = torch.full((2, head_dim), 1.0 - offset, device=device, dtype=dtype)
        self.q_weight, self.k_weight = (torch.nn.Parameter(row.clone()) for row in start)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q (B, Nq, T, D), k (B, Nk, T, D), cos and sin (B or 1, T, D_rot) -> both, as they came."""
        return qk_norm_rope(
            q, k, self.q_weight, self.k_weight, cos, sin,
            eps=self.eps, cast=self.cast, offset=self.offset, unsqueeze_dim=self.unsqueeze_dim,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.head_dim}, eps={self.eps}, cast={self.cast!r}, offset={self.offset}"
