"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import ArceeConfig, Llama4TextConfig, LlamaConfig, SmolLM3Config

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
