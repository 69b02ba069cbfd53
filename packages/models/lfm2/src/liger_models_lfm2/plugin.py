"""LFM2, dense and with experts."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu", gate="w1", up="w3", down="w2", act_fn=None)
ROPE = fits.rope("half")

LFM2 = ModelPatch(
    model_type="lfm2",
    module="transformers.models.lfm2.modeling_lfm2",
    fits={
        "Lfm2RMSNorm": NORM,
        "Lfm2MLP": MLP,
        "Lfm2Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_lfm2.mini:lfm2",
)

LFM2_MOE = replace(
    LFM2,
    model_type="lfm2_moe",
    module="transformers.models.lfm2_moe.modeling_lfm2_moe",
    fits={
        "Lfm2MoeRMSNorm": NORM,
        "Lfm2MoeMLP": MLP,
        "Lfm2MoeExperts": fits.experts(act="silu"),
        "Lfm2MoeAttention": ROPE,
    },
    mini="liger_models_lfm2.mini:lfm2_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the LFM2 family."""
    return [LFM2, LFM2_MOE]
