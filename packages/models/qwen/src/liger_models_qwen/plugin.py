"""Qwen 2, 3, 3-Next and 3.5, their mixtures, and those that see."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")
VISION_ROPE = fits.rope("half", cast="fp32", function="apply_rotary_pos_emb_vision")
LAYER_NORM = fits.layer_norm()
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

# Text models of those that see have a type of their own and no head; the mini is that of the model around them.
QWEN2_VL_TEXT = replace(
    QWEN2,
    model_type="qwen2_vl_text",
    module="transformers.models.qwen2_vl.modeling_qwen2_vl",
    fits={"Qwen2VLRMSNorm": NORM, "Qwen2MLP": MLP, "Qwen2VLAttention": ROPE},
    head=None,
    mini="liger_models_qwen.mini:qwen2_vl",
    images="liger_hf.minis:rows_of_patches",
)

QWEN2_5_VL_TEXT = replace(
    QWEN2_VL_TEXT,
    model_type="qwen2_5_vl_text",
    module="transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    fits={"Qwen2_5_VLRMSNorm": NORM, "Qwen2MLP": MLP, "Qwen2_5_VLAttention": ROPE},
    mini="liger_models_qwen.mini:qwen2_5_vl",
)

QWEN3_VL_TEXT = replace(
    QWEN2_VL_TEXT,
    model_type="qwen3_vl_text",
    module="transformers.models.qwen3_vl.modeling_qwen3_vl",
    fits={"Qwen3VLTextRMSNorm": NORM, "Qwen3VLTextMLP": MLP, "Qwen3VLTextAttention": ROPE},
    mini="liger_models_qwen.mini:qwen3_vl",
)

QWEN3_VL_MOE_TEXT = replace(
    QWEN2_VL_TEXT,
    model_type="qwen3_vl_moe_text",
    module="transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe",
    fits={
        "Qwen3VLMoeTextRMSNorm": NORM,
        "Qwen3VLMoeTextMLP": MLP,
        "Qwen3VLMoeTextExperts": EXPERTS,
        "Qwen3VLMoeTextAttention": ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_vl_moe",
)

QWEN2_VL = replace(
    QWEN2_VL_TEXT,
    model_type="qwen2_vl",
    fits={
        **QWEN2_VL_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "VisionAttention": VISION_ROPE,
        # VisionMlp: a QuickGELU without a gate
    },
    head=QWEN2.head,
)

QWEN2_5_VL = replace(
    QWEN2_VL,
    model_type="qwen2_5_vl",
    module=QWEN2_5_VL_TEXT.module,
    fits={**QWEN2_5_VL_TEXT.fits, "Qwen2_5_VLMLP": MLP, "Qwen2_5_VLVisionAttention": VISION_ROPE},
    mini=QWEN2_5_VL_TEXT.mini,
)

QWEN3_VL = replace(
    QWEN2_VL,
    model_type="qwen3_vl",
    module=QWEN3_VL_TEXT.module,
    fits={
        **QWEN3_VL_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "Qwen3VLVisionAttention": VISION_ROPE,
        # Qwen3VLVisionMLP: a GELU without a gate
    },
    mini=QWEN3_VL_TEXT.mini,
)

QWEN3_VL_MOE = replace(
    QWEN2_VL,
    model_type="qwen3_vl_moe",
    module=QWEN3_VL_MOE_TEXT.module,
    fits={
        **QWEN3_VL_MOE_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "Qwen3VLMoeVisionAttention": VISION_ROPE,
    },
    mini=QWEN3_VL_MOE_TEXT.mini,
)

QWEN3_5 = replace(
    QWEN2_VL,
    model_type="qwen3_5",
    module=QWEN3_5_TEXT.module,
    fits={
        **QWEN3_5_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "Qwen3_5VisionAttention": VISION_ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_5",
)

QWEN3_5_MOE = replace(
    QWEN2_VL,
    model_type="qwen3_5_moe",
    module=QWEN3_5_MOE_TEXT.module,
    fits={
        **QWEN3_5_MOE_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "Qwen3_5MoeVisionAttention": VISION_ROPE,
    },
    mini="liger_models_qwen.mini:qwen3_5_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Qwen family."""
    dense = [QWEN2, QWEN3, QWEN3_5_TEXT]
    mixtures = [QWEN2_MOE, QWEN3_MOE, QWEN3_NEXT, QWEN3_5_MOE_TEXT]
    texts = [QWEN2_VL_TEXT, QWEN2_5_VL_TEXT, QWEN3_VL_TEXT, QWEN3_VL_MOE_TEXT]
    return [*dense, *mixtures, *texts, QWEN2_VL, QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE, QWEN3_5, QWEN3_5_MOE]
