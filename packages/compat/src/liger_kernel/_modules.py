"""The peer's modules with one input: constructors, parameters and their names as there, computed by ``liger.ops``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from liger_kernel import _functions as f
from liger_kernel import _said

BIAS = "there is always a bias, and it starts at 0"
START = {"ones": torch.ones, "zeros": torch.zeros}


def _start(init_fn: str, size: int) -> nn.Parameter:
    """A parameter (size,).

    Raises:
        ValueError: ``init_fn`` is neither "ones" nor "zeros".
    """
    if init_fn not in START:
        raise ValueError(f"init_fn is {init_fn!r}, expected one of {', '.join(START)}")
    return nn.Parameter(START[init_fn](size))


# -- RMSNorm -----------------------------------------------------------------------------------------------------------
class LigerRMSNorm(nn.Module):
    """RMSNorm over the last dimension.

    Args:
        hidden_size: H.
        eps: added to the mean square.
        offset: added to the weight.
        casting_mode: "llama", "gemma" or "none", as ``cast`` of ``liger.ops.rms_norm``.
        init_fn: where the weight starts, "ones" or "zeros".
        in_place, row_mode: about memory and launches in the peer; nothing here is computed in place, and asking for it
            is said once.
        elementwise_affine: False leaves out the weight.
    """

    OFFSET, CASTING_MODE, INIT_FN = 0.0, "llama", "ones"

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float | None = None,
        casting_mode: str | None = None,
        init_fn: str | None = None,
        in_place: bool = False,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        _said.idle(type(self).__name__, f.OURS, row_mode=(row_mode, None), in_place=(in_place, False))
        self.variance_epsilon = eps
        self.offset = self.OFFSET if offset is None else offset
        self.casting_mode = self.CASTING_MODE if casting_mode is None else casting_mode
        start = self.INIT_FN if init_fn is None else init_fn
        self.weight = _start(start, hidden_size) if elementwise_affine else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return f.rms_norm(hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"{shape}, eps={self.variance_epsilon}, offset={self.offset}, casting_mode={self.casting_mode!r}"


class LigerRMSNormForGemma(LigerRMSNorm):
    """That of gemma: 1 is added to the weight, and rounding comes last."""

    OFFSET, CASTING_MODE, INIT_FN = 1.0, "gemma", "zeros"


class LigerRMSNormForGemma2(LigerRMSNormForGemma):
    """That of gemma2."""


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma):
    """That of qwen3_next."""


class LigerRMSNormForGemma3(LigerRMSNormForGemma):
    """That of gemma3, whose first argument is called ``dim``."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float | None = None,
        casting_mode: str | None = None,
        init_fn: str | None = None,
        in_place: bool = False,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """That of gemma4, also without a weight."""

    CASTING_MODE = "gemma"

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float | None = None,
        casting_mode: str | None = None,
        init_fn: str | None = None,
        in_place: bool = False,
        with_scale: bool = True,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale)


class LigerRMSNormForOlmo2(LigerRMSNorm):
    """That of olmo2 in the peer, which rounds before the weight; models of transformers round after it."""


class LigerRMSNormForGlm4(LigerRMSNorm):
    """That of glm4."""


class LigerFusedAddRMSNorm(LigerRMSNorm):
    """Residual sum and RMSNorm of it."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """(..., H), (..., H) -> normalised sum and sum."""
        eps, offset, casting_mode = self.variance_epsilon, self.offset, self.casting_mode
        assert self.weight is not None
        return f.fused_add_rms_norm(hidden_states, residual, self.weight, eps, offset, casting_mode)


class LigerModulatedRMSNorm(LigerRMSNorm):
    """RMSNorm times ``1 + scale`` plus ``shift``."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(
            hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=elementwise_affine
        )

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(B, ..., H), (B, H) or (H,), the same -> (B, ..., H)."""
        eps, offset, casting_mode = self.variance_epsilon, self.offset, self.casting_mode
        return f.modulated_rms_norm(hidden_states, self.weight, scale, shift, eps, offset, casting_mode)


# -- Other norms -------------------------------------------------------------------------------------------------------
class LigerLayerNorm(nn.Module):
    """LayerNorm with a bias that is always there and starts at 0; the peer's starts at random for ``bias=True``.

    Args:
        hidden_size: H.
        eps: added to the variance.
        bias: does nothing.
        init_fn: where the weight starts, "ones" or "zeros".
        impl, mode, backend: do nothing.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        bias: bool = False,
        init_fn: str = "ones",
        impl: str | None = None,
        mode: str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        _said.idle(type(self).__name__, BIAS, bias=(bias, False))
        _said.idle(type(self).__name__, f.CHOSEN, impl=(impl, None), mode=(mode, None), backend=(backend, None))
        self.hidden_size, self.variance_epsilon = hidden_size, eps
        self.weight, self.bias = _start(init_fn, hidden_size), _start("zeros", hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return f.layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.hidden_size}, eps={self.variance_epsilon}"


class LigerGroupNorm(nn.Module):
    """GroupNorm; channels come before groups. The bias is always there and starts at 0, also for ``bias=True``.

    Args:
        num_channels: C.
        num_groups: number of groups, which divides C.
        eps: added to the variance.
        bias: does nothing.
        init_fn: where the weight starts, "ones" or "zeros".
    """

    def __init__(
        self, num_channels: int, num_groups: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ) -> None:
        super().__init__()
        _said.idle(type(self).__name__, BIAS, bias=(bias, False))
        self.num_channels, self.num_groups, self.variance_epsilon = num_channels, num_groups, eps
        self.weight, self.bias = _start(init_fn, num_channels), _start("zeros", num_channels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(N, C, ...) -> (N, C, ...)."""
        sizes = (self.num_channels, self.num_groups, self.variance_epsilon)
        return f.group_norm(hidden_states, self.weight, self.bias, *sizes)

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"{self.num_channels}, {self.num_groups}, eps={self.variance_epsilon}"


class LigerPolyNorm(nn.Module):
    """A polynomial of normalised powers: weights (3,) that start at 1/3, a scalar bias that starts at 1."""

    def __init__(self, eps: float = 1e-6, in_place: bool = False) -> None:
        super().__init__()
        _said.idle(type(self).__name__, f.OURS, in_place=(in_place, False))
        self.variance_epsilon = eps
        self.weight, self.bias = nn.Parameter(torch.full((3,), 1 / 3)), nn.Parameter(torch.tensor(1.0))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return f.poly_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)


class LigerDyT(nn.Module):
    """Dynamic tanh with parameters alpha, gamma and beta."""

    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), init_alpha))
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size)) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return f.dyt(x, self.alpha, self.gamma, self.beta)


# -- Activations -------------------------------------------------------------------------------------------------------
class LigerReLUSquared(nn.Module):
    """``relu(x) ** 2``."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        return f.relu_squared(x)


class LigerSoftmax(nn.Module):
    """Softmax over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., V) -> (..., V)."""
        return f.softmax(x)


class LigerSparsemax(nn.Module):
    """Sparsemax along ``dim``."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """(..., V) -> (..., V)."""
        return f.sparsemax(x, self.dim)
