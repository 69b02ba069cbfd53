"""Mistral, Ministral, Ministral 3, Mixtral, and Mistral 3 with its tower Pixtral."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")

MISTRAL = ModelPatch(
    model_type="mistral",
    module="transformers.models.mistral.modeling_mistral",
    fits={"MistralRMSNorm": NORM, "MistralMLP": MLP, "MistralAttention": ROPE},
    head=fits.causal_lm_head(),
    mini="liger_models_mistral.mini:mistral",
)

MINISTRAL = replace(
    MISTRAL,
    model_type="ministral",
    module="transformers.models.ministral.modeling_ministral",
    fits={"MinistralRMSNorm": NORM, "MinistralMLP": MLP, "MinistralAttention": ROPE},
    mini="liger_models_mistral.mini:ministral",
)

MINISTRAL3 = replace(
    MISTRAL,
    model_type="ministral3",
    module="transformers.models.ministral3.modeling_ministral3",
    fits={"Ministral3RMSNorm": NORM, "Ministral3MLP": MLP, "Ministral3Attention": ROPE},
    mini="liger_models_mistral.mini:ministral3",
)

MIXTRAL = replace(
    MISTRAL,
    model_type="mixtral",
    module="transformers.models.mixtral.modeling_mixtral",
    fits={"MixtralRMSNorm": NORM, "MixtralExperts": fits.experts(act="silu"), "MixtralAttention": ROPE},
    mini="liger_models_mistral.mini:mixtral",
)

PIXTRAL = replace(
    MISTRAL,
    model_type="pixtral",
    module="transformers.models.pixtral.modeling_pixtral",
    fits={
        "PixtralRMSNorm": NORM,
        "PixtralMLP": None,  # a config may say silu or gelu
        "PixtralAttention": ROPE,
    },
    head=None,
    mini="liger_models_mistral.mini:mistral3",
    images="liger_models_mistral.mini:images",
)

MISTRAL3 = replace(
    MISTRAL,
    model_type="mistral3",
    module="transformers.models.mistral3.modeling_mistral3",
    fits={
        **{f"{part.module}.{name}": fit for part in (MISTRAL, PIXTRAL) for name, fit in part.fits.items()},
        "Mistral3RMSNorm": NORM,
    },
    mini=PIXTRAL.mini,
    images=PIXTRAL.images,
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Mistral family."""
    return [MISTRAL, MINISTRAL, MINISTRAL3, MIXTRAL, PIXTRAL, MISTRAL3]
