"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Phi3Config, Phi4MultimodalConfig, PhiConfig, PhimoeConfig

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


def phi3() -> Phi3Config:
    """Rotary embedding of three quarters of each head, as in Phi-4-mini."""
    return Phi3Config(
        **_SMALL, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    )


def phi() -> PhiConfig:
    """Attention and MLP side by side; half of each head is rotated."""
    return PhiConfig(**_SMALL, qk_layernorm=True)


def phimoe() -> PhimoeConfig:
    """Four experts, of which two see a token; the router draws where two tie, and by the midpoint rule."""
    return PhimoeConfig(**_SMALL, num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.0)


def phi4_multimodal() -> Phi4MultimodalConfig:
    """With a small tower for images and one for sound, which text does not use."""
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "crop_size": 16,
        "patch_size": 4,
        "image_token_id": 251,
    }
    audio = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_blocks": 1,
        "num_attention_heads": 2,
        "ext_pw_out_channel": 64,
        "depthwise_separable_out_channel": 64,
        "nemo_conv_channels": 64,
        "audio_token_id": 252,
    }
    return Phi4MultimodalConfig(**_SMALL, vision_config=vision, audio_config=audio)
