"""gpt-oss."""

from collections.abc import Sequence

import liger
from liger import ModelPatch
from liger_hf import fits

GPT_OSS = ModelPatch(
    model_type="gpt_oss",
    module="transformers.models.gpt_oss.modeling_gpt_oss",
    fits={
        "GptOssRMSNorm": fits.rms_norm(cast="fp32-weight"),
        "GptOssExperts": fits.clamped_experts(),
        "GptOssAttention": fits.rope("half", tables="pair"),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_gpt_oss.mini:gpt_oss",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register gpt-oss."""
    return [GPT_OSS]
