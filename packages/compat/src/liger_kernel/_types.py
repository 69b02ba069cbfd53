"""Facts about the peer, as data: its function for each model type, and the flags of each with their defaults.

A row is the function's signature: flags in their order, a ``-`` before those that are off by default, and ``*`` where
every flag that is not named may be given too, by keyword.
"""

from __future__ import annotations

from liger_hf.groups import GROUPS

FLAGS = GROUPS
"""Flag -> the ops whose fits it switches."""

SWIGLU = "rope -cross_entropy fused_linear_cross_entropy rms_norm swiglu model"
NO_ROPE = f"-{SWIGLU}"
GEGLU = "rope -cross_entropy fused_linear_cross_entropy rms_norm geglu model"
SEES = "-cross_entropy fused_linear_cross_entropy rms_norm layer_norm model *"
PLAIN_SWIGLU = "rope -cross_entropy fused_linear_cross_entropy rms_norm -swiglu model"

PREFIX = "apply_liger_kernel_to_"
FUNCTIONS: dict[str, str] = {
    "deepseek_v2": NO_ROPE,
    "deepseek_v3": NO_ROPE,
    "deepseek_v4": f"-{PLAIN_SWIGLU}",
    "exaone4": SWIGLU,
    "falcon_h1": SWIGLU,
    "gemma": GEGLU,
    "gemma2": GEGLU,
    "gemma3": "rope -cross_entropy fused_linear_cross_entropy layer_norm rms_norm geglu model",
    "gemma3_text": GEGLU,
    "gemma4": "-rope -cross_entropy fused_linear_cross_entropy -layer_norm rms_norm geglu model",
    "gemma4_text": f"-{GEGLU}",
    "glm4": NO_ROPE,
    "glm4v": NO_ROPE,
    "glm4v_moe": NO_ROPE,
    "gpt_oss": PLAIN_SWIGLU,
    "granite": "rope cross_entropy -fused_linear_cross_entropy rms_norm swiglu model",
    "hunyuan_v1_dense": SWIGLU,
    "hunyuan_v1_moe": SWIGLU,
    "internvl": SEES,
    "llama": SWIGLU,
    "llama4": "rope -cross_entropy fused_linear_cross_entropy rms_norm swiglu model layer_norm",
    "llava": "-cross_entropy fused_linear_cross_entropy model *",
    "ministral": SWIGLU,
    "mistral": SWIGLU,
    "mixtral": SWIGLU,
    "mllama": "rope -cross_entropy fused_linear_cross_entropy layer_norm rms_norm swiglu model",
    "muse_glimmer": "rope -cross_entropy fused_linear_cross_entropy layer_norm rms_norm swiglu model",
    "nemotron": "relu_squared -cross_entropy fused_linear_cross_entropy model *",
    "olmo2": SWIGLU,
    "olmo3": SWIGLU,
    "paligemma": "rope -cross_entropy fused_linear_cross_entropy layer_norm rms_norm geglu model",
    "phi3": SWIGLU,
    "pixtral": "rope rms_norm swiglu model",
    "qwen2": SWIGLU,
    "qwen2_5_vl": SWIGLU,
    "qwen2_vl": "rope -cross_entropy fused_linear_cross_entropy rms_norm layer_norm swiglu model",
    "qwen3": SWIGLU,
    "qwen3_5": NO_ROPE,
    "qwen3_5_moe": NO_ROPE,
    "qwen3_moe": SWIGLU,
    "qwen3_next": NO_ROPE,
    "qwen3_vl": PLAIN_SWIGLU,
    "qwen3_vl_moe": SWIGLU,
    "smollm3": SWIGLU,
    "smolvlm": SEES,
}
"""What comes after ``PREFIX`` -> the signature."""

OTHERS = "-cross_entropy model *"
"""The signature of a model type that the peer does not know and ours does: every flag, by keyword."""

TEXT_TYPES: dict[str, str] = {
    "llama4_text": "llama4",
    "mllama_text_model": "mllama",
    "qwen2_5_vl_text": "qwen2_5_vl",
    "qwen2_vl_text": "qwen2_vl",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_vl_text": "qwen3_vl",
}
"""Model types that share the function of another one."""
