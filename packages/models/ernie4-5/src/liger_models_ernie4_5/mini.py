"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Ernie4_5_MoeConfig, Ernie4_5Config

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def ernie4_5() -> Ernie4_5Config:
    """Tied head."""
    return Ernie4_5Config(**_SMALL, head_dim=32)


def ernie4_5_moe() -> Ernie4_5_MoeConfig:
    """A plain MLP in the first layer, four experts and a shared one in the second."""
    return Ernie4_5_MoeConfig(**_SMALL, moe_num_experts=4, moe_k=2, moe_intermediate_size=64, moe_num_shared_experts=1)
