"""A config of a model small enough to train in seconds on a CPU."""

from transformers import SeedOssConfig


def seed_oss() -> SeedOssConfig:
    """No dropout, which would be another one in each run."""
    return SeedOssConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        head_dim=32,
        pad_token_id=1,
        attention_dropout=0.0,
        residual_dropout=0.0,
    )
