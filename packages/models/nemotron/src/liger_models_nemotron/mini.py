"""A config of a model small enough to train in seconds on a CPU."""

from transformers import NemotronConfig


def nemotron() -> NemotronConfig:
    """Half of each head is rotated."""
    return NemotronConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
