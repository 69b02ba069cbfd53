"""SmolVLM and Idefics 3, with a Llama behind the tower."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

LLAMA = "transformers.models.llama.modeling_llama"

SMOLVLM = ModelPatch(
    model_type="smolvlm",
    module="transformers.models.smolvlm.modeling_smolvlm",
    fits={
        f"{LLAMA}.LlamaRMSNorm": fits.rms_norm(cast="llama"),
        f"{LLAMA}.LlamaMLP": fits.gated_mlp(act="silu"),
        f"{LLAMA}.LlamaAttention": fits.rope("half"),
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
        # SmolVLMVisionMLP: a GELU without a gate
    },
    head=fits.causal_lm_head(),
    mini="liger_models_smolvlm.mini:smolvlm",
    images="liger_models_smolvlm.mini:images",
)

IDEFICS3 = replace(
    SMOLVLM,
    model_type="idefics3",
    module="transformers.models.idefics3.modeling_idefics3",
    mini="liger_models_smolvlm.mini:idefics3",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register both."""
    return [SMOLVLM, IDEFICS3]
