"""Which fits the classes of an upstream model meet: each is tried on a small one, and its own ``match`` decides.

It only starts a declaration: classes that no fit suits are named, and the checks of ``liger.testing`` decide.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from liger import Fit
from liger.declare import load
from liger.swap import match_signature
from liger_hf import fits

Guess = tuple[Callable[..., Fit], dict[str, Any]]
"""A function of ``liger_hf.fits`` and its arguments."""
WRITTEN_EPS = (1e-5, 1e-6)  # where upstream has no attribute (olmo)


def recognise(module: str, model: str, config: str, settings: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Try the fits on a model made from a config.

    Args:
        module: that defines the model's class, imported here.
        model, config: names of its class and of its config's.
        settings: arguments of the config, small.

    Returns:
        Class name -> call of ``liger_hf.fits`` as source text; and the classes that a fit should suit, but none does.

    Raises:
        ValueError: no model can be made from these settings.
    """
    classes: dict[type, list[nn.Module]] = {}
    for part in _make(module, model, config, settings).modules():
        if _kind(type(part), module):
            classes.setdefault(type(part), []).append(part)
    found, unknown = {}, []
    for cls, parts in classes.items():
        name = cls.__name__ if cls.__module__ == module else f"{cls.__module__}.{cls.__qualname__}"
        if guess := next((g for part in parts for g in GUESSES[_kind(cls, module)](part) if _suits(part, *g)), None):
            found[name] = _as_text(*guess)
        else:
            unknown.append(name)
    return found, unknown


def _make(module: str, model: str, config: str, settings: Mapping[str, Any]) -> nn.Module:
    upstream = importlib.import_module(module)
    configs = importlib.import_module(module.replace(".modeling_", ".configuration_"))
    try:
        made = getattr(configs, config)(**settings)
        made._attn_implementation = "eager"
        with torch.random.fork_rng(devices=[]):
            return getattr(upstream, model)(made)  # type: ignore[no-any-return]
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        raise ValueError(
            f"no small {model} can be made with {given}: {' '.join(str(error).split())}; declare it by hand, "
            "docs/add-a-model.md says how"
        ) from error


def _kind(cls: type, module: str) -> str:
    """The word in the name of one of upstream's classes that tells that a fit may suit it."""
    ours = cls.__module__ == module or cls is nn.LayerNorm
    return next((word for word in GUESSES if word in cls.__name__), "") if ours else ""


def _suits(part: nn.Module, make: Callable[..., Fit], options: dict[str, Any]) -> bool:
    fit = make(**options)
    return match_signature(load(fit.adapter), type(part)) is None and load(fit.match or "")(part, fit.options) is None


def _as_text(make: Callable[..., Fit], options: dict[str, Any]) -> str:
    defaults = inspect.signature(make).parameters
    words = [
        f"{name}={json.dumps(value) if isinstance(value, str) else repr(value)}"
        for name, value in options.items()
        if value != defaults[name].default
    ]
    return f"fits.{make.__name__}({', '.join(words)})"


# -- Guesses -----------------------------------------------------------------------------------------------------------
def _attributes(part: nn.Module, kind: type) -> list[str]:
    return [name for name, value in vars(part).items() if type(value) is kind]


def _norms(part: nn.Module) -> Iterator[Guess]:
    for eps in _attributes(part, float):
        for cast in ("llama", "fp32-weight", "gemma", "none"):
            yield fits.rms_norm, {"cast": cast, "eps": eps}
        yield fits.layer_norm, {"eps": eps}
        yield fits.cohere_norm, {"eps": eps}
    for written in WRITTEN_EPS:
        yield fits.layer_norm, {"eps": written}


def _gated_norms(part: nn.Module) -> Iterator[Guess]:
    counts = [{word: name} for name in _attributes(part, int) for word in ("groups", "group_size")]
    every = itertools.product(
        _attributes(part, float), (True, False), ("llama", "fp32-weight"), ("silu", "sigmoid"), [{}, *counts]
    )
    for eps, first, cast, activation, more in every:
        options = {"norm_before_gate": first, "cast": cast, "activation": activation, "eps": eps}
        yield fits.gated_rms_norm, {**options, **more}


def _mlps(part: nn.Module) -> Iterator[Guess]:
    yield fits.mlp, {}
    for act, multipliers in itertools.product(fits.GATED, (True, False)):
        yield fits.gated_mlp, {"act": act, "multipliers": multipliers}
    linear = [name for name, child in part.named_children() if isinstance(child, nn.Linear)]
    others = [name for name, _ in part.named_children() if name not in linear]
    for (merged, down), act_fn in itertools.product(itertools.permutations(linear, 2), others):
        for act, layout in itertools.product(fits.GATED, fits.PACKED):
            yield fits.packed_mlp, {"act": act, "layout": layout, "merged": merged, "down": down, "act_fn": act_fn}


def _experts(part: nn.Module) -> Iterator[Guess]:
    for layout in fits.PACKED:
        for alpha, limit in itertools.permutations(_attributes(part, float), 2):
            yield fits.clamped_experts, {"layout": layout, "alpha": alpha, "limit": limit}
        for act in fits.GATED:
            yield fits.experts, {"act": act, "layout": layout}


def _attentions(part: nn.Module) -> Iterator[Guess]:
    here = vars(importlib.import_module(type(part).__module__))
    for function in [name for name in here if name.startswith(("apply_rotary", "vision_apply_rotary"))]:
        for layout, tables, cast in itertools.product(fits.LAYOUTS, fits.TABLES, fits.ROPE_CASTS):
            yield fits.rope, {"layout": layout, "tables": tables, "cast": cast, "function": function}
        for unsqueeze_dim in (2, 1):
            yield fits.rope_complex, {"function": function, "unsqueeze_dim": unsqueeze_dim}


GUESSES = {"NormGated": _gated_norms, "Norm": _norms, "MLP": _mlps, "Experts": _experts, "Attention": _attentions}
"""A word in the name of a class -> what to try on it; the first word that is there counts."""
