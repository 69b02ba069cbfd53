"""The gated activations as modules."""

from __future__ import annotations

import torch

from liger_kernels_act.gelu_mul import gelu_mul
from liger_kernels_act.silu_mul import silu_mul


class SiLUMul(torch.nn.Module):
    """``silu(gate) * up``; see ``liger.ops.silu_mul``."""

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return silu_mul(gate, up)


class GELUMul(torch.nn.Module):
    """``gelu(gate) * up``; see ``liger.ops.gelu_mul``.

    Args:
        approximate: "tanh" or "none".
    """

    def __init__(self, approximate: str = "tanh") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return gelu_mul(gate, up, approximate=self.approximate)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"approximate={self.approximate!r}"
