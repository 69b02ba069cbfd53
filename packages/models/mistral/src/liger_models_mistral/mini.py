"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Ministral3Config, MinistralConfig, MistralConfig, MixtralConfig

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


def mistral() -> MistralConfig:
    """A sliding window that is shorter than the tests' texts."""
    return MistralConfig(**_SMALL, sliding_window=16)


def ministral() -> MinistralConfig:
    """One sliding and one full layer."""
    return MinistralConfig(**_SMALL, sliding_window=16, layer_types=["sliding_attention", "full_attention"])


def ministral3() -> Ministral3Config:
    """Queries that are scaled by their position, from the ninth token on."""
    scaled = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.1,
    }
    return Ministral3Config(**_SMALL, pad_token_id=0, rope_parameters=scaled)


def mixtral() -> MixtralConfig:
    """Four experts, of which two see a token."""
    return MixtralConfig(**{**_SMALL, "intermediate_size": 64}, num_local_experts=4, num_experts_per_tok=2)
