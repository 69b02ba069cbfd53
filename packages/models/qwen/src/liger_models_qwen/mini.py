"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import (
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen2VLConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
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


# -- Models that see ---------------------------------------------------------------------------------------------------
_TOKENS: dict[str, Any] = {
    "image_token_id": 251,
    "video_token_id": 252,
    "vision_start_token_id": 253,
    "vision_end_token_id": 254,
}
_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "out_hidden_size": 128,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 6, 4]}
_TEXT: dict[str, Any] = {**_SMALL, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": _ROPE}


def qwen2_vl() -> Qwen2VLConfig:
    """Layer norms in the tower."""
    vision = {**_VISION, "embed_dim": 64, "hidden_size": 128, "mlp_ratio": 2}
    return Qwen2VLConfig(text_config=_TEXT, vision_config=vision, **_TOKENS)


def qwen2_5_vl() -> Qwen2_5_VLConfig:
    """RMSNorm and gated MLPs in the tower; one of its layers attends within windows."""
    vision = {**_VISION, "window_size": 16, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(text_config=_TEXT, vision_config=vision, **_TOKENS)


def qwen3_vl() -> Qwen3VLConfig:
    """States of the tower's first layer are added to the first layer of the text."""
    return Qwen3VLConfig(text_config=_TEXT, vision_config={**_VISION, "deepstack_visual_indexes": [0]}, **_TOKENS)


def qwen3_vl_moe() -> Qwen3VLMoeConfig:
    """The same; four experts in the first layer, a plain MLP in the second."""
    text = {**_TEXT, **_EXPERTS, "mlp_only_layers": [1]}
    return Qwen3VLMoeConfig(text_config=text, vision_config={**_VISION, "deepstack_visual_indexes": [0]}, **_TOKENS)


def qwen3_5() -> Qwen3_5Config:
    """A layer of linear attention and one of gated attention."""
    return Qwen3_5Config(text_config={**_TEXT, **_HYBRID}, vision_config=_VISION, **_TOKENS)


def qwen3_5_moe() -> Qwen3_5MoeConfig:
    """The same with four experts and a shared one."""
    text = {**_TEXT, **_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 64}
    return Qwen3_5MoeConfig(text_config=text, vision_config=_VISION, **_TOKENS)
