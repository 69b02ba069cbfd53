"""Cwm."""

import liger
from liger import Fit, ModelPatch
from liger_hf import fits

LIGER_PLUGIN_API = 1

CWM = ModelPatch(
    model_type="cwm",
    module="transformers.models.cwm.modeling_cwm",
    fits={
        "CwmRMSNorm": Fit(
            id="acme_norm", op="rms_norm", adapter="acme_cwm.adapters:norm", options={"eps": "variance_epsilon"}
        ),
        "CwmMLP": fits.gated_mlp(act="silu"),
        "CwmAttention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="acme_cwm.mini:cwm",
)


@liger.hookimpl
def liger_register_models():
    return [CWM]
