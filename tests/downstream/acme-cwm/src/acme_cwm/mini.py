"""A config that trains in seconds."""

from transformers import CwmConfig


def cwm():
    return CwmConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        sliding_window=64,
    )
