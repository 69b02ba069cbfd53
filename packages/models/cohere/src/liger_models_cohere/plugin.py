"""Command R and Command A, also with vision."""

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

COHERE2_VISION = replace(
    COHERE2,
    model_type="cohere2_vision",
    module="transformers.models.cohere2_vision.modeling_cohere2_vision",
    fits={
        **{f"{COHERE2.module}.{name}": fit for name, fit in COHERE2.fits.items()},
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
    },
    mini="liger_models_cohere.mini:cohere2_vision",
    images="liger_hf.minis:pixels_16",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Cohere family."""
    return [COHERE, COHERE2, COHERE2_VISION]
