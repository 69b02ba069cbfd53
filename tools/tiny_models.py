"""A model of any type of transformers, small enough to train in a second, and batches for it.

Sizes are cut by the names of config fields, sub-configs included; what upstream then refuses is an error in its words.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto import modeling_auto

KINDS = {
    "image-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "multimodal": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
}
"""Kinds of language models, the richest first: a type with several counts as the first."""
VOCABULARY, WORDS = 128, 60  # ids from WORDS on are special tokens
TOKENS = ("_token_id", "_token_index")  # how config fields for special tokens end
HEADS, HEAD = 4, 16
DROPOUT = 0.1
KIND_OF_LAYER = {"layer_types": "full_attention", "mlp_layer_types": "sparse"}  # where a config has none
LARGEST = 125_000_000  # parameters of a model that is still worth its seconds
LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth", "layers",
    "num_decoder_layers", "num_encoder_layers", "decoder_num_layers", "encoder_num_hidden_layers",
    "decoder_num_hidden_layers", "speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers",
    "conf_num_hidden_layers", "resampler_depth",
)  # fmt: skip
SIZES: tuple[tuple[int, str], ...] = (
    (
        HEADS * HEAD,
        "hidden_size d_model n_embd embed_dim embedding_size word_embed_proj_dim out_hidden_size projection_dim dim "
        "lru_width projector_hidden_size text_hidden_size encoder_hidden_size hidden_dim vision_output_dim emb_dim "
        "decoder_hidden_size cross_hidden_size output_dim embedding_dim hidden_size_global backbone_hidden_size "
        "image_text_hidden_size attention_hidden_size vision_hidden_size decoder_dim "
        "mamba_d_ssm",
    ),
    (
        96,
        "intermediate_size ffn_dim n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim d_ff dff mlp_dim dim_ff "
        "shared_intermediate_size intermediate_size_mlp dense_intermediate_size feed_forward_size d_inner "
        "speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim decoder_intermediate_size",
    ),
    (
        32,
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size share_expert_dim "
        "expert_ffn_hidden_size shared_experts_intermediate_size moe_hidden_size router_hidden_size image_size "
        "resolution window_size",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
        "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_value_heads index_n_heads "
        "swa_num_attention_heads encoder_num_attention_heads decoder_num_attention_heads linear_num_heads "
        "num_encoder_attention_heads num_decoder_attention_heads cross_num_attention_heads resampler_n_heads "
        "num_sliding_attention_heads conf_num_attention_heads speech_encoder_attention_heads "
        "t2u_encoder_attention_heads t2u_decoder_attention_heads",
    ),
    (
        2,
        "num_key_value_heads num_experts_per_tok moe_topk top_k_experts moe_k linear_num_key_heads "
        "swa_num_key_value_heads num_query_groups num_kv_heads encoder_num_key_value_heads num_experts_per_token "
        "decoder_num_key_value_heads cross_num_key_value_heads spatial_merge_size n_mamba_heads temporal_patch_size",
    ),
    (
        HEAD,
        "head_dim d_kv v_head_dim qk_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim mamba_d_head "
        "mamba_head_dim mamba_headdim linear_head_dim index_head_dim q_lora_rank kv_lora_rank query_pre_attn_scalar "
        "d_head attention_head_dim kv_channels cross_head_dim resampler_head_dim hidden_size_per_layer_input "
        "num_mel_bins input_feat_per_channel attention_head_size index_topk o_lora_rank dim_head",
    ),
    (
        8,
        "qk_rope_head_dim qk_nope_head_dim state_size mamba_d_state mamba_n_heads mamba_num_heads ssm_state_size "
        "sliding_window sliding_window_size chunk_size mamba_chunk_size attention_window_size patch_size "
        "attention_chunk_size rotary_dim",
    ),
    (
        1,
        "n_group topk_group n_groups mamba_n_groups first_k_dense_replace n_shared_experts moe_num_shared_experts "
        "num_nextn_predict_layers expand decoder_start_token_id bos_token_id",
    ),
    (
        VOCABULARY,
        "max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_target_positions context_length "
        "vocab_size_per_layer_input unpadded_vocab_size vocab_size decoder_vocab_size src_vocab_size "
        "tgt_vocab_size max_decoder_position_embeddings max_encoder_position_embeddings max_text_positions "
        "t2u_vocab_size t2u_max_position_embeddings encoder_hash_byte_group_vocab char_vocab_size audio_vocab_size "
        "unit_hifi_gan_vocab_size mel_vocab_size codebook_vocab_size",
    ),
    (20, "max_source_positions"),
    (0, "pad_token_id num_kv_shared_layers"),
)
"""A small value, and the names of config fields that get it."""
SMALL = {name: value for value, names in SIZES for name in names.split()}


def types() -> dict[str, tuple[str, str]]:
    """Every language model type of the installed transformers -> its kind and the name of its class."""
    found: dict[str, tuple[str, str]] = {}
    for kind, mapping in KINDS.items():
        for model_type, cls in getattr(modeling_auto, mapping).items():
            found.setdefault(model_type, (kind, cls if isinstance(cls, str) else cls[0]))
    return dict(sorted(found.items()))


def make(model_type: str, cls: str, *, fill: bool = False, seed: int = 0) -> Any:
    """A small model in fp32 and training mode, with random norms: a weight that is not read would not be seen at 1.

    Args:
        model_type, cls: as ``types`` has them.
        fill: give sizes that are None by default as well, and no dropout, which some types need.
        seed: of its weights.

    Raises:
        Exception: whatever upstream says about values that do not go together.
    """
    config = shrink(CONFIG_MAPPING[model_type](), fill)
    config._attn_implementation = "eager"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if getattr(config, "is_encoder_decoder", False):  # upstream makes the decoder's inputs from labels, with these
        for name, token in (("decoder_start_token_id", 1), ("pad_token_id", 0)):
            if getattr(config, name, None) is None:
                setattr(config, name, token)
    _check_size(cls, config)
    torch.manual_seed(seed)
    model = getattr(transformers, cls)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.float().train()


def _check_size(cls: str, config: PretrainedConfig) -> None:
    try:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in getattr(transformers, cls)(config).parameters())
    except Exception:  # some cannot be made on the meta device, and the errors of all others come again
        return
    if count > LARGEST:
        raise ValueError(f"it has {count / 1e6:.0f} million parameters with every known size cut")


# -- Configs -----------------------------------------------------------------------------------------------------------
def shrink(config: PretrainedConfig, fill: bool = False) -> PretrainedConfig:
    """The same kind of config with small sizes; ``fill``: also where the size is None."""
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    kept = _kept_layers(fields)
    given = {name: _small(name, value, fields, kept, fill) for name, value in fields.items()}
    known = inspect.signature(type(config)).parameters
    return type(config)(**{name: value for name, value in given.items() if name in known})


def _kept_layers(fields: Mapping[str, Any]) -> list[int]:
    """Indices of layers: one of each kind that the lists with one entry per layer tell apart, two at least."""
    count = next((fields[name] for name in LAYERS if isinstance(fields.get(name), int)), 2)
    lists = [value for value in fields.values() if isinstance(value, list) and len(value) == count]
    seen: dict[Any, int] = {}
    for at in range(count):
        seen.setdefault(repr([entry[at] for entry in lists]), at)
    kept = sorted(seen.values())[:4]
    return kept if len(kept) > 1 else [*range(min(2, count))]


def _small(name: str, value: Any, fields: Mapping[str, Any], kept: list[int], fill: bool) -> Any:
    if isinstance(value, PretrainedConfig):
        return shrink(value, fill)
    if value is None and fill:
        return _filled(name, fields, kept)
    if name == "rope_parameters" and isinstance(value, dict):
        return _rope(value, fields)
    if isinstance(value, (list, tuple)) and value:
        return _small_list(name, list(value), fields, kept)
    if type(value) is float and "drop" in name and value < 1:
        return 0.0 if fill else DROPOUT  # a replacement that loses it would not be seen without; some refuse it
    return _small_number(name, value, fields, kept) if type(value) is int else value


def _small_number(name: str, value: int, fields: Mapping[str, Any], kept: list[int]) -> int:
    if name in LAYERS:
        return len(kept)
    if name == "head_dim" and "qk_rope_head_dim" in fields:
        return SMALL["qk_rope_head_dim"]
    if name.endswith("num_key_value_heads") and value == fields.get(name.replace("key_value", "attention")):
        return HEADS
    if name in SMALL:
        return min(value, SMALL[name])
    return _special(name, fields) if name.endswith(TOKENS) and value >= WORDS else value


def _filled(name: str, fields: Mapping[str, Any], kept: list[int]) -> Any:
    """A value for a field that is None."""
    if name in KIND_OF_LAYER:
        return [KIND_OF_LAYER[name]] * len(kept)
    if name == "vocabulary_map":
        return {"<image>": WORDS, "<|extra_200|>": WORDS + 1}
    return _special(name, fields) if name.endswith(TOKENS) else SMALL.get(name)


def _special(name: str, fields: Mapping[str, Any]) -> int:
    """An id of its own for each special token of a config."""
    return WORDS + sorted(n for n in fields if n.endswith(TOKENS)).index(name)


def _small_list(name: str, value: list[Any], fields: Mapping[str, Any], kept: list[int]) -> Any:
    count = next((fields[n] for n in LAYERS if isinstance(fields.get(n), int)), 0)
    if name.endswith("token_id"):
        return 2
    if name == "attention_types":  # gpt_neo's: kinds of layers, and how often
        return [[kinds, len(kept) // len(kinds)] for kinds, _ in value]
    if len(value) == count:
        value = [value[at] for at in kept]
    if name in SMALL and all(isinstance(v, int) for v in value):
        return [min(v, SMALL[name]) for v in value]
    places = ("layers", "indexes", "indices", "idxs", "layer_ids", "layer")
    if name.endswith(places) and all(type(v) is int and v < (count or v + 1) for v in value):
        return [v for v in value if v < len(kept)] or [len(kept) - 1]
    return value


def _rope(value: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the rotary embedding for a head of the small size; types that need more become the default."""
    if not value:
        return {}
    if any(v is None or isinstance(v, dict) for v in value.values()):
        return {kind: _rope(inner, fields) if isinstance(inner, dict) else inner for kind, inner in value.items()}
    lists = {n for n, v in value.items() if isinstance(v, (list, tuple))}
    kept = {n: v for n, v in value.items() if n not in lists}
    if lists - {"mrope_section"}:
        kept["rope_type"] = "default"  # longrope has a factor for each pair
    head = SMALL["qk_rope_head_dim"] if "qk_rope_head_dim" in fields else HEAD
    pairs = int(head * (value.get("partial_rotary_factor") or fields.get("partial_rotary_factor") or 1.0)) // 2
    third = pairs // 3
    return {**kept, "mrope_section": [pairs - 2 * third, third, third]}


# -- Batches -----------------------------------------------------------------------------------------------------------
def batches(model: Any) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Inputs with labels to try on a model, each with a word for what it holds: the richest first."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, WORDS, (2, 15), generator=generator)
    labels = ids.masked_fill(torch.arange(15) < 3, -100)
    takes = inspect.signature(type(model).forward).parameters
    if "pixel_values" in takes:
        for inputs in _images(model, takes, generator):
            try:
                yield "images", _with_images(model, ids, labels, inputs)
            except Exception:  # this form of images is not the model's
                continue
    if model.main_input_name == "input_features":
        for frames in (40, 16, 64):
            yield "sound", {"input_features": torch.randn(2, HEAD, frames, generator=generator), "labels": labels}
            yield "sound", {"input_features": torch.randn(2, frames, HEAD, generator=generator), "labels": labels}
    if "input_values" in takes:
        yield "sound", {"input_values": torch.randn(2, 4000, generator=generator), "labels": labels}
    if model.main_input_name == "pixel_values":
        yield "images", {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator), "labels": labels}
    if "pixel_values" in takes:
        images = torch.randn(2, 3, 32, 32, generator=generator)
        yield "images", {"pixel_values": images, "input_ids": ids, "labels": labels}
    yield "text", {"input_ids": ids, "labels": labels}
    kinds = {name: torch.zeros_like(ids) for name in ("token_type_ids", "mm_token_type_ids") if name in takes}
    yield "text", {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, **kinds}


def _images(model: Any, takes: Mapping[str, Any], generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Forms of two images: as rows of patches, and as pixels."""
    vision = getattr(model.config, "vision_config", model.config)
    patch = getattr(vision, "patch_size", 8)
    if "image_grid_thw" in takes and isinstance(patch, int):
        width = getattr(vision, "in_channels", 3) * getattr(vision, "temporal_patch_size", 1) * patch**2
        grid = torch.tensor([[1, 4, 4]] * 2)
        yield {"pixel_values": torch.randn(32, width, generator=generator), "image_grid_thw": grid}
    size = getattr(vision, "image_size", 32)
    shape = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    yield {"pixel_values": torch.randn(2, 3, *shape, generator=generator)}


def _with_images(model: Any, ids: Tensor, labels: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Text with as many image tokens as the model makes of two images."""
    names = ("image_token_id", "image_token_index")
    token = next(getattr(model.config, name) for name in names if getattr(model.config, name, None) is not None)
    with torch.no_grad():
        found = model.get_image_features(**inputs)
    found = getattr(found, "pooler_output", found)
    count = sum(f.shape[:-1].numel() for f in (found if isinstance(found, (list, tuple)) else [found])) // 2
    images = torch.full((2, count), token)
    whole = torch.cat((ids[:, :4], images, ids[:, 4:]), 1)
    ignored = torch.cat((labels[:, :4], images * 0 - 100, labels[:, 4:]), 1)
    made = {"input_ids": whole, "labels": ignored, "attention_mask": torch.ones_like(whole), **inputs}
    if "mm_token_type_ids" in inspect.signature(type(model).forward).parameters:
        made["mm_token_type_ids"] = (whole == token).long()
    return made
