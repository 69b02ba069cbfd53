"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Olmo2Config, Olmo3Config, OlmoConfig, OlmoeConfig, OlmoHybridConfig

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def olmo() -> OlmoConfig:
    """Norms without parameters."""
    return OlmoConfig(**_SMALL)


def olmo2() -> Olmo2Config:
    """Norms behind attention and MLP, and on queries and keys."""
    return Olmo2Config(**_SMALL)


def olmo3() -> Olmo3Config:
    """The same; one sliding and one full layer."""
    return Olmo3Config(**_SMALL, sliding_window=16, layer_types=["sliding_attention", "full_attention"])


def olmoe() -> OlmoeConfig:
    """Four experts."""
    return OlmoeConfig(**{**_SMALL, "intermediate_size": 64}, num_experts=4, num_experts_per_tok=2)


def olmo_hybrid() -> OlmoHybridConfig:
    """A layer of linear attention and one of full attention."""
    return OlmoHybridConfig(
        **_SMALL,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=32,
    )
