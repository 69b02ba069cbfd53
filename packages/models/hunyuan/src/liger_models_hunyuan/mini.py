"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import HunYuanDenseV1Config, HunYuanMoEV1Config

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 32,
    "pad_token_id": 0,
}


def hunyuan_v1_dense() -> HunYuanDenseV1Config:
    """Norms on queries and keys, behind the rotation."""
    return HunYuanDenseV1Config(**_SMALL)


def hunyuan_v1_moe() -> HunYuanMoEV1Config:
    """Four experts and a shared one."""
    return HunYuanMoEV1Config(**{**_SMALL, "intermediate_size": 64}, num_experts=4, moe_topk=2)
