"""A config of a model small enough to train in seconds on a CPU."""

import torch
from torch import Tensor
from transformers import InternVLConfig


def images(ids: Tensor) -> dict[str, Tensor]:
    """An image of 16 patches of 4 x 4 pixels in each row: four tokens."""
    ids = ids.clone()
    ids[:, 3:7] = 251
    pixels = torch.randn(len(ids), 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "pixel_values": pixels}


def internvl() -> InternVLConfig:
    """Norms on queries and keys of the tower, as in the largest model."""
    text = {
        "model_type": "qwen2",
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": (16, 16),
        "patch_size": (4, 4),
        "use_qk_norm": True,
    }
    return InternVLConfig(text_config=text, vision_config=vision, image_token_id=251, image_seq_length=4)
