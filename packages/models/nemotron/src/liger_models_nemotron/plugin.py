"""Nemotron."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

NEMOTRON = ModelPatch(
    model_type="nemotron",
    module="transformers.models.nemotron.modeling_nemotron",
    fits={
        "NemotronMLP": fits.mlp(),
        "NemotronAttention": fits.rope("half"),
        # NemotronLayerNorm1P: LayerNorm with a weight that is added to 1; no op computes it
    },
    head=fits.causal_lm_head(),
    mini="liger_models_nemotron.mini:nemotron",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register Nemotron."""
    return [NEMOTRON]
