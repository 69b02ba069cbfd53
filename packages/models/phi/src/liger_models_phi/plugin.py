"""Phi 1 to 4. Not phimoe: its router draws where experts tie, so that no two runs in bf16 have the same bits."""

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
    return [PHI3, PHI, PHI4_MULTIMODAL]
