"""The norms as modules."""

from __future__ import annotations

import torch

from liger_kernels_norm.cohere_norm import cohere_norm
from liger_kernels_norm.dyt import dyt
from liger_kernels_norm.fused_add_rms_norm import fused_add_rms_norm
from liger_kernels_norm.gated_rms_norm import gated_rms_norm
from liger_kernels_norm.group_norm import group_norm
from liger_kernels_norm.l2norm import l2norm
from liger_kernels_norm.layer_norm import layer_norm
from liger_kernels_norm.modulated_rms_norm import modulated_rms_norm
from liger_kernels_norm.poly_norm import poly_norm
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
    """Residual sum and RMSNorm of it; see ``liger.ops.fused_add_rms_norm``. Arguments as of ``RMSNorm``; no bias."""

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


class GatedRMSNorm(torch.nn.Module):
    """RMSNorm times an activation of a gate; see ``liger.ops.gated_rms_norm``.

    Args:
        hidden_size: H, the size of the last dimension.
        eps: added to the mean square.
        activation: "silu" or "sigmoid".
        norm_before_gate: False normalises the product with the gate instead.
        groups: equal parts of H that are normalised by themselves.
        cast: order of casts.
        elementwise_affine: False leaves out the weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        activation: str = "silu",
        norm_before_gate: bool = True,
        groups: int = 1,
        cast: str = "llama",
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.eps, self.activation = hidden_size, eps, activation
        self.norm_before_gate, self.groups, self.cast = norm_before_gate, groups, cast
        start = torch.ones(hidden_size, device=device, dtype=dtype)
        self.weight = torch.nn.Parameter(start) if elementwise_affine else None

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(..., H), (..., H) -> (..., H)."""
        return gated_rms_norm(
            x,
            gate,
            self.weight,
            eps=self.eps,
            activation=self.activation,
            norm_before_gate=self.norm_before_gate,
            groups=self.groups,
            cast=self.cast,
        )

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return (
            f"{self.hidden_size}, eps={self.eps}, activation={self.activation!r}, "
            f"norm_before_gate={self.norm_before_gate}, groups={self.groups}, cast={self.cast!r}"
        )


class DyT(torch.nn.Module):
    """Dynamic tanh; see ``liger.ops.dyt``. Parameters are named as in the paper's code.

    Args:
        hidden_size: H, the size of the last dimension.
        alpha: where alpha starts.
        bias: False leaves it out.
    """

    def __init__(
        self,
        hidden_size: int,
        alpha: float = 0.5,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.alpha = torch.nn.Parameter(torch.full((1,), alpha, device=device, dtype=dtype))
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return dyt(x, self.alpha, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.hidden_size}, bias={self.bias is not None}"


class PolyNorm(torch.nn.Module):
    """A polynomial of normalised powers, the activation of PolyCom; see ``liger.ops.poly_norm``.

    Args:
        eps: added to the mean squares.
    """

    def __init__(
        self, eps: float = 1e-6, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.full((3,), 1 / 3, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H) -> (..., H)."""
        return poly_norm(x, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"eps={self.eps}"


class ModulatedRMSNorm(torch.nn.Module):
    """RMSNorm with a scale and a shift per sample; see ``liger.ops.modulated_rms_norm``.

    Args:
        hidden_size: H, the size of the last dimension.
        eps: added to the mean square.
        cast: order of casts.
        elementwise_affine: False leaves out the weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        *,
        cast: str = "llama",
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.eps, self.cast = hidden_size, eps, cast
        start = torch.ones(hidden_size, device=device, dtype=dtype)
        self.weight = torch.nn.Parameter(start) if elementwise_affine else None

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """(*B, ..., H), (*B, H), (*B, H) -> (*B, ..., H)."""
        return modulated_rms_norm(x, scale, shift, self.weight, eps=self.eps, cast=self.cast)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.hidden_size}, eps={self.eps}, cast={self.cast!r}"


class GroupNorm(torch.nn.Module):
    """GroupNorm with the signature and the parameters of ``torch.nn.GroupNorm``; see ``liger.ops.group_norm``.

    Args:
        num_groups: equal groups of consecutive channels.
        num_channels: C, the size of the second dimension.
        eps: added to the variance.
        affine: False leaves out weight and bias.
        bias: False leaves out the bias alone.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_groups is {num_groups}, which does not divide num_channels, {num_channels}"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        ones, zeros = (make(num_channels, device=device, dtype=dtype) for make in (torch.ones, torch.zeros))
        self.weight = torch.nn.Parameter(ones) if affine else None
        self.bias = torch.nn.Parameter(zeros) if affine and bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, *positions) -> (N, C, *positions)."""
        return group_norm(x, self.weight, self.bias, num_groups=self.num_groups, eps=self.eps)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
