"""Granite, dense, with experts and hybrid."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
ROPE = fits.rope("half")
EXPERTS = fits.experts(act="silu")
SHARED = fits.packed_mlp(act="silu", merged="input_linear", down="output_linear", act_fn="activation")

GRANITE = ModelPatch(
    model_type="granite",
    module="transformers.models.granite.modeling_granite",
    fits={
        "GraniteRMSNorm": NORM,
        "GraniteMLP": fits.gated_mlp(act="silu"),
        "GraniteAttention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_granite.mini:granite",
)

GRANITEMOE = replace(
    GRANITE,
    model_type="granitemoe",
    module="transformers.models.granitemoe.modeling_granitemoe",
    fits={
        "GraniteMoeRMSNorm": NORM,
        "GraniteMoeExperts": EXPERTS,
        "GraniteMoeAttention": ROPE,
    },
    mini="liger_models_granite.mini:granitemoe",
)

GRANITEMOESHARED = replace(
    GRANITE,
    model_type="granitemoeshared",
    module="transformers.models.granitemoeshared.modeling_granitemoeshared",
    fits={
        "GraniteMoeSharedRMSNorm": NORM,
        "GraniteMoeSharedMLP": SHARED,
        "GraniteMoeSharedExperts": EXPERTS,
        "GraniteMoeSharedAttention": ROPE,
    },
    mini="liger_models_granite.mini:granitemoeshared",
)

GRANITEMOEHYBRID = replace(
    GRANITE,
    model_type="granitemoehybrid",
    module="transformers.models.granitemoehybrid.modeling_granitemoehybrid",
    fits={
        "GraniteMoeHybridRMSNorm": NORM,
        "GraniteMoeHybridMLP": SHARED,
        "GraniteMoeHybridExperts": EXPERTS,
        "GraniteMoeHybridRMSNormGated": fits.gated_rms_norm(norm_before_gate=False),
        "GraniteMoeHybridAttention": ROPE,
    },
    mini="liger_models_granite.mini:granitemoehybrid",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Granite family."""
    return [GRANITE, GRANITEMOE, GRANITEMOESHARED, GRANITEMOEHYBRID]
