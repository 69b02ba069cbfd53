"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import Cohere2Config, Cohere2VisionConfig, CohereConfig

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


def cohere2_vision() -> Cohere2VisionConfig:
    """The same behind a SigLIP tower, whose patches are merged two by two."""
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    return Cohere2VisionConfig(
        text_config=cohere2().to_dict(),
        vision_config=vision,
        image_token_id=251,
        downsample_factor=2,
        alignment_intermediate_size=64,
    )
