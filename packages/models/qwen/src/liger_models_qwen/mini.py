"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import (
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 32,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}


def qwen2() -> Qwen2Config:
    """Biases in the projections of the attention."""
    return Qwen2Config(**{**_SMALL, "tie_word_embeddings": True})


def qwen3() -> Qwen3Config:
    """Norms on queries and keys."""
    return Qwen3Config(**_SMALL)


def qwen2_moe() -> Qwen2MoeConfig:
    """Four experts and a shared one in the first layer, a plain MLP in the second."""
    return Qwen2MoeConfig(**_SMALL, **_EXPERTS, shared_expert_intermediate_size=64, mlp_only_layers=[1])


def qwen3_moe() -> Qwen3MoeConfig:
    """Four experts in the first layer, a plain MLP in the second."""
    return Qwen3MoeConfig(**_SMALL, **_EXPERTS, norm_topk_prob=True, mlp_only_layers=[1])


def qwen3_next() -> Qwen3NextConfig:
    """A layer of linear attention and one of gated attention; experts with a shared one."""
    return Qwen3NextConfig(**_SMALL, **_EXPERTS, **_HYBRID, shared_expert_intermediate_size=64)


def qwen3_5_text() -> Qwen3_5TextConfig:
    """The same without experts."""
    return Qwen3_5TextConfig(**_SMALL, **_HYBRID)


def qwen3_5_moe_text() -> Qwen3_5MoeTextConfig:
    """With experts."""
    return Qwen3_5MoeTextConfig(**_SMALL, **_EXPERTS, **_HYBRID, shared_expert_intermediate_size=64)
