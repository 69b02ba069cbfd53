"""Falcon-H1."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

FALCON_H1 = ModelPatch(
    model_type="falcon_h1",
    module="transformers.models.falcon_h1.modeling_falcon_h1",
    fits={
        "FalconH1RMSNorm": fits.rms_norm(cast="llama"),
        "FalconH1MLP": fits.gated_mlp(act="silu", multipliers=True),
        "FalconH1RMSNormGated": fits.gated_rms_norm(norm_before_gate=True, cast="fp32-weight", groups="n_groups"),
        "FalconH1Attention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_falcon_h1.mini:falcon_h1",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register Falcon-H1."""
    return [FALCON_H1]
