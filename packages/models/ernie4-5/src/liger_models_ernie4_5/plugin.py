"""ERNIE 4.5, dense and with experts."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("interleaved", tables="first half", cast="fp32")

ERNIE4_5 = ModelPatch(
    model_type="ernie4_5",
    module="transformers.models.ernie4_5.modeling_ernie4_5",
    fits={
        "Ernie4_5RMSNorm": NORM,
        "Ernie4_5MLP": MLP,
        "Ernie4_5Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_ernie4_5.mini:ernie4_5",
)

ERNIE4_5_MOE = replace(
    ERNIE4_5,
    model_type="ernie4_5_moe",
    module="transformers.models.ernie4_5_moe.modeling_ernie4_5_moe",
    fits={
        "Ernie4_5_MoeRMSNorm": NORM,
        "Ernie4_5_MoeMLP": MLP,
        "Ernie4_5_MoeExperts": fits.experts(act="silu"),
        "Ernie4_5_MoeAttention": ROPE,
    },
    mini="liger_models_ernie4_5.mini:ernie4_5_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the ERNIE 4.5 family."""
    return [ERNIE4_5, ERNIE4_5_MOE]
