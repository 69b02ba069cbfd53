"""The norms as modules."""

from __future__ import annotations

import torch

from liger_kernels_norm.cohere_norm import cohere_norm
from liger_kernels_norm.fused_add_rms_norm import fused_add_rms_norm
from liger_kernels_norm.l2norm import l2norm
from liger_kernels_norm.layer_norm import layer_norm
from liger_kernels_norm.rms_norm import rms_norm


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension; see ``liger.ops.rms_norm``.

    Args:
        hidden_size: H, the size of the last dimension.
        eps: added to the mean square.
        cast: order of casts.
        offset: added to the weight in fp32.
        elementwise_affine: False leaves out the weight.
        bias: whether there is one.
    """

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        cast: str = "llama",
        offset: float = 0.0,
        elementwise_affine: bool = True,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.eps, self.cast, self.offset = hidden_size, eps, cast, offset
        # so that offset + weight starts at 1
        start = torch.full((hidden_size,), 1.0 - offset, device=device, dtype=dtype)
        self.weight = torch.nn.Parameter(start) if elementwise_affine else None
        self.bias = torch.nn.Parameter(torch.zeros_like(start)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return rms_norm(x, self.weight, self.bias, eps=self.eps, cast=self.cast, offset=self.offset)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.hidden_size}, eps={self.eps}, cast={self.cast!r}, offset={self.offset}"


class FusedAddRMSNorm(RMSNorm):
    """Residual sum and RMSNorm of it; see ``liger.ops.fused_add_rms_norm``. Arguments as of ``RMSNorm``, without a bias."""

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
        super().__init__(
            hidden_size,
            eps,
            cast=cast,
            offset=offset,
            elementwise_affine=elementwise_affine,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """(..., H), (..., H) -> normalised sum and sum, (..., H) each."""
        return fused_add_rms_norm(x, residual, self.weight, eps=self.eps, cast=self.cast, offset=self.offset)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last dimension, by ``liger.ops.layer_norm``. The same arguments and state.

    Raises:
        ValueError: ``normalized_shape`` has more than one dimension.
    """

    def __init__(self, normalized_shape: int | list[int] | torch.Size, *args: object, **kwargs: object) -> None:
        super().__init__(normalized_shape, *args, **kwargs)  # type: ignore[arg-type]
        if len(self.normalized_shape) != 1:
            raise ValueError(f"LayerNorm: normalized_shape is {self.normalized_shape}, expected one dimension")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class CohereNorm(torch.nn.Module):
    """Cohere's norm; see ``liger.ops.cohere_norm``.

    Args:
        hidden_size: H, or (N, H) for heads with weights of their own.
        eps: added to the variance.
    """

    def __init__(
        self,
        hidden_size: int | tuple[int, int],
        eps: float = 1e-5,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shape of x, (..., H) or (..., N, H)."""
        return cohere_norm(x, self.weight, eps=self.eps)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class L2Norm(torch.nn.Module):
    """Rows of length 1; see ``liger.ops.l2norm``.

    Args:
        eps: added to the sum of squares.
        cast: "fp32" or "none".
    """

    def __init__(self, eps: float = 1e-6, *, cast: str = "fp32") -> None:
        super().__init__()
        self.eps, self.cast = eps, cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return l2norm(x, eps=self.eps, cast=self.cast)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"eps={self.eps}, cast={self.cast!r}"
