"""Llama 2, 3 and everything else with model_type "llama"."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

LLAMA = ModelPatch(
    model_type="llama",
    module="transformers.models.llama.modeling_llama",
    fits={
        "LlamaRMSNorm": fits.rms_norm(cast="llama"),
        "LlamaMLP": fits.gated_mlp(act="silu"),
        "LlamaAttention": fits.rope("half"),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_llama.mini:llama",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Llama family."""
    return [LLAMA]
