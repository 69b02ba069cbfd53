"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    VaultGemmaConfig,
)

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
