"""The peer's public names, as data, and where ours are: every public module below ``liger_kernel`` is a view of this.

A name without a home has no kernel yet: it can be imported, and using it raises ``NotImplementedError``.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from liger_kernel._types import FUNCTIONS, PREFIX

ROOT = "liger_kernel"
DOCS = "docs/migrate-from-liger-kernel.md, What has no kernel yet"

HOMES: dict[str, str] = {
    "_apply": "_apply_liger_kernel=apply_by_type _apply_liger_kernel_to_instance=apply_to_instance",
    "_auto": "AutoLigerKernelForCausalLM",
    "_chunked": "LigerFusedLinearCPOFunction LigerFusedLinearDPOFunction LigerFusedLinearGRPOFunction "
    "LigerFusedLinearKTOFunction LigerFusedLinearORPOFunction LigerFusedLinearSimPOFunction liger_fused_linear_cpo=cpo "
    "liger_fused_linear_dpo=dpo liger_fused_linear_grpo=grpo liger_fused_linear_kto=kto liger_fused_linear_orpo=orpo "
    "liger_fused_linear_simpo=simpo "
    "chunked_loss.jsd_loss.LigerFusedLinearJSDFunction=JSDFunction "
    "chunked_loss.functional.liger_fused_linear_jsd=jsd",
    "_chunked_modules": "LigerFusedLinearCPOLoss LigerFusedLinearDPOLoss LigerFusedLinearGRPOLoss "
    "LigerFusedLinearJSDLoss LigerFusedLinearKTOLoss LigerFusedLinearORPOLoss LigerFusedLinearSimPOLoss",
    "_functional": "liger_cross_entropy liger_fused_add_rms_norm liger_fused_linear_cross_entropy liger_jsd "
    "liger_kl_div liger_llama4_text_rotary_pos_emb liger_llama4_vision_rotary_pos_emb liger_modulated_rms_norm "
    "liger_rotary_pos_emb_gpt_oss liger_rotary_pos_emb_vision liger_sparsemax liger_tvd",
    "_functions": "LigerDyTFunction LigerFusedAddRMSNormFunction LigerFusedGateUpSiLUMulFunction LigerGELUMulFunction "
    "LigerGroupNormFunction LigerLayerNormFunction LigerLlama4RopeFunction LigerMLPFunction "
    "LigerModulatedRMSNormFunction LigerPolyNormFunction LigerQwen2VLMRopeFunction LigerReLUSquaredFunction "
    "LigerRMSNormFunction LigerRopeFunction LigerSiLUMulFunction LigerSoftmaxFunction LigerSparsemaxFunction "
    "liger_dyt=dyt liger_geglu=gelu_mul liger_group_norm=group_norm liger_layer_norm=layer_norm "
    "liger_multimodal_rotary_pos_emb=qwen2vl_mrope liger_poly_norm=poly_norm liger_qwen2vl_mrope=qwen2vl_mrope "
    "liger_relu_squared=relu_squared liger_rms_norm=rms_norm liger_rope=rope liger_rotary_pos_emb=rope "
    "liger_softmax=softmax liger_swiglu=silu_mul",
    "_loss_functions": "LigerCrossEntropyFunction LigerFusedLinearCrossEntropyFunction LigerFusedLinearJSDFunction "
    "LigerFusedLinearScaledCrossEntropyFunction LigerJSDFunction LigerKLDivLossFunction LigerTVDLossFunction "
    "LigerVocabParallelCEFunction fused_selective_log_softmax=selective_log_softmax liger_fused_linear_jsd=linear_jsd",
    "_losses": "CrossEntropyOutput LigerCrossEntropyLoss LigerForCausalLMLoss LigerFusedLinearCrossEntropyLoss "
    "LigerFusedLinearJSD LigerJSD LigerKLDIVLoss LigerTVDLoss LigerVocabParallelCrossEntropy "
    "fixed_fused_linear_cross_entropy unpack_cross_entropy_result",
    "_mlps": "LigerBlockSparseTop2MLP LigerFalconH1MLP LigerFalconH1SwiGLUMLP LigerGEGLUMLP LigerGEGLUMLPForGemma4 "
    "LigerHunyuanV1SwiGLUMLP LigerMLP LigerPhi3SwiGLUMLP LigerQwen3MoeSwiGLUMLP LigerSwiGLUMLP",
    "_modules": "LigerDyT LigerFusedAddRMSNorm LigerGroupNorm LigerLayerNorm LigerModulatedRMSNorm LigerPolyNorm "
    "LigerReLUSquared LigerRMSNorm LigerRMSNormForGemma LigerRMSNormForGemma2 LigerRMSNormForGemma3 "
    "LigerRMSNormForGemma4 LigerRMSNormForGlm4 LigerRMSNormForOlmo2 LigerRMSNormForQwen3Next LigerSoftmax "
    "LigerSparsemax",
    "_utils": "calculate_settings compare_version ensure_contiguous get_total_gpu_memory infer_comm_backend "
    "infer_device is_hip is_npu_available is_peft_available is_transformers_available transformers_version_dispatch",
    "env_report": "print_env_report",
}
"""Our module -> the peer's names that are in it; ``theirs=ours`` where ours is called otherwise.

One that means different things in two modules is there with the module before it.
"""

APPLY = " ".join(PREFIX + name for name in FUNCTIONS)
VIEWS: dict[str, str] = {
    "chunked_loss": "LigerFusedLinearCosineSimilarityLoss LigerFusedLinearCPOLoss LigerFusedLinearDPOLoss "
    "LigerFusedLinearGRPOLoss LigerFusedLinearJSDLoss LigerFusedLinearKTOLoss LigerFusedLinearORPOLoss "
    "LigerFusedLinearSimPOLoss",
    "chunked_loss.cosine_similarity_loss": "LigerFusedLinearCosineSimilarityFunction "
    "LigerFusedLinearCosineSimilarityLoss",
    "chunked_loss.cpo_loss": "LigerFusedLinearCPOFunction LigerFusedLinearCPOLoss",
    "chunked_loss.dpo_loss": "LigerFusedLinearDPOFunction LigerFusedLinearDPOLoss",
    "chunked_loss.functional": "liger_fused_linear_cosine liger_fused_linear_cpo liger_fused_linear_dpo "
    "liger_fused_linear_grpo liger_fused_linear_jsd liger_fused_linear_kto liger_fused_linear_orpo "
    "liger_fused_linear_simpo",
    "chunked_loss.fused_linear_distillation": "LigerFusedLinearDistillationBase",
    "chunked_loss.fused_linear_ppo": "LigerFusedLinearPPOBase",
    "chunked_loss.fused_linear_preference": "LigerFusedLinearPreferenceBase",
    "chunked_loss.fused_linear_unpaired_preference": "LigerFusedLinearUnpairedPreferenceBase",
    "chunked_loss.grpo_loss": "LigerFusedLinearGRPOFunction LigerFusedLinearGRPOLoss",
    "chunked_loss.jsd_loss": "LigerFusedLinearJSDFunction LigerFusedLinearJSDLoss",
    "chunked_loss.kto_loss": "LigerFusedLinearKTOFunction LigerFusedLinearKTOLoss",
    "chunked_loss.orpo_loss": "LigerFusedLinearORPOFunction LigerFusedLinearORPOLoss",
    "chunked_loss.simpo_loss": "LigerFusedLinearSimPOFunction LigerFusedLinearSimPOLoss",
    "ops": "",
    "ops.attn_res": "LigerAttnResFunction",
    "ops.cross_entropy": "LigerCrossEntropyFunction",
    "ops.dyt": "LigerDyTFunction",
    "ops.experimental": "",
    "ops.experimental.embedding": "LigerEmbeddingFunction",
    "ops.fused_add_rms_norm": "LigerFusedAddRMSNormFunction",
    "ops.fused_ce_tvd": "LigerFusedCETVDFunction",
    "ops.fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyFunction",
    "ops.fused_linear_jsd": "LigerFusedLinearJSDFunction",
    "ops.fused_linear_kl_div": "LigerFusedLinearKLDivFunction",
    "ops.fused_linear_scaled_cross_entropy": "LigerFusedLinearScaledCrossEntropyFunction "
    "LigerFusedLinearScaledCrossEntropyTPFunction",
    "ops.fused_moe": "LigerFusedMoEFunction",
    "ops.fused_neighborhood_attention": "LigerFusedNeighborhoodAttentionFunction",
    "ops.geglu": "LigerGELUMulFunction",
    "ops.group_norm": "LigerGroupNormFunction",
    "ops.grpo_loss": "GrpoLossFunction fused_selective_log_softmax",
    "ops.jsd": "LigerJSDFunction",
    "ops.kl_div": "LigerKLDivLossFunction",
    "ops.layer_norm": "LigerLayerNormFunction",
    "ops.llama4_rope": "LigerLlama4RopeFunction",
    "ops.mhc": "LigerMHCCoeffsFunction LigerMHCPostResFunction LigerMHCPreFunction",
    "ops.mlp": "LigerMLPFunction",
    "ops.modulated_rms_norm": "LigerModulatedRMSNormFunction",
    "ops.multi_token_attention": "LigerMultiTokenAttentionFunction",
    "ops.poly_norm": "LigerPolyNormFunction",
    "ops.qwen2vl_mrope": "LigerQwen2VLMRopeFunction",
    "ops.relu_squared": "LigerReLUSquaredFunction",
    "ops.rms_norm": "LigerRMSNormFunction",
    "ops.rope": "LigerRopeFunction",
    "ops.softmax": "LigerSoftmaxFunction",
    "ops.sparsemax": "LigerSparsemaxFunction",
    "ops.swiglu": "LigerFusedGateUpSiLUMulFunction LigerSiLUMulFunction",
    "ops.tiled_mlp": "LigerTiledMLPFunction apply_tiled_mlp",
    "ops.tvd": "LigerTVDLossFunction",
    "ops.vocab_parallel_cross_entropy": "LigerVocabParallelCEFunction",
    "transformers": "",
    "transformers.auto_model": "AutoLigerKernelForCausalLM",
    "transformers.cross_entropy": "LigerCrossEntropyLoss",
    "transformers.dyt": "LigerDyT",
    "transformers.experimental": "",
    "transformers.experimental.embedding": "LigerEmbedding",
    "transformers.functional": "CrossEntropyOutput liger_attn_res liger_cross_entropy liger_dyt "
    "liger_fused_add_rms_norm liger_fused_linear_cross_entropy liger_fused_linear_jsd liger_fused_linear_kl_div "
    "liger_fused_linear_scaled_cross_entropy_tp liger_fused_neighborhood_attention liger_geglu liger_group_norm "
    "liger_jsd liger_kl_div liger_layer_norm liger_mhc_apply liger_mhc_coeffs liger_mhc_forward liger_mhc_post_res "
    "liger_mhc_pre liger_modulated_rms_norm liger_multi_token_attention liger_poly_norm liger_qwen2vl_mrope "
    "liger_relu_squared liger_rms_norm liger_rope liger_softmax liger_sparsemax liger_swiglu liger_tvd",
    "transformers.fused_add_rms_norm": "LigerFusedAddRMSNorm",
    "transformers.fused_ce_tvd": "LigerFusedCETVDLoss",
    "transformers.fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyLoss",
    "transformers.fused_linear_jsd": "LigerFusedLinearJSD",
    "transformers.fused_linear_kl_div": "LigerFusedLinearKLDivLoss",
    "transformers.fused_neighborhood_attention": "LigerFusedNeighborhoodAttention "
    "LigerFusedNeighborhoodAttentionConfig LigerFusedNeighborhoodAttentionLayer",
    "transformers.geglu": "LigerGEGLUMLP LigerGEGLUMLPForGemma4",
    "transformers.group_norm": "LigerGroupNorm",
    "transformers.grpo_loss": "triton_grpo_loss",
    "transformers.jsd": "LigerJSD",
    "transformers.kl_div": "LigerKLDIVLoss",
    "transformers.layer_norm": "LigerLayerNorm",
    "transformers.llama4_rope": "liger_llama4_text_rotary_pos_emb liger_llama4_vision_rotary_pos_emb",
    "transformers.mhc": "LigerMHC",
    "transformers.mlp": "LigerFalconH1MLP LigerMLP",
    "transformers.model": "",
    "transformers.model.loss_utils": "LigerForCausalLMLoss fixed_fused_linear_cross_entropy "
    "unpack_cross_entropy_result",
    "transformers.modulated_rms_norm": "LigerModulatedRMSNorm",
    "transformers.moe": "LigerExpertParallelFusedMoe",
    "transformers.monkey_patch": f"MODEL_TYPE_TO_APPLY_LIGER_FN _apply_liger_kernel _apply_liger_kernel_to_instance "
    f"is_transformers_available {APPLY}",
    "transformers.multi_token_attention": "LigerMultiTokenAttention",
    "transformers.poly_norm": "LigerPolyNorm",
    "transformers.qwen2vl_mrope": "liger_multimodal_rotary_pos_emb",
    "transformers.relu_squared": "LigerReLUSquared",
    "transformers.rms_norm": "LigerRMSNorm LigerRMSNormForGemma LigerRMSNormForGemma2 LigerRMSNormForGemma3 "
    "LigerRMSNormForGemma4 LigerRMSNormForGlm4 LigerRMSNormForMuseGlimmer LigerRMSNormForMuseGlimmerTextCentered "
    "LigerRMSNormForOlmo2 LigerRMSNormForQwen3Next",
    "transformers.rope": "liger_rotary_pos_emb liger_rotary_pos_emb_gpt_oss liger_rotary_pos_emb_vision",
    "transformers.softmax": "LigerSoftmax",
    "transformers.sparsemax": "LigerSparsemax",
    "transformers.swiglu": "LigerBlockSparseTop2MLP LigerExperts LigerFalconH1SwiGLUMLP LigerHunyuanV1SwiGLUMLP "
    "LigerPhi3SwiGLUMLP LigerQwen3MoeSwiGLUMLP LigerSwiGLUMLP LigerSwiGLUMLPForMuseGlimmer",
    "transformers.tiled_mlp": "LigerTiledGEGLUMLP LigerTiledSwiGLUMLP",
    "transformers.trainer": "",
    "transformers.trainer.orpo_trainer": "LigerORPOTrainer",
    "transformers.trainer_integration": "_apply_liger_kernel",
    "transformers.tvd": "LigerTVDLoss",
    "transformers.vocab_parallel_cross_entropy": "LigerVocabParallelCrossEntropy",
    "utils": "get_total_gpu_memory infer_comm_backend infer_device is_npu_available is_peft_available "
    "transformers_version_dispatch",
}
"""Public module below ``liger_kernel`` -> its names."""

EXPORTING = ("ops", "ops.experimental", "transformers", "transformers.experimental", "transformers.trainer")
"""Packages that have the names of the modules in them."""
VIEWS |= {path: " ".join(VIEWS[v] for v in VIEWS if v.startswith(f"{path}.")) for path in EXPORTING}

for name in [path[4:] for path in VIEWS if path.startswith("ops.")]:
    if f"transformers.{name}" in VIEWS:  # which imports the Function of that op
        VIEWS[f"transformers.{name}"] += f" {VIEWS[f'ops.{name}']}"

BELOW = {
    "chunked_loss.grpo_loss": "get_gamma_weights",
    "ops.cross_entropy": "liger_cross_entropy_kernel",
    "ops.experimental.mm_int8int2": "matmul pack_weights unpack_weights",
    "ops.fused_moe": "compute_routing_metadata",
    "ops.sparsemax": "_sparsemax_backward_kernel _sparsemax_forward_kernel",
    "ops.utils": "calculate_settings compare_version element_mul_kernel ensure_contiguous is_hip",
    "transformers.grpo_loss": "_reduce_grpo_loss",
}
"""Names below the autograd Functions that other code imports. Only the helpers of ``ops.utils`` are answered."""
VIEWS |= {path: f"{VIEWS.get(path, '')} {names}" for path, names in BELOW.items()}

FORWARDS = {
    "lce_forward": "deepseek_v2 deepseek_v3 deepseek_v4 exaone4 falcon_h1 gemma gemma2 glm4 glm4v glm4v_moe gpt_oss "
    "hunyuan_v1 internvl llama llama4 llava ministral mistral mixtral mllama muse_glimmer nemotron olmo2 olmo3 "
    "paligemma phi3 qwen2 qwen2_5_vl qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe smollm3 smolvlm",
    "causal_forward multimodal_forward": "gemma3 gemma4",
    "lce_forward lce_forward_for_multimodal": "qwen3_5",
    "lce_forward lce_forward_conditional_generation": "qwen3_5_moe",
}
"""Names -> the modules below ``transformers.model`` that have them. Liger patches no such forward."""
VIEWS |= {f"transformers.model.{m}": names for names, modules in FORWARDS.items() for m in modules.split()}

WHERE = {
    theirs: (home, ours or theirs)
    for home, names in HOMES.items()
    for theirs, _, ours in (name.partition("=") for name in names.split())
}


class Missing:
    """Stands for a name that has no kernel yet: only using it is an error."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls.apply()

    def __class_getitem__(cls, grid: Any) -> NoReturn:  # how a kernel is launched
        cls.apply()

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Say that there is no kernel.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{cls.__module__}.{cls.__name__} has no kernel in Liger yet: see {DOCS}")


APPLIES = (f"{ROOT}.transformers", f"{ROOT}.transformers.monkey_patch")
"""The views that also have an apply function for each model type that only our registry declares."""


class View(ModuleType):
    """A public module: its names are looked up, and imported, when they are first used."""

    def __init__(self, name: str, names: str, is_package: bool) -> None:
        super().__init__(name, f"The peer's names of {name}, answered by Liger; see liger_kernel._names.")
        self.__all__ = sorted({*names.split()})
        self.__spec__ = ModuleSpec(name, None, is_package=is_package)
        if is_package:
            self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self.__all__ and not (name.startswith(PREFIX) and self.__name__ in APPLIES):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = find(name, self.__name__)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__, *(_apply_names() if self.__name__ in APPLIES else ())})


def find(name: str, module: str) -> Any:
    """What answers one public name."""
    if name.startswith(PREFIX) or name == "MODEL_TYPE_TO_APPLY_LIGER_FN":
        return _apply_function(name, module)
    where = WHERE.get(f"{module.removeprefix(ROOT)[1:]}.{name}") or WHERE.get(name)
    if where is None:
        return type(name, (Missing,), {"__module__": module})
    home, ours = where
    return getattr(importlib.import_module(f"{ROOT}.{home}"), ours)


def _apply_function(name: str, module: str) -> Any:
    from liger_kernel import _apply

    if not name.startswith(PREFIX):
        return _apply.by_type()
    if (wanted := name.removeprefix(PREFIX)) not in _apply.functions():
        raise AttributeError(f"module {module!r} has no {name!r}: no package declares model type {wanted!r}")
    return _apply.function(wanted)


def _apply_names() -> list[str]:
    from liger_kernel import _apply

    return [PREFIX + name for name in _apply.functions()]


def install() -> None:
    """Make every view importable. A view of a file that another distribution left here wins over the file."""
    for path, names in VIEWS.items():
        view = View(f"{ROOT}.{path}", names, is_package=any(other.startswith(f"{path}.") for other in VIEWS))
        sys.modules[view.__name__] = view
        parent, _, last = view.__name__.rpartition(".")
        setattr(sys.modules[parent], last, view)
