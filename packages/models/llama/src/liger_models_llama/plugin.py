"""Llama 2, 3 and everything else with model_type "llama", Llama 3.2 Vision, Llama 4, SmolLM 3 and Arcee."""

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

LLAMA4 = replace(
    LLAMA4_TEXT,
    model_type="llama4",
    fits={
        **LLAMA4_TEXT.fits,
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
        "Llama4VisionAttention": fits.rope_complex(function="vision_apply_rotary_emb"),
        # Llama4VisionMLP, Llama4VisionMLP2: GELUs without a gate
    },
    mini="liger_models_llama.mini:llama4",
    images="liger_hf.minis:pixels_16",
)

MLLAMA_TEXT = replace(
    LLAMA,
    model_type="mllama_text_model",
    module="transformers.models.mllama.modeling_mllama",
    fits={
        "MllamaTextRMSNorm": NORM,
        "MllamaTextMLP": fits.gated_mlp(act="silu"),
        "MllamaTextSelfAttention": ROPE,
    },
    mini="liger_models_llama.mini:mllama",  # the model around it: transformers has no auto class for it alone
    images="liger_models_llama.mini:images",
)

MLLAMA = replace(
    MLLAMA_TEXT,
    model_type="mllama",
    fits={**MLLAMA_TEXT.fits, "torch.nn.modules.normalization.LayerNorm": fits.layer_norm()},
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Llama family."""
    return [LLAMA, SMOLLM3, ARCEE, LLAMA4_TEXT, LLAMA4, MLLAMA_TEXT, MLLAMA]
