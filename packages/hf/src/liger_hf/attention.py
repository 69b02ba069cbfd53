"""Attentions run by themselves on a few tokens, to see that a rotary function is reached, and for ``verify=True``."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from liger.declare import Probe
from liger.swap import original_class
from liger_hf.standin import place

HEAD = ("head_dim", "head_size", "attention_head_size", "dim_head")
"""Attributes that hold the columns of a head."""
TABLES = ("freqs_ci", "position_embeddings")
"""Parameters for cos and sin, or for complex numbers."""
COMPRESSOR = "compressor"
"""A child that does nothing with few tokens (deepseek_v4): probes leave it out."""


def probe_attention(module: Any, generator: torch.Generator, tables: str = "column", tokens: int = 5) -> Probe:
    """An attention on a few tokens, without mask and cache, with cos and sin (1, T, C), or (T, C) of a vision tower."""
    batch = () if _is_packed(module) else (1,)
    angle = torch.randn(*batch, tokens, _rotated(module) // (2 if tables == "pair" else 1), generator=generator)
    hidden = _hidden(module, generator, tokens)
    cos, sin = (t.to(hidden) for t in (angle.cos(), angle.sin()))
    uses = tuple(name for name, _ in module.named_children() if name != COMPRESSOR)
    run = lambda m, hidden, cos, sin: _attend(m, hidden, (cos, sin))  # noqa: E731
    return Probe(run, (hidden, cos, sin), uses if COMPRESSOR in module._modules else None)


def probe_attention_pair(module: Any, generator: torch.Generator) -> Probe:
    """The same where a table has one column for each pair."""
    return probe_attention(module, generator, "pair")


def probe_complex(module: Any, generator: torch.Generator, tokens: int = 5) -> Probe:
    """The same with complex numbers (1, T, D / 2)."""
    hidden = _hidden(module, generator, tokens)
    angle = torch.randn(1, tokens, _rotated(module) // 2, generator=generator)
    return Probe(_attend, (hidden, torch.polar(torch.ones_like(angle), angle).to(hidden.device)))


def _attend(module: Any, hidden: Tensor, position_embeddings: Any) -> Tensor:
    if _is_packed(module):
        whole = torch.tensor([0, len(hidden)], dtype=torch.int32, device=hidden.device)
        further: dict[str, Any] = {"cu_seqlens": whole}
    else:
        further = {"attention_mask": None}
        if "shared_kv_states" in _parameters(module):
            further["shared_kv_states"] = _shared(module, hidden)
        if "position_ids" in _parameters(module):
            further["position_ids"] = torch.arange(hidden.shape[1], device=hidden.device)[None]
    further |= {name: _further(module, name, hidden) for name in _required(module) if name not in (*further, *TABLES)}
    if hasattr(module, "rope_layer_type"):  # tables of each kind of layer (deepseek_v4)
        position_embeddings = {module.rope_layer_type: position_embeddings}
        module = _without_compressor(module)
    further[next(name for name in TABLES if name in (*_parameters(module), TABLES[-1]))] = position_embeddings
    out = module.forward(hidden, **further)
    return out if isinstance(out, Tensor) else out[0]


def _required(module: Any) -> list[str]:
    """Names of what upstream's forward must get beside the hidden states."""
    cls: Any = original_class(module)
    named = list(inspect.signature(cls.forward).parameters.values())[2:]
    return [p.name for p in named if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]


def _further(module: Any, name: str, hidden: Tensor) -> Any:
    """What a forward takes that no other attention does; None where that is an answer too (a mask)."""
    if name == "layer_idx":  # a block that several layers share (zamba2)
        return getattr(module, "layer_idx", 0)
    if name == "q_resid":  # an indexer's: what the latent attention around it makes of hidden states (deepseek_v32)
        return hidden.new_ones(*hidden.shape[:-1], module.q_lora_rank)
    return hidden if name == "encoder_hidden_states" else None


def _without_compressor(module: Any) -> Any:
    copy: Any = object.__new__(type(module))
    copy.__dict__.update(module.__dict__, _modules={**module._modules, COMPRESSOR: None})
    return copy


def _shared(module: Any, hidden: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Keys and values that an attention without its own takes from a layer before it (gemma3n, gemma4)."""
    if not module.is_kv_shared_layer:
        return {}
    heads = module.config.num_attention_heads // module.num_key_value_groups
    states = hidden.new_ones(1, heads, hidden.shape[1], module.head_dim)
    return {module.layer_type: (states, states)}


def _is_packed(module: Any) -> bool:
    """Whether it is an attention of a vision tower, which takes all images as one row of tokens."""
    return "cu_seqlens" in _parameters(module)


def _parameters(module: Any) -> Collection[str]:
    """Names of what upstream's forward takes."""
    cls: Any = original_class(module)
    return inspect.signature(cls.forward).parameters


def _rotated(module: Any) -> int:
    """Columns of a head that are rotated, as upstream's modules and configs say it."""
    config = getattr(module, "config", None)
    if columns := _said(("qk_rope_head_dim",), module, config):
        return int(columns)
    scaled = getattr(config, "rope_parameters", None) or {}
    part = scaled.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return int(_said(HEAD, module, config) * part)


def _said(names: Collection[str], *places: Any) -> Any:
    """The first of some attributes that one of some objects has; None if there is none."""
    return next((getattr(place, name) for place in places for name in names if hasattr(place, name)), None)


def _hidden(module: Any, generator: torch.Generator, tokens: int) -> Tensor:
    """Hidden states (1, T, H), or (T, H) of a vision tower, in the dtype and on the device of the first weight."""
    width = next(m.in_features for m in module.modules() if hasattr(m, "in_features"))
    if not _is_packed(module):
        config = getattr(module, "config", None)
        width = _said(("attention_hidden_size",), module) or _said(("hidden_size",), config) or width
    shape = (tokens, width) if _is_packed(module) else (1, tokens, width)
    return torch.randn(shape, generator=generator).to(*place(module)).requires_grad_()
