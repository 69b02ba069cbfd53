"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

import torch
from torch import Tensor
from transformers import LlavaConfig, LlavaNextConfig

from liger_hf.minis import with_image

_TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_VISION: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def llava() -> LlavaConfig:
    """Llama behind a CLIP tower, whose last layer is not used."""
    return LlavaConfig(text_config=_TEXT, vision_config=_VISION, image_token_index=251)


def tiles(ids: Tensor) -> dict[str, Tensor]:
    """A small image and one tile in each row: four tokens each, and one at the end of each of two lines."""
    return {**with_image(ids, 2, 3, 8, 8, first=2, tokens=10), "image_sizes": torch.tensor([[8, 8]] * len(ids))}


def llava_next() -> LlavaNextConfig:
    """An image may be cut into tiles."""
    return LlavaNextConfig(
        text_config=_TEXT, vision_config=_VISION, image_token_index=251, image_grid_pinpoints=[[8, 8]]
    )
