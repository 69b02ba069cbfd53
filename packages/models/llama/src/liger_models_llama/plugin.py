"""Llama 2, 3 and everything else with model_type "llama", Llama 3.2 Vision, Llama 4 text, SmolLM 3 and Arcee.

Not the llama4 that sees: in transformers 5.24 its forward asks the text model's output for `image_outputs`, which that
does not have, so that nothing can be compared with it. Its parts and its head are recognised.
"""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
ROPE = fits.rope("half")

LLAMA = ModelPatch(
    model_type="llama",
    module="transformers.models.llama.modeling_llama",
    fits={
        "LlamaRMSNorm": NORM,
        "LlamaMLP": fits.gated_mlp(act="silu"),
        "LlamaAttention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_llama.mini:llama",
)

SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    module="transformers.models.smollm3.modeling_smollm3",
    fits={"SmolLM3RMSNorm": NORM, "SmolLM3MLP": fits.gated_mlp(act="silu"), "SmolLM3Attention": ROPE},
    mini="liger_models_llama.mini:smollm3",
)

ARCEE = replace(
    LLAMA,
    model_type="arcee",
    module="transformers.models.arcee.modeling_arcee",
    fits={"ArceeRMSNorm": NORM, "ArceeMLP": fits.mlp(act="relu2"), "ArceeAttention": ROPE},
    mini="liger_models_llama.mini:arcee",
)

LLAMA4_TEXT = replace(
    LLAMA,
    model_type="llama4_text",
    module="transformers.models.llama4.modeling_llama4",
    fits={
        "Llama4TextRMSNorm": fits.rms_norm(cast="llama", eps="eps"),
        "Llama4TextL2Norm": fits.rms_norm(cast="llama", eps="eps"),
        "Llama4TextMLP": fits.gated_mlp(act="silu", act_fn="activation_fn"),
        "Llama4TextAttention": fits.rope_complex(),
        # Llama4TextExperts: a forward of its own, in which no activation can be replaced
    },
    mini="liger_models_llama.mini:llama4_text",
)

MLLAMA = replace(
    LLAMA,
    model_type="mllama",
    module="transformers.models.mllama.modeling_mllama",
    fits={
        "MllamaTextRMSNorm": NORM,
        "MllamaTextMLP": fits.gated_mlp(act="silu"),
        "MllamaTextSelfAttention": ROPE,
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
    },
    mini="liger_models_llama.mini:mllama",
    images="liger_models_llama.mini:images",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Llama family."""
    return [LLAMA, SMOLLM3, ARCEE, LLAMA4_TEXT, MLLAMA]
