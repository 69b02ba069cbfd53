"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from torch import Tensor
from transformers import Idefics3Config, SmolVLMConfig

from liger_hf.minis import with_image

_SMALL: dict[str, Any] = {
    "text_config": {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    },
    "image_token_id": 251,
    "scale_factor": 2,
    "pad_token_id": 0,
}


def images(ids: Tensor) -> dict[str, Tensor]:
    """One image of 16 patches of 4 x 4 pixels in each row: four tokens."""
    return with_image(ids, 1, 3, 16, 16)


def smolvlm() -> SmolVLMConfig:
    """Two layers of text and two of vision."""
    return SmolVLMConfig(**_SMALL)


def idefics3() -> Idefics3Config:
    """The same."""
    return Idefics3Config(**_SMALL)
