"""Mistral, Ministral, Ministral 3, Mixtral, and Mistral 3 with its tower Pixtral."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
ROPE = fits.rope("half")
TOWER = "transformers.models.pixtral.modeling_pixtral"

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

MISTRAL3 = replace(
    MISTRAL,
    model_type="mistral3",
    module="transformers.models.mistral3.modeling_mistral3",
    fits={
        **{f"{MISTRAL.module}.{name}": fit for name, fit in MISTRAL.fits.items()},
        f"{TOWER}.PixtralRMSNorm": NORM,
        # PixtralMLP: recognised, for a config may say silu or gelu, the default
        f"{TOWER}.PixtralAttention": ROPE,
        "Mistral3RMSNorm": NORM,
    },
    mini="liger_models_mistral.mini:mistral3",
    images="liger_models_mistral.mini:images",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Mistral family."""
    return [MISTRAL, MINISTRAL, MINISTRAL3, MIXTRAL, MISTRAL3]
