"""What has weights, as a module."""

from __future__ import annotations

import torch

from liger_kernels_rope.qk_norm_rope import qk_norm_rope


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
