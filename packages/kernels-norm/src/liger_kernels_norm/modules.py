"""The norms as modules."""

from __future__ import annotations

import torch

from liger_kernels_norm.rms_norm import rms_norm


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension; see ``liger.ops.rms_norm``.

    Args:
        hidden_size: H, the size of the last dimension.
        eps: added to the mean square.
        cast: order of casts.
        offset: added to the weight in fp32.
        elementwise_affine: False leaves out the weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        cast: str = "llama",
        offset: float = 0.0,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.eps, self.cast, self.offset = hidden_size, eps, cast, offset
        # so that offset + weight starts at 1
        start = torch.full((hidden_size,), 1.0 - offset, device=device, dtype=dtype)
        self.weight = torch.nn.Parameter(start) if elementwise_affine else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return rms_norm(x, self.weight, eps=self.eps, cast=self.cast, offset=self.offset)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.hidden_size}, eps={self.eps}, cast={self.cast!r}, offset={self.offset}"
