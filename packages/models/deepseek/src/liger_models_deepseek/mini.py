"""Configs of models small enough to train in seconds on a CPU."""

from typing import Any

from transformers import DeepseekV2Config, DeepseekV3Config, DeepseekV4Config

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
}
_LATENT: dict[str, Any] = {
    **_SMALL,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}


def deepseek_v2() -> DeepseekV2Config:
    """Latent attention; a plain MLP in the first layer, experts in the second."""
    return DeepseekV2Config(**_LATENT, first_k_dense_replace=1)


def deepseek_v3() -> DeepseekV3Config:
    """The same, experts in two groups."""
    return DeepseekV3Config(**_LATENT, first_k_dense_replace=1, n_group=2, topk_group=1)


def deepseek_v4() -> DeepseekV4Config:
    """A layer that attends within a window and one that would compress 128 tokens; hyper-connections."""
    return DeepseekV4Config(
        **_SMALL,
        layer_types=["sliding_attention", "heavily_compressed_attention"],
        head_dim=32,
        q_lora_rank=64,
        o_groups=2,
        o_lora_rank=32,
        hc_mult=2,
        sliding_window=16,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=8,
        hc_sinkhorn_iters=3,
        mlp_layer_types=["moe", "moe"],  # hashed ones send each token to the same expert until they are loaded
    )
