"""MiniMax Text-01, M1 and M2."""

from collections.abc import Sequence
from dataclasses import replace

import liger
from liger import ModelPatch
from liger_hf import fits

NORM = fits.rms_norm(cast="llama")
ROPE = fits.rope("half")
EXPERTS = fits.experts(act="silu")

MINIMAX = ModelPatch(
    model_type="minimax",
    module="transformers.models.minimax.modeling_minimax",
    fits={
        "MiniMaxRMSNorm": NORM,
        "MiniMaxExperts": EXPERTS,
        "MiniMaxAttention": ROPE,
    },
    head=fits.causal_lm_head(),
    mini="liger_models_minimax.mini:minimax",
)

MINIMAX_M2 = replace(
    MINIMAX,
    model_type="minimax_m2",
    module="transformers.models.minimax_m2.modeling_minimax_m2",
    fits={
        "MiniMaxM2RMSNorm": NORM,
        "MiniMaxM2Experts": EXPERTS,
        "MiniMaxM2Attention": ROPE,
    },
    mini="liger_models_minimax.mini:minimax_m2",
)


@liger.hookimpl
def liger_register_models() -> Sequence[ModelPatch]:
    """Register the MiniMax family."""
    return [MINIMAX, MINIMAX_M2]
