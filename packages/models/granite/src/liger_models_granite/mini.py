"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import GraniteConfig, GraniteMoeConfig, GraniteMoeHybridConfig, GraniteMoeSharedConfig

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_SCALED: dict[str, Any] = {
    **_SMALL,
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
_EXPERTS: dict[str, Any] = {**_SCALED, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}


def granite() -> GraniteConfig:
    """Every multiplier another than 1."""
    return GraniteConfig(**_SCALED)


def granitemoe() -> GraniteMoeConfig:
    """Four experts."""
    return GraniteMoeConfig(**_EXPERTS)


def granitemoeshared() -> GraniteMoeSharedConfig:
    """Four experts and a shared one."""
    return GraniteMoeSharedConfig(**_EXPERTS, shared_intermediate_size=64)


def granitemoehybrid() -> GraniteMoeHybridConfig:
    """A layer of Mamba 2 and one of attention with rotary embedding."""
    return GraniteMoeHybridConfig(
        **_EXPERTS,
        shared_intermediate_size=64,
        layer_types=["mamba", "attention"],
        position_embedding_type="rope",
        mamba_n_heads=8,
        mamba_d_state=16,
        mamba_chunk_size=16,
    )
