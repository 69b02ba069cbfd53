"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

import torch
from torch import Tensor
from transformers import Ministral3Config, MinistralConfig, Mistral3Config, MistralConfig, MixtralConfig

from liger_hf.minis import pixels_16

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


def images(ids: Tensor) -> dict[str, Tensor]:
    """An image of 16 patches of 4 x 4 pixels in each row, with its size: four tokens."""
    return {**pixels_16(ids), "image_sizes": torch.tensor([[16, 16]] * len(ids))}


def mistral3() -> Mistral3Config:
    """Mistral behind a Pixtral tower, whose patches are merged two by two."""
    vision = {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 32,
        "image_size": 16,
        "patch_size": 4,
        "hidden_act": "silu",
    }
    text = {**_SMALL, "model_type": "mistral"}
    return Mistral3Config(text_config=text, vision_config=vision, image_token_index=251)
