"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Exaone4Config, ExaoneMoeConfig

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "sliding_window": 16,
}


def exaone4() -> Exaone4Config:
    """One sliding layer, and one full layer that does not rotate."""
    return Exaone4Config(**_SMALL, layer_types=["sliding_attention", "full_attention"])


def exaone_moe() -> ExaoneMoeConfig:
    """The same; a plain MLP in the first layer, four experts and a shared one in the second."""
    return ExaoneMoeConfig(
        **_SMALL,
        layer_types=["sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        num_shared_experts=1,
    )
