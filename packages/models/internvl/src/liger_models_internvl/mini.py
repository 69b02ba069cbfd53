"""A config of a model small enough to train in seconds on a CPU."""

from transformers import InternVLConfig


def internvl() -> InternVLConfig:
    """Norms on queries and keys of the tower, as in the largest model."""
    text = {
        "model_type": "qwen2",
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": (16, 16),
        "patch_size": (4, 4),
        "use_qk_norm": True,
    }
    return InternVLConfig(text_config=text, vision_config=vision, image_token_id=251, image_seq_length=4)
