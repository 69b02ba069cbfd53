"""GLM 4, GLM 4.5 and later mixtures, and those that see."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
PACKED_MLP = fits.packed_mlp(act="silu")
EXPERTS = fits.experts(act="silu")
ROPE = fits.rope("interleaved", tables="first half")
VISION_ROPE = fits.rope("half", cast="fp32", function="apply_rotary_pos_emb_vision")
LAYER_NORM = fits.layer_norm()
MLA_ROPE = fits.rope("deinterleave", tables="first half", function="apply_rotary_pos_emb_interleave")

GLM4 = ModelPatch(
    model_type="glm4",
    module="transformers.models.glm4.modeling_glm4",
    fits={
        "Glm4RMSNorm": NORM,
        "Glm4MLP": PACKED_MLP,
        "Glm4Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_glm.mini:glm4",
)

GLM = replace(
    GLM4,
    model_type="glm",
    module="transformers.models.glm.modeling_glm",
    fits={
        "GlmRMSNorm": NORM,
        "GlmMLP": PACKED_MLP,
        "GlmAttention": ROPE,
    },
    mini="liger_models_glm.mini:glm",
)

GLM4_MOE = replace(
    GLM4,
    model_type="glm4_moe",
    module="transformers.models.glm4_moe.modeling_glm4_moe",
    fits={
        "Glm4MoeRMSNorm": NORM,
        "Glm4MoeMLP": MLP,
        "Glm4MoeExperts": EXPERTS,
        "Glm4MoeAttention": fits.rope("half"),
    },
    mini="liger_models_glm.mini:glm4_moe",
)

GLM4_MOE_LITE = replace(
    GLM4,
    model_type="glm4_moe_lite",
    module="transformers.models.glm4_moe_lite.modeling_glm4_moe_lite",
    fits={
        "Glm4MoeLiteRMSNorm": NORM,
        "Glm4MoeLiteMLP": MLP,
        "Glm4MoeLiteExperts": EXPERTS,
        "Glm4MoeLiteAttention": MLA_ROPE,
    },
    mini="liger_models_glm.mini:glm4_moe_lite",
)

GLM_MOE_DSA = replace(
    GLM4,
    model_type="glm_moe_dsa",
    module="transformers.models.glm_moe_dsa.modeling_glm_moe_dsa",
    fits={
        "GlmMoeDsaRMSNorm": NORM,
        "GlmMoeDsaMLP": MLP,
        "GlmMoeDsaExperts": EXPERTS,
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
        "GlmMoeDsaAttention": MLA_ROPE,
    },
    mini="liger_models_glm.mini:glm_moe_dsa",
)

GLM4V = replace(
    GLM4,
    model_type="glm4v",
    module="transformers.models.glm4v.modeling_glm4v",
    fits={
        "Glm4vRMSNorm": NORM,
        "Glm4vTextMLP": PACKED_MLP,
        "Glm4vTextAttention": fits.rope("interleaved"),
        "Glm4VisionMlp": MLP,
        "Glm4vVisionAttention": VISION_ROPE,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        # Glm4vVisionPatchMerger: gated, with a norm in front of it
    },
    mini="liger_models_glm.mini:glm4v",
    images="liger_hf.minis:rows_of_patches",
)

GLM4V_MOE = replace(
    GLM4V,
    model_type="glm4v_moe",
    module="transformers.models.glm4v_moe.modeling_glm4v_moe",
    fits={
        "Glm4vMoeTextRMSNorm": NORM,
        "Glm4vMoeTextMLP": MLP,
        "Glm4vMoeTextExperts": EXPERTS,
        "Glm4vMoeTextAttention": fits.rope("half"),
        "Glm4vMoeRMSNorm": NORM,
        "Glm4vMoeisionMlp": MLP,
        "Glm4vMoeVisionAttention": VISION_ROPE,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
    },
    mini="liger_models_glm.mini:glm4v_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the GLM family."""
    return [GLM4, GLM, GLM4_MOE, GLM4_MOE_LITE, GLM_MOE_DSA, GLM4V, GLM4V_MOE]
