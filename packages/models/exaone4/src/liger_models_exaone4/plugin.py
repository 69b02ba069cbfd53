"""EXAONE 4 and K-EXAONE."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")

EXAONE4 = ModelPatch(
    model_type="exaone4",
    module="transformers.models.exaone4.modeling_exaone4",
    fits={
        "Exaone4RMSNorm": NORM,
        "Exaone4MLP": MLP,
        "Exaone4Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_exaone4.mini:exaone4",
)

EXAONE_MOE = replace(
    EXAONE4,
    model_type="exaone_moe",
    module="transformers.models.exaone_moe.modeling_exaone_moe",
    fits={
        "ExaoneMoeRMSNorm": NORM,
        "ExaoneMoeMLP": MLP,
        "ExaoneMoeExperts": fits.experts(act="silu"),
        "ExaoneMoeAttention": ROPE,
    },
    mini="liger_models_exaone4.mini:exaone_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the EXAONE 4 family."""
    return [EXAONE4, EXAONE_MOE]
