"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    GemmaConfig,
    PaliGemmaConfig,
    VaultGemmaConfig,
)

from liger_hf.minis import IMAGE, pixels_8, with_image

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
}


def gemma() -> GemmaConfig:
    """Multi-query attention: one key head."""
    return GemmaConfig(**_SMALL)


def gemma2() -> Gemma2Config:
    """Soft caps on attention and on the final logits, low enough to matter; one sliding and one full layer."""
    return Gemma2Config(
        **_SMALL,
        query_pre_attn_scalar=32,
        sliding_window=16,
        attn_logit_softcapping=20.0,
        final_logit_softcapping=5.0,
    )


def gemma3_text() -> Gemma3TextConfig:
    """Norms on queries and keys; one sliding and one full layer with different rotary bases."""
    return Gemma3TextConfig(
        **_SMALL,
        query_pre_attn_scalar=32,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    )


def vaultgemma() -> VaultGemmaConfig:
    """As Gemma 2, with norms only in front of attention and MLP."""
    return VaultGemmaConfig(
        **_SMALL,
        query_pre_attn_scalar=32,
        sliding_window=16,
        attn_logit_softcapping=20.0,
        final_logit_softcapping=5.0,
    )


def gemma3n_text() -> Gemma3nTextConfig:
    """A sparse layer; the last two take keys and values of the first two; two streams of hidden states."""
    return Gemma3nTextConfig(
        **_SMALL | {"num_hidden_layers": 4, "intermediate_size": [256] * 4},
        vocab_size_per_layer_input=256,
        hidden_size_per_layer_input=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
        num_kv_shared_layers=2,
        laurel_rank=8,
        altup_num_inputs=2,
        final_logit_softcapping=5.0,
    )


def gemma4_text() -> Gemma4TextConfig:
    """Norms on values too, and a second embedding for each layer."""
    return Gemma4TextConfig(
        **_SMALL | {"global_head_dim": 32},
        vocab_size_per_layer_input=256,
        hidden_size_per_layer_input=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=5.0,
    )


# -- Models that see ---------------------------------------------------------------------------------------------------
_VISION: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def images(ids: Tensor) -> dict[str, Tensor]:
    """An image of four patches of 4 x 4 pixels in each row: four tokens, which see each other."""
    inputs = pixels_8(ids)
    return {**inputs, "token_type_ids": (inputs["input_ids"] == IMAGE).long()}


def gemma3() -> Gemma3Config:
    """A soft cap in the config of the text, which upstream does not apply here."""
    text = {
        **_SMALL,
        "query_pre_attn_scalar": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 5.0,
    }
    return Gemma3Config(text_config=text, vision_config=_VISION, mm_tokens_per_image=4, image_token_index=251)


def paligemma() -> PaliGemmaConfig:
    """Gemma behind a SigLIP tower."""
    text, vision = {**_SMALL, "model_type": "gemma"}, {**_VISION, "model_type": "siglip_vision_model"}
    return PaliGemmaConfig(text_config=text, vision_config=vision, projection_dim=128, image_token_index=251)


def patches(ids: Tensor) -> dict[str, Tensor]:
    """As Gemma 4 takes it: 4 x 4 patches with their positions, pooled to four tokens."""
    inputs = with_image(ids, 16, 3 * 4 * 4)
    positions = torch.tensor([[x, y] for y in range(4) for x in range(4)]).expand(len(ids), -1, -1)
    return {
        "input_ids": inputs["input_ids"],
        "pixel_values": inputs["pixel_values"].sigmoid(),
        "image_position_ids": positions,
        "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long(),
    }


def gemma4() -> Gemma4Config:
    """Norms on queries, keys and values in the tower too; no audio."""
    text = gemma4_text().to_dict()
    vision = {
        **_VISION,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "pooling_kernel_size": 2,
        "position_embedding_size": 16,
    }
    return Gemma4Config(
        text_config=text,
        vision_config=vision,
        audio_config=None,
        image_token_id=251,
        video_token_id=252,
        audio_token_id=250,
    )
