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
    if hasattr(module, "rope_layer_type"):  # tables of each kind of layer (deepseek_v4)
        position_embeddings = {module.rope_layer_type: position_embeddings}
        module = _without_compressor(module)
    further["freqs_ci" if "freqs_ci" in _parameters(module) else "position_embeddings"] = position_embeddings
    out = module.forward(hidden, **further)
    return out if isinstance(out, Tensor) else out[0]


def _without_compressor(module: Any) -> Any:
    copy: Any = object.__new__(type(module))
    copy.__dict__.update(module.__dict__, _modules={**module._modules, COMPRESSOR: None})
    return copy


def _shared(module: Any, hidden: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Keys and values that an attention without its own takes from a layer before it (gemma3n, gemma4)."""
    heads = module.config.num_attention_heads // module.num_key_value_groups
    states = hidden.new_ones(1, heads, hidden.shape[1], module.head_dim)
    return {module.layer_type: (states, states)} if module.is_kv_shared_layer else {}


def _is_packed(module: Any) -> bool:
    """Whether it is an attention of a vision tower, which takes all images as one row of tokens."""
    return "cu_seqlens" in _parameters(module)


def _parameters(module: Any) -> Collection[str]:
    """Names of what upstream's forward takes."""
    cls: Any = original_class(module)
    return inspect.signature(cls.forward).parameters


def _rotated(module: Any) -> int:
    """Columns of a head that are rotated, as upstream's configs say it."""
    config = module.config
    if hasattr(config, "qk_rope_head_dim"):
        return int(config.qk_rope_head_dim)
    scaled = getattr(config, "rope_parameters", None) or {}
    part = scaled.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return int(module.head_dim * part)


def _hidden(module: Any, generator: torch.Generator, tokens: int) -> Tensor:
    """Hidden states (1, T, H), or (T, H) of a vision tower, in the dtype and on the device of the first weight."""
    if _is_packed(module):
        shape: tuple[int, ...] = tokens, next(m.in_features for m in module.modules() if hasattr(m, "in_features"))
    else:
        shape = 1, tokens, module.config.hidden_size
    return torch.randn(shape, generator=generator).to(*place(module)).requires_grad_()
