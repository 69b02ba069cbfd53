"""Configs of models small enough to train in seconds on a CPU."""

from transformers import LlamaConfig


def llama() -> LlamaConfig:
    """Two layers, grouped-query attention, byte-level vocabulary."""
    return LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
