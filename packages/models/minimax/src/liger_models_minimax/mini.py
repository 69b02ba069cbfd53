"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import MiniMaxConfig, MiniMaxM2Config

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 32,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_EXPERTS: dict[str, Any] = {**_SMALL, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}


def minimax() -> MiniMaxConfig:
    """One layer of lightning attention and one of full attention; four experts."""
    return MiniMaxConfig(**_EXPERTS, layer_types=["linear_attention", "full_attention"], block_size=16)


def minimax_m2() -> MiniMaxM2Config:
    """Norms on queries and keys; half of each head is rotated."""
    return MiniMaxM2Config(
        **_EXPERTS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    )
