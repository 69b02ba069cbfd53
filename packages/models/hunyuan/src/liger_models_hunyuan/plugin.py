"""Hunyuan v1, dense and with experts."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")

HUNYUAN_V1_DENSE = ModelPatch(
    model_type="hunyuan_v1_dense",
    module="transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense",
    fits={
        "HunYuanDenseV1RMSNorm": NORM,
        "HunYuanDenseV1MLP": MLP,
        "HunYuanDenseV1Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_hunyuan.mini:hunyuan_v1_dense",
)

HUNYUAN_V1_MOE = replace(
    HUNYUAN_V1_DENSE,
    model_type="hunyuan_v1_moe",
    module="transformers.models.hunyuan_v1_moe.modeling_hunyuan_v1_moe",
    fits={
        "HunYuanMoEV1RMSNorm": NORM,
        "HunYuanMoEV1MLP": MLP,
        "HunYuanMoEV1Experts": fits.experts(act="silu"),
        "HunYuanMoEV1Attention": ROPE,
    },
    mini="liger_models_hunyuan.mini:hunyuan_v1_moe",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Hunyuan family."""
    return [HUNYUAN_V1_DENSE, HUNYUAN_V1_MOE]
