"""Command R and Command A."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.cohere_norm()
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("interleaved", cast="fp32")

COHERE = ModelPatch(
    model_type="cohere",
    module="transformers.models.cohere.modeling_cohere",
    fits={
        "CohereLayerNorm": NORM,
        "CohereMLP": MLP,
        "CohereAttention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_cohere.mini:cohere",
)

COHERE2 = replace(
    COHERE,
    model_type="cohere2",
    module="transformers.models.cohere2.modeling_cohere2",
    fits={
        "Cohere2LayerNorm": NORM,
        "Cohere2MLP": MLP,
        "Cohere2Attention": ROPE,
    },
    mini="liger_models_cohere.mini:cohere2",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the family."""
    return [COHERE, COHERE2]
