"""Nemotron."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

NEMOTRON = ModelPatch(
    model_type="nemotron",
    module="transformers.models.nemotron.modeling_nemotron",
    fits={
        "NemotronLayerNorm1P": fits.layer_norm_1p(),
        "NemotronMLP": fits.mlp(),
        "NemotronAttention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_nemotron.mini:nemotron",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register Nemotron."""
    return [NEMOTRON]
