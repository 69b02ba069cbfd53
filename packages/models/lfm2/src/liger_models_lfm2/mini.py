"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Lfm2Config, Lfm2MoeConfig

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


def lfm2() -> Lfm2Config:
    """A layer with a short convolution and one with attention."""
    return Lfm2Config(**_SMALL, layer_types=["conv", "full_attention"], block_multiple_of=32)


def lfm2_moe() -> Lfm2MoeConfig:
    """The same; a plain MLP in the first layer, four experts in the second."""
    return Lfm2MoeConfig(
        **_SMALL,
        layer_types=["conv", "full_attention"],
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    )
