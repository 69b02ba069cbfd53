"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

import torch
from torch import Tensor
from transformers import ArceeConfig, Llama4Config, Llama4TextConfig, LlamaConfig, MllamaConfig, SmolLM3Config
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama() -> LlamaConfig:
    """Two layers, grouped-query attention, byte-level vocabulary."""
    return LlamaConfig(**_SMALL)


def smollm3() -> SmolLM3Config:
    """The second layer does not rotate."""
    return SmolLM3Config(**_SMALL, pad_token_id=0, no_rope_layers=[1, 0])


def arcee() -> ArceeConfig:
    """An MLP without a gate."""
    return ArceeConfig(**_SMALL)


def llama4_text() -> Llama4TextConfig:
    """A layer with a plain MLP that attends within chunks, and one with experts that does not rotate."""
    return Llama4TextConfig(
        **_SMALL,
        intermediate_size_mlp=256,
        head_dim=32,
        num_local_experts=2,
        moe_layers=[1],
        no_rope_layers=[1, 0],
        attention_chunk_size=16,
        floor_scale=8,
    )


def llama4() -> Llama4Config:
    """The same behind a tower of 16 patches, which are shuffled into four tokens.

    In transformers 5.24 the forward of this model always fails: ``'MoeCausalLMOutputWithPast' object has no attribute
    'image_outputs'``. Where that is so, the attribute is added to upstream's class, or no check could run.
    """
    if not hasattr(MoeCausalLMOutputWithPast, "image_outputs"):
        MoeCausalLMOutputWithPast.image_outputs = None
    vision = {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "vision_output_dim": 64,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
    }
    return Llama4Config(text_config=llama4_text().to_dict(), vision_config=vision, image_token_index=251)


def images(ids: Tensor) -> dict[str, Tensor]:
    """An image of one tile of 16 patches of 4 x 4 pixels in each row, to which all tokens attend."""
    rows = len(ids)
    return {
        "input_ids": ids,
        "pixel_values": torch.randn(rows, 1, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0)),
        "aspect_ratio_ids": torch.ones(rows, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(rows, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(rows, ids.shape[1], 1, 1, dtype=torch.long),
    }


def mllama() -> MllamaConfig:
    """Two layers of self-attention, between them one that attends to the image."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = {**_SMALL, "num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 0, "rope_parameters": rope}
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "max_num_tiles": 1,
        "supported_aspect_ratios": [[1, 1]],
        "intermediate_layers_indices": [0],
        "vision_output_dim": 128,
    }
    return MllamaConfig(text_config=text, vision_config=vision, image_token_index=251)
