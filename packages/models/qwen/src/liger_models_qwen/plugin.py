"""Qwen 2, Qwen 3 and their mixtures, Qwen 3-Next, and the text parts of Qwen 3.5."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")
EXPERTS = fits.experts(act="silu")
NORM_1P = fits.rms_norm(cast="gemma", eps="eps")
GATED_NORM = fits.gated_rms_norm(norm_before_gate=True)

QWEN2 = ModelPatch(
    model_type="qwen2",
    module="transformers.models.qwen2.modeling_qwen2",
    fits={
        "Qwen2RMSNorm": NORM,
        "Qwen2MLP": MLP,
        "Qwen2Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_qwen.mini:qwen2",
)

QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    module="transformers.models.qwen3.modeling_qwen3",
    fits={
        "Qwen3RMSNorm": NORM,
        "Qwen3MLP": MLP,
        "Qwen3Attention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3",
)

QWEN2_MOE = replace(
    QWEN2,
    model_type="qwen2_moe",
    module="transformers.models.qwen2_moe.modeling_qwen2_moe",
    fits={
        "Qwen2MoeRMSNorm": NORM,
        "Qwen2MoeMLP": MLP,
        "Qwen2MoeExperts": EXPERTS,
        "Qwen2MoeAttention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen2_moe",
)

QWEN3_MOE = replace(
    QWEN2,
    model_type="qwen3_moe",
    module="transformers.models.qwen3_moe.modeling_qwen3_moe",
    fits={
        "Qwen3MoeRMSNorm": NORM,
        "Qwen3MoeMLP": MLP,
        "Qwen3MoeExperts": EXPERTS,
        "Qwen3MoeAttention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_moe",
)

QWEN3_NEXT = replace(
    QWEN2,
    model_type="qwen3_next",
    module="transformers.models.qwen3_next.modeling_qwen3_next",
    fits={
        "Qwen3NextRMSNorm": NORM_1P,
        "Qwen3NextMLP": MLP,
        "Qwen3NextExperts": EXPERTS,
        "Qwen3NextRMSNormGated": GATED_NORM,
        "Qwen3NextAttention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_next",
)

QWEN3_5_TEXT = replace(
    QWEN2,
    model_type="qwen3_5_text",
    module="transformers.models.qwen3_5.modeling_qwen3_5",
    fits={
        "Qwen3_5RMSNorm": NORM_1P,
        "Qwen3_5MLP": MLP,
        "Qwen3_5RMSNormGated": GATED_NORM,
        "Qwen3_5Attention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_5_text",
)

QWEN3_5_MOE_TEXT = replace(
    QWEN2,
    model_type="qwen3_5_moe_text",
    module="transformers.models.qwen3_5_moe.modeling_qwen3_5_moe",
    fits={
        "Qwen3_5MoeRMSNorm": NORM_1P,
        "Qwen3_5MoeMLP": MLP,
        "Qwen3_5MoeExperts": EXPERTS,
        "Qwen3_5MoeRMSNormGated": GATED_NORM,
        "Qwen3_5MoeAttention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_5_moe_text",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the family."""
    return [QWEN2, QWEN3, QWEN2_MOE, QWEN3_MOE, QWEN3_NEXT, QWEN3_5_TEXT, QWEN3_5_MOE_TEXT]
