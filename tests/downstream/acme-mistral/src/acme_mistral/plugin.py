"""Mistral."""

import liger
from liger import Fit, ModelPatch
from liger_hf import fits

LIGER_PLUGIN_API = 1

MISTRAL = ModelPatch(
    model_type="mistral",
    module="transformers.models.mistral.modeling_mistral",
    fits={
        "MistralRMSNorm": Fit(
            id="acme_norm", op="rms_norm", adapter="acme_mistral.adapters:norm", options={"eps": "variance_epsilon"}
        ),
        "MistralMLP": fits.gated_mlp(act="silu"),
        "MistralAttention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="acme_mistral.mini:mistral",
)


@liger.hookimpl
def liger_register_models():
    return [MISTRAL]
