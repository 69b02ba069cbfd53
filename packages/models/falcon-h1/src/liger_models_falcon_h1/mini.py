"""A config of a model small enough to train in seconds on a CPU."""

from transformers import FalconH1Config


def falcon_h1() -> FalconH1Config:
    """Mamba 2 beside attention in each layer; every multiplier another than 1."""
    return FalconH1Config(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=2,
        mamba_chunk_size=16,
        mamba_rms_norm=True,
        lm_head_multiplier=0.5,
        embedding_multiplier=2.0,
        mlp_multipliers=[0.8, 0.6],
        key_multiplier=0.7,
        attention_in_multiplier=0.9,
        attention_out_multiplier=0.8,
        ssm_multipliers=[0.9, 0.8, 0.7, 0.6, 0.5],
        ssm_in_multiplier=1.2,
        ssm_out_multiplier=0.5,
    )
