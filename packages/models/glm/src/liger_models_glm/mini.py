"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import (
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    Glm4vConfig,
    Glm4vMoeConfig,
    GlmConfig,
    GlmMoeDsaConfig,
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
    "pad_token_id": 0,
}
_EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LATENT: dict[str, Any] = {
    **_SMALL,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}


def glm() -> GlmConfig:
    """Half of each head is rotated."""
    return GlmConfig(**_SMALL)


def glm4() -> Glm4Config:
    """The same, with norms behind attention and MLP."""
    return Glm4Config(**_SMALL)


def glm4_moe() -> Glm4MoeConfig:
    """A plain MLP in the first layer, four experts and a shared one in the second; norms on queries and keys."""
    return Glm4MoeConfig(**_SMALL, **_EXPERTS, use_qk_norm=True)


def glm4_moe_lite() -> Glm4MoeLiteConfig:
    """The same with latent attention."""
    return Glm4MoeLiteConfig(**_LATENT, mlp_layer_types=["dense", "sparse"])


def glm_moe_dsa() -> GlmMoeDsaConfig:
    """The same, and an indexer that picks the tokens to attend to."""
    return GlmMoeDsaConfig(
        **_LATENT, mlp_layer_types=["dense", "sparse"], index_topk=8, index_head_dim=32, index_n_heads=2
    )


# -- Models that see ---------------------------------------------------------------------------------------------------
_TOKENS: dict[str, Any] = {
    "image_token_id": 251,
    "video_token_id": 252,
    "image_start_token_id": 253,
    "image_end_token_id": 254,
    "video_start_token_id": 250,
    "video_end_token_id": 255,
}
_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "out_hidden_size": 128,
    "num_heads": 2,
    "patch_size": 4,
    "image_size": 16,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}


def glm4v() -> Glm4vConfig:
    """Half of each head is rotated, in three sections; RMSNorm and gated MLPs in the tower."""
    return Glm4vConfig(text_config={**_SMALL, "rope_parameters": _ROPE}, vision_config=_VISION, **_TOKENS)


def glm4v_moe() -> Glm4vMoeConfig:
    """The same; a plain MLP in the first layer, four experts and a shared one in the second."""
    text = {**_SMALL, **_EXPERTS, "rope_parameters": _ROPE}
    return Glm4vMoeConfig(text_config=text, vision_config=_VISION, **_TOKENS)
