"""The peer's gated MLPs, made from a config: the projections have its names, so checkpoints load."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from liger_kernel import _functions as f
from liger_kernel import _said

SILU = ("silu", "swish")


def _check(module: nn.Module, config: Any) -> None:
    """Raise ValueError unless the config's activation is SiLU."""
    if config.hidden_act not in SILU:
        raise ValueError(f"{type(module).__name__}: hidden_act is {config.hidden_act!r}, expected {' or '.join(SILU)}")


class _GatedMLP(nn.Module):
    """``down_proj(act(gate_proj(x)) * up_proj(x))``."""

    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None:
        super().__init__()
        self.config, self.hidden_size = config, config.hidden_size
        self.intermediate_size = config.intermediate_size if intermediate_size is None else intermediate_size
        self.gate_proj, self.up_proj = (
            nn.Linear(self.hidden_size, self.intermediate_size, bias=bias) for _ in range(2)
        )
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return self.down_proj(self.activation(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        """(..., F), (..., F) -> (..., F)."""
        return f.silu_mul(gate, up)


class LigerSwiGLUMLP(_GatedMLP):
    """That of llama and its kin."""

    def __init__(self, config: Any, intermediate_size: int | None = None) -> None:
        super().__init__(config, intermediate_size)
        _check(self, config)


class LigerQwen3MoeSwiGLUMLP(LigerSwiGLUMLP):
    """That of qwen3_moe; an expert has a size of its own."""


class LigerMLP(LigerSwiGLUMLP):
    """The peer's MLP in one kernel, which here is three matrix products around one."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)


class LigerHunyuanV1SwiGLUMLP(LigerSwiGLUMLP):
    """That of hunyuan, which also knows the number of its layer; ``is_shared_mlp`` does nothing."""

    def __init__(self, config: Any, layer_idx: int | None = None, is_shared_mlp: bool = False) -> None:
        super().__init__(config)
        _said.idle(type(self).__name__, "a shared MLP is as wide as any", is_shared_mlp=(is_shared_mlp, False))
        self.layer_idx = layer_idx


class LigerFalconH1SwiGLUMLP(_GatedMLP):
    """That of falcon_h1, with multipliers of gate and result."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, bias=getattr(config, "mlp_bias", False))
        _check(self, config)
        self.gate_multiplier, self.down_multiplier = map(float, config.mlp_multipliers)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return super().forward(x) * self.down_multiplier

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        """(..., F), (..., F) -> (..., F)."""
        return f.silu_mul(gate, up, self.gate_multiplier)


class LigerFalconH1MLP(LigerFalconH1SwiGLUMLP):
    """The same under the name of the peer's one kernel."""


class LigerBlockSparseTop2MLP(nn.Module):
    """That of mixtral's experts: ``w2(silu(w1(x)) * w3(x))``."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ffn_dim, self.hidden_dim = config.intermediate_size, config.hidden_size
        self.w1 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        _check(self, config)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return self.w2(f.silu_mul(self.w1(x), self.w3(x)))  # type: ignore[no-any-return]


class LigerPhi3SwiGLUMLP(nn.Module):
    """That of phi3 and glm4, with gate and up in one projection, which is not split."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.hidden_size, self.intermediate_size = config, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Linear(self.hidden_size, 2 * self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)
        _check(self, config)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return self.down_proj(f.silu_mul_packed(self.gate_up_proj(x)))  # type: ignore[no-any-return]


class LigerGEGLUMLP(_GatedMLP):
    """That of gemma, with GELU's tanh form."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        """(..., F), (..., F) -> (..., F)."""
        return f.gelu_mul(gate, up)


class LigerGEGLUMLPForGemma4(LigerGEGLUMLP):
    """That of gemma4; where ``use_double_wide_mlp``, layers that share keys and values are twice as wide."""

    def __init__(self, config: Any, layer_idx: int | None = None) -> None:
        shared = getattr(config, "num_kv_shared_layers", 0)
        wide = getattr(config, "use_double_wide_mlp", False) and shared > 0
        twice = wide and layer_idx is not None and layer_idx >= config.num_hidden_layers - shared
        _GatedMLP.__init__(self, config, config.intermediate_size * (2 if twice else 1))
