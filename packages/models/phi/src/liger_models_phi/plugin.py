"""Phi 1 to 4, and the mixture Phi-3.5-MoE."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

ROPE = fits.rope("half")
LAYER_NORM = fits.layer_norm()

PHI3 = ModelPatch(
    model_type="phi3",
    module="transformers.models.phi3.modeling_phi3",
    fits={
        "Phi3RMSNorm": fits.rms_norm(cast="llama"),
        "Phi3MLP": fits.packed_mlp(act="silu"),
        "Phi3Attention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_phi.mini:phi3",
)

PHI = replace(
    PHI3,
    model_type="phi",
    module="transformers.models.phi.modeling_phi",
    fits={
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "PhiAttention": ROPE,
        # PhiMLP: an activation between two projections, without a gate; there is no op to gain anything
    },
    mini="liger_models_phi.mini:phi",
)

PHIMOE = replace(
    PHI3,
    model_type="phimoe",
    module="transformers.models.phimoe.modeling_phimoe",
    fits={
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        "PhimoeExperts": fits.experts(act="silu"),
        "PhimoeAttention": ROPE,
    },
    mini="liger_models_phi.mini:phimoe",
)

PHI4_MULTIMODAL = replace(
    PHI3,
    model_type="phi4_multimodal",
    module="transformers.models.phi4_multimodal.modeling_phi4_multimodal",
    fits={
        "Phi4MultimodalRMSNorm": fits.rms_norm(cast="llama"),
        "Phi4MultimodalMLP": fits.packed_mlp(act="silu"),
        "Phi4MultimodalAttention": ROPE,
        "torch.nn.modules.normalization.LayerNorm": LAYER_NORM,
        # Phi4MultimodalVisionMLP: a GELU without a gate
        # Phi4MultimodalAudioMLP: clamps, between norm and dropout
    },
    mini="liger_models_phi.mini:phi4_multimodal",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the Phi family."""
    return [PHI3, PHI, PHIMOE, PHI4_MULTIMODAL]
