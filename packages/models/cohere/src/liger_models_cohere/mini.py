"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Cohere2Config, CohereConfig

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def cohere() -> CohereConfig:
    """Norms on queries and keys with a weight for each head; tied head and scaled logits."""
    return CohereConfig(**_SMALL, use_qk_norm=True, logit_scale=0.5)


def cohere2() -> Cohere2Config:
    """One sliding layer, and one full layer that does not rotate."""
    return Cohere2Config(
        **_SMALL, logit_scale=0.5, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
    )
