"""LLaVA 1.5 and 1.6 with a Llama behind the tower; Liger's package for another text model patches that."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

LLAMA = "transformers.models.llama.modeling_llama"

LLAVA = ModelPatch(
    model_type="llava",
    module="transformers.models.llava.modeling_llava",
    fits={
        f"{LLAMA}.LlamaRMSNorm": fits.rms_norm(cast="llama"),
        f"{LLAMA}.LlamaMLP": fits.gated_mlp(act="silu"),
        f"{LLAMA}.LlamaAttention": fits.rope("half"),
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_llava.mini:llava",
    images="liger_hf.minis:pixels_8",
)

LLAVA_NEXT = replace(
    LLAVA,
    model_type="llava_next",
    module="transformers.models.llava_next.modeling_llava_next",
    mini="liger_models_llava.mini:llava_next",
    images="liger_models_llava.mini:tiles",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register LLaVA."""
    return [LLAVA, LLAVA_NEXT]
