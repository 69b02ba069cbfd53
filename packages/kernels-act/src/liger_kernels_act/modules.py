"""The activations as modules."""

from __future__ import annotations

from typing import Any

import torch

from liger_kernels_act.gelu_mul import gelu_mul
from liger_kernels_act.gelu_mul_packed import gelu_mul_packed
from liger_kernels_act.log_softmax import log_softmax
from liger_kernels_act.relu_squared import relu_squared
from liger_kernels_act.silu_mul import silu_mul
from liger_kernels_act.silu_mul_clamped import silu_mul_clamped
from liger_kernels_act.silu_mul_clamped_packed import silu_mul_clamped_packed
from liger_kernels_act.silu_mul_packed import silu_mul_packed
from liger_kernels_act.softmax import softmax
from liger_kernels_act.sparsemax import sparsemax


class _WithOptions(torch.nn.Module):
    """A module whose state is the options that its op is called with."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


# -- Gate and up -------------------------------------------------------------------------------------------------------
class SiLUMul(_WithOptions):
    """``silu(gate) * up``; see ``liger.ops.silu_mul``, also for the multipliers."""

    def __init__(self, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> None:
        super().__init__(gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return silu_mul(gate, up, **self.options)


class GELUMul(_WithOptions):
    """``gelu(gate) * up``; see ``liger.ops.gelu_mul``, also for the multipliers.

    Args:
        approximate: "tanh" or "none".
    """

    def __init__(
        self, approximate: str = "tanh", *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0
    ) -> None:
        super().__init__(approximate=approximate, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return gelu_mul(gate, up, **self.options)


class SiLUMulClamped(_WithOptions):
    """``(up + up_offset) * gate * sigmoid(alpha * gate)``, clamped; see ``liger.ops.silu_mul_clamped``."""

    def __init__(self, *, alpha: float = 1.702, limit: float = 7.0, up_offset: float = 1.0) -> None:
        super().__init__(alpha=alpha, limit=limit, up_offset=up_offset)

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return silu_mul_clamped(gate, up, **self.options)


# -- Gate and up in one tensor -----------------------------------------------------------------------------------------
class SiLUMulPacked(_WithOptions):
    """``silu(gate) * up``; see ``liger.ops.silu_mul_packed``, also for the multipliers.

    Args:
        layout: "gate_up", "up_gate" or "interleaved".
    """

    def __init__(self, layout: str = "gate_up", *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> None:
        super().__init__(layout=layout, gate_multiplier=gate_multiplier, down_multiplier=down_multiplier)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., 2 H) -> (..., H)."""
        return silu_mul_packed(x, **self.options)


class GELUMulPacked(_WithOptions):
    """``gelu(gate) * up``; see ``liger.ops.gelu_mul_packed``, also for the multipliers.

    Args:
        approximate: "tanh" or "none".
        layout: "gate_up", "up_gate" or "interleaved".
    """

    def __init__(
        self,
        approximate: str = "tanh",
        layout: str = "gate_up",
        *,
        gate_multiplier: float = 1.0,
        down_multiplier: float = 1.0,
    ) -> None:
        multipliers = {"gate_multiplier": gate_multiplier, "down_multiplier": down_multiplier}
        super().__init__(approximate=approximate, layout=layout, **multipliers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., 2 H) -> (..., H)."""
        return gelu_mul_packed(x, **self.options)


class SiLUMulClampedPacked(_WithOptions):
    """``(up + up_offset) * gate * sigmoid(alpha * gate)``, clamped; see ``liger.ops.silu_mul_clamped_packed``.

    Args:
        layout: "interleaved", "gate_up" or "up_gate".
    """

    def __init__(
        self, layout: str = "interleaved", *, alpha: float = 1.702, limit: float = 7.0, up_offset: float = 1.0
    ) -> None:
        super().__init__(layout=layout, alpha=alpha, limit=limit, up_offset=up_offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., 2 H) -> (..., H)."""
        return silu_mul_clamped_packed(x, **self.options)


# -- One tensor --------------------------------------------------------------------------------------------------------
class ReLUSquared(torch.nn.Module):
    """``relu(x) ** 2``; see ``liger.ops.relu_squared``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(...) -> (...)."""
        return relu_squared(x)


class Softmax(torch.nn.Module):
    """Over the last dimension; see ``liger.ops.softmax``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., V) -> (..., V)."""
        return softmax(x)


class LogSoftmax(torch.nn.Module):
    """Over the last dimension; see ``liger.ops.log_softmax``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., V) -> (..., V)."""
        return log_softmax(x)


class Sparsemax(torch.nn.Module):
    """Over the last dimension; see ``liger.ops.sparsemax``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., V) -> (..., V)."""
        return sparsemax(x)
