"""DeepSeek V2, V3 and V4."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
MLP = fits.gated_mlp(act="silu")
EXPERTS = fits.experts(act="silu")

DEEPSEEK_V3 = ModelPatch(
    model_type="deepseek_v3",
    module="transformers.models.deepseek_v3.modeling_deepseek_v3",
    fits={
        "DeepseekV3RMSNorm": NORM,
        "DeepseekV3MLP": MLP,
        "DeepseekV3Experts": EXPERTS,
        "DeepseekV3Attention": fits.rope(
            "deinterleave", tables="first half", function="apply_rotary_pos_emb_interleave"
        ),
    },
    head=fits.causal_lm_head(),
    mini="liger_models_deepseek.mini:deepseek_v3",
)

DEEPSEEK_V2 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v2",
    module="transformers.models.deepseek_v2.modeling_deepseek_v2",
    fits={
        "DeepseekV2RMSNorm": NORM,
        "DeepseekV2MLP": MLP,
        "DeepseekV2Experts": EXPERTS,
        "DeepseekV2Attention": fits.rope_complex(unsqueeze_dim=1),
    },
    mini="liger_models_deepseek.mini:deepseek_v2",
)

DEEPSEEK_V4 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v4",
    module="transformers.models.deepseek_v4.modeling_deepseek_v4",
    fits={
        "DeepseekV4RMSNorm": fits.rms_norm(cast="fp32-weight"),
        # float32 streams come to it, but 16-bit queries too: of those 1 / rms is rounded, an order of casts that no
        # option of liger.ops.rms_norm has
        "DeepseekV4UnweightedRMSNorm": fits.weightless_norm(rounded=True),
        "DeepseekV4MLP": fits.gated_mlp(act="silu", limit="limit"),
        "DeepseekV4Experts": fits.experts(act="silu", limit="limit"),
        "DeepseekV4Attention": fits.rope("interleaved", tables="pair", cast="fp32", last=True),
        # DeepseekV4Indexer, DeepseekV4HCACompressor, DeepseekV4CSACompressor: rotate a few compressed keys
    },
    mini="liger_models_deepseek.mini:deepseek_v4",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the DeepSeek family."""
    return [DEEPSEEK_V3, DEEPSEEK_V2, DEEPSEEK_V4]
