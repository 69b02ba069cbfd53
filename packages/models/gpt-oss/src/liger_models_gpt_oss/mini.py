"""A config of a model small enough to train in seconds on a CPU."""

from transformers import GptOssConfig


def gpt_oss() -> GptOssConfig:
    """Four experts; one sliding and one full layer."""
    return GptOssConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
