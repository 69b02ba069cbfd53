"""OLMo 1 to 3, OLMoE and OLMo Hybrid."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="fp32-weight")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half", cast="output")

OLMO = ModelPatch(
    model_type="olmo",
    module="transformers.models.olmo.modeling_olmo",
    fits={
        "OlmoLayerNorm": fits.layer_norm(eps=1e-5, fp32=True),
        "OlmoMLP": MLP,
        "OlmoAttention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_olmo.mini:olmo",
)

OLMO2 = replace(
    OLMO,
    model_type="olmo2",
    module="transformers.models.olmo2.modeling_olmo2",
    fits={
        "Olmo2RMSNorm": NORM,
        "Olmo2MLP": MLP,
        "Olmo2Attention": ROPE,
    },
    mini="liger_models_olmo.mini:olmo2",
)

OLMO3 = replace(
    OLMO,
    model_type="olmo3",
    module="transformers.models.olmo3.modeling_olmo3",
    fits={
        "Olmo3RMSNorm": NORM,
        "Olmo3MLP": MLP,
        "Olmo3Attention": ROPE,
    },
    mini="liger_models_olmo.mini:olmo3",
)

OLMOE = replace(
    OLMO,
    model_type="olmoe",
    module="transformers.models.olmoe.modeling_olmoe",
    fits={
        "OlmoeRMSNorm": fits.rms_norm(cast="llama"),
        "OlmoeExperts": fits.experts(act="silu"),
        "OlmoeAttention": fits.rope("half"),
    },
    mini="liger_models_olmo.mini:olmoe",
)

OLMO_HYBRID = replace(
    OLMO,
    model_type="olmo_hybrid",
    module="transformers.models.olmo_hybrid.modeling_olmo_hybrid",
    fits={
        "OlmoHybridRMSNorm": NORM,
        "OlmoHybridMLP": MLP,
        "OlmoHybridRMSNormGated": fits.gated_rms_norm(norm_before_gate=True),
        "OlmoHybridAttention": ROPE,
    },
    mini="liger_models_olmo.mini:olmo_hybrid",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the OLMo family."""
    return [OLMO, OLMO2, OLMO3, OLMOE, OLMO_HYBRID]
