"""Seed-OSS."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

SEED_OSS = ModelPatch(
    model_type="seed_oss",
    module="transformers.models.seed_oss.modeling_seed_oss",
    fits={
        "SeedOssRMSNorm": fits.rms_norm(cast="llama"),
        "SeedOssMLP": fits.gated_mlp(act="silu", residual="residual_dropout"),
        "SeedOssAttention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_seed_oss.mini:seed_oss",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register Seed-OSS."""
    return [SEED_OSS]
