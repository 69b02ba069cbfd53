"""InternVL with a Qwen 2 behind the tower; Liger's package for another text model patches that."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

QWEN2 = "transformers.models.qwen2.modeling_qwen2"

INTERNVL = ModelPatch(
    model_type="internvl",
    module="transformers.models.internvl.modeling_internvl",
    fits={
        f"{QWEN2}.Qwen2RMSNorm": fits.rms_norm(cast="llama"),
        f"{QWEN2}.Qwen2MLP": fits.gated_mlp(act="silu"),
        f"{QWEN2}.Qwen2Attention": fits.rope("half"),
        "InternVLVisionRMSNorm": fits.rms_norm(cast="llama"),
        "torch.nn.modules.normalization.LayerNorm": fits.layer_norm(),
        # InternVLVisionMLP: a GELU without a gate
    },
    head=fits.causal_lm_head(),
    mini="liger_models_internvl.mini:internvl",
    images="liger_hf.minis:pixels_16",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register InternVL."""
    return [INTERNVL]
