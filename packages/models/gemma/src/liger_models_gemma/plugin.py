"""Gemma, Gemma 2, VaultGemma, Gemma 3, 3n and 4, and PaliGemma.

Of the Gemma 3n that sees and hears its text model is declared and the rest is recognised: transformers makes no such
model without timm, whose only network for it has 300 million parameters. With timm 1.0.31 one was compared by hand, on
text in fp32: equal within 6e-07 with 66 norms, 4 rotations, 2 MLPs and the fused loss by ops.
"""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="gemma", eps="eps")
MLP = fits.gated_mlp(act="gelu_pytorch_tanh")
ROPE = fits.rope("half")

GEMMA = ModelPatch(
    model_type="gemma",
    module="transformers.models.gemma.modeling_gemma",
    fits={"GemmaRMSNorm": NORM, "GemmaMLP": MLP, "GemmaAttention": ROPE},
    head=fits.causal_lm_head(),
    mini="liger_models_gemma.mini:gemma",
)

GEMMA2 = ModelPatch(
    model_type="gemma2",
    module="transformers.models.gemma2.modeling_gemma2",
    fits={"Gemma2RMSNorm": NORM, "Gemma2MLP": MLP, "Gemma2Attention": ROPE},
    head=fits.causal_lm_head(softcap="config.final_logit_softcapping"),
    mini="liger_models_gemma.mini:gemma2",
)

GEMMA3_TEXT = replace(
    GEMMA2,
    model_type="gemma3_text",
    module="transformers.models.gemma3.modeling_gemma3",
    fits={"Gemma3RMSNorm": NORM, "Gemma3MLP": MLP, "Gemma3Attention": ROPE},
    mini="liger_models_gemma.mini:gemma3_text",
)

VAULTGEMMA = replace(
    GEMMA2,
    model_type="vaultgemma",
    module="transformers.models.vaultgemma.modeling_vaultgemma",
    fits={"VaultGemmaRMSNorm": NORM, "VaultGemmaMLP": MLP, "VaultGemmaAttention": ROPE},
    mini="liger_models_gemma.mini:vaultgemma",
)

GEMMA4_TEXT = replace(
    GEMMA2,
    model_type="gemma4_text",
    module="transformers.models.gemma4.modeling_gemma4",
    fits={
        "Gemma4RMSNorm": fits.rms_norm(cast="fp32-weight", eps="eps"),
        "Gemma4TextMLP": MLP,
        "Gemma4TextAttention": ROPE,
    },
    mini="liger_models_gemma.mini:gemma4_text",
)

GEMMA3N_TEXT = replace(
    GEMMA2,
    model_type="gemma3n_text",
    module="transformers.models.gemma3n.modeling_gemma3n",
    fits={
        "Gemma3nRMSNorm": fits.rms_norm(cast="fp32-weight", eps="eps"),
        "Gemma3nTextMLP": fits.gated_mlp(act="gelu_pytorch_tanh", unless="activation_sparsity"),
        "Gemma3nTextAttention": ROPE,
    },
    mini="liger_models_gemma.mini:gemma3n_text",
)

GEMMA3 = replace(
    GEMMA3_TEXT,
    model_type="gemma3",
    fits={**GEMMA3_TEXT.fits, "torch.nn.modules.normalization.LayerNorm": fits.layer_norm()},
    head=fits.causal_lm_head(),  # the soft cap of its text_config is not applied
    mini="liger_models_gemma.mini:gemma3",
    images="liger_models_gemma.mini:images",
)

PALIGEMMA = replace(
    GEMMA,
    model_type="paligemma",
    module="transformers.models.paligemma.modeling_paligemma",
    fits={
        **{f"{GEMMA.module}.{name}": fit for name, fit in GEMMA.fits.items()},
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
    },
    mini="liger_models_gemma.mini:paligemma",
    images="liger_models_gemma.mini:images",
)

GEMMA4 = replace(
    GEMMA4_TEXT,
    model_type="gemma4",
    fits={**GEMMA4_TEXT.fits, "Gemma4VisionMLP": MLP},
    head=fits.causal_lm_head(softcap="config.text_config.final_logit_softcapping"),
    mini="liger_models_gemma.mini:gemma4",
    images="liger_models_gemma.mini:patches",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Gemma family."""
    return [GEMMA, GEMMA2, GEMMA3_TEXT, VAULTGEMMA, GEMMA3N_TEXT, GEMMA4_TEXT, GEMMA3, PALIGEMMA, GEMMA4]
