"""Which fits the modules of a model meet: by structure, then each candidate's own ``match`` decides, bit by bit.

The run time asks for each module of a model that no package declares; ``liger new model`` writes the answers down for a
small model. Nothing is guessed: a module that no fit suits is named with the reason, and so is an error of a probe.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from liger import Fit
from liger.declare import load
from liger.errors import LigerError
from liger.plugins import describe
from liger.report import IDLE
from liger.swap import match_signature, original_class
from liger_hf import fits
from liger_hf.standin import RUNS, held, plain

Guess = tuple[Callable[..., Fit], dict[str, Any]]
"""A function of ``liger_hf.fits`` and its arguments."""
EPS = ("eps", "variance_epsilon")  # usual names
WRITTEN_EPS = (1e-5, 1e-6)  # where upstream has no attribute (olmo)
USUAL = set(fits.PROJECTIONS.values())
EXPECTED = ("Norm", "MLP", "FeedForward", "Experts")
"""Words in the name of a class that tell that a fit could suit it, so that it is named also where parts are missing."""


def recognise_module(module: nn.Module) -> Fit | str | None:
    """The fit that suits a module, why none does although one could, or None where there is nothing to replace."""
    found = _find(module)
    return found[0](**found[1]) if isinstance(found, tuple) else found


def as_source(module: nn.Module) -> str | None:
    """The call of ``liger_hf.fits`` that suits a module, as source text; None for a head and where none suits."""
    found = _find(module)
    return _as_text(*found) if isinstance(found, tuple) and found[0] is not fits.causal_lm_head else None


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
    found: dict[str, str] = {}
    unknown: list[str] = []
    for part in _make(module, model, config, settings).modules():
        cls = type(part)
        name = cls.__name__ if cls.__module__ == module else f"{cls.__module__}.{cls.__qualname__}"
        answer = _find(part)
        if isinstance(answer, tuple) and answer[0] is not fits.causal_lm_head:
            found.setdefault(name, _as_text(*answer))
        elif isinstance(answer, str) and name not in unknown:
            unknown.append(name)
    return found, [name for name in unknown if name not in found]


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


def _as_text(make: Callable[..., Fit], options: dict[str, Any]) -> str:
    defaults = inspect.signature(make).parameters
    words = [
        f"{name}={json.dumps(value) if isinstance(value, str) else repr(value)}"
        for name, value in options.items()
        if value != defaults[name].default
    ]
    return f"fits.{make.__name__}({', '.join(words)})"


# -- Trying ------------------------------------------------------------------------------------------------------------
_found: dict[tuple[Any, ...], Guess | str | None] = {}


def _find(part: nn.Module) -> Guess | str | None:
    try:
        if _has_head(part):
            return fits.causal_lm_head, {}  # what lies between head and loss is for its ``parts`` to find
        if _takes_labels(part) and getattr(original_class(part), "can_generate", bool)():
            return "it has no output embeddings that tell which layer makes its logits: real logits"
        key = _key(part)
        if key not in _found:
            _found[key] = _try(part)
        return _found[key]
    except Exception as error:
        return f"looking at it failed with {describe(error)}"


def _key(part: nn.Module) -> tuple[Any, ...]:
    """Equal for modules that get the same answer."""
    shapes = tuple((n, p if p is None else (type(p), tuple(p.shape))) for n, p in part._parameters.items())
    children = tuple((n, type(c), plain(c) if c is not None else ()) for n, c in part._modules.items())
    cls: Any = original_class(part)
    return cls, getattr(cls, "forward", None), held(part), shapes, children


def _try(part: nn.Module) -> Guess | str | None:
    guesses = [guess for applies, make in KINDS if applies(part) for guess in make(part)]
    reasons: dict[str, str] = {}
    for guess in guesses:
        fit, reason = _mismatch(part, *guess)
        if reason is None or reason.startswith(IDLE):
            return guess
        reasons.setdefault(reason, fit)
    name = original_class(part).__name__
    nearest = max(reasons, key=_how_far, default="")
    known = rotary(part) or any(words in nearest for words in COMPARED)
    if not known and not any(word in name for word in EXPECTED):
        return None
    if not reasons and any(_find(child) is not None for child in part.children()):
        return None  # a mixture's block: its parts are named
    if _how_far(nearest) == 0:
        parts = ", ".join([*part._modules, *part._parameters]) or "none"
        return f"no fit is for a module with forward({', '.join(_parameters(part))}) and the parts {parts}"
    return f"none of {len(guesses)} fits suits it; {reasons[nearest]}: {nearest}"


STAGES = (
    "it has no",
    "it has the parameters",
    "it has no float attribute",
    "its weight has",
    "forward takes",
    "its activation",
    "its forward is",
    "float32 with",
    "bfloat16 with",
    *map(str, RUNS),
    "its forward changes",
    "its forward draws",
    "its forward turns",
    "a gradient of",
    "in its closure",
    "a probe call of its forward",
)
"""Words of the reasons of ``match``, in the order in which it looks."""
COMPARED = STAGES[STAGES.index("its activation") :]
"""Of those that tell that all parts were there: such a module is named whatever its class is called."""


def _how_far(reason: str) -> int:
    """How much of a module was right before ``reason`` was found."""
    failed = STAGES.index("its activation") if reason else 0  # a probe failed: before anything could be compared
    return max((at for at, words in enumerate(STAGES) if words in reason), default=failed)


def _mismatch(part: nn.Module, make: Callable[..., Fit], options: dict[str, Any]) -> tuple[str, str | None]:
    """The fit's id, and why it does not suit."""
    fit = make(**options)
    try:
        reason = match_signature(load(fit.adapter), original_class(part))
        return fit.id, reason or load(fit.match or "")(part, fit.options)
    except LigerError as error:
        return fit.id, str(error)
    except Exception as error:
        return fit.id, f"a probe of it failed with {describe(error)}"


# -- Structure ---------------------------------------------------------------------------------------------------------
def _takes_labels(part: nn.Module) -> bool:
    """Whether it is a model of transformers that gets labels."""
    return hasattr(part, "get_output_embeddings") and "labels" in _parameters(part)


def _has_head(part: nn.Module) -> bool:
    """Whether it is a model with output embeddings that computes a loss."""
    if not _takes_labels(part):
        return False
    try:
        return part.get_output_embeddings() is not None  # type: ignore[operator]
    except Exception:  # upstream's way to say that this class has none
        return False


def _parameters(part: nn.Module) -> list[str]:
    """Names of what its forward takes."""
    cls: Any = original_class(part)
    return [] if cls.forward is nn.Module.forward else list(inspect.signature(cls.forward).parameters)[1:]


def _is_group_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.GroupNorm)


def _is_batch_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.modules.batchnorm._BatchNorm)


def _is_norm(part: nn.Module) -> bool:
    weight = part._parameters.get("weight")
    return (
        not part._modules
        and not _is_group_norm(part)  # its channels are elsewhere
        and not _is_batch_norm(part)
        and part._parameters.keys() <= {"weight", "bias"}
        and ("Norm" in original_class(part).__name__ or (weight is not None and weight.dim() == 1))
    )


def _is_mlp(part: nn.Module) -> bool:
    usual = part._modules.keys() >= USUAL  # gemma4's vision tower wraps its projections
    return (usual or len(_linears(part)) > 1) and len(_parameters(part)) == 1


def _is_experts(part: nn.Module) -> bool:
    return hasattr(original_class(part), "_apply_gate")


def _linears(part: nn.Module) -> list[str]:
    """Children with a weight (out, in), also quantised or with an adapter."""
    return [name for name, child in part.named_children() if hasattr(child, "in_features")]


def rotary(part: nn.Module) -> list[str]:
    """Names of functions for rotary embeddings that its forward, or one that a decorator wraps, may call."""
    cls: Any = original_class(part)
    layer, names = cls.forward, []
    while isinstance(layer, types.FunctionType):
        for name in layer.__code__.co_names:
            found = layer.__globals__.get(name)
            if ("rotary" in name or "rope" in name) and isinstance(found, types.FunctionType):
                names.append(name)
        layer = getattr(layer, "__wrapped__", None)
    return names


# -- Guesses -----------------------------------------------------------------------------------------------------------
def _attributes(part: nn.Module, kind: type) -> list[str]:
    return [name for name, value in vars(part).items() if type(value) is kind]


def _norms(part: nn.Module) -> Iterator[Guess]:
    named = [name for name in EPS if hasattr(part, name)]
    for eps in _attributes(part, float) or named:
        for cast in ("llama", "fp32-weight", "gemma", "none"):
            yield fits.rms_norm, {"cast": cast, "eps": eps}
        yield fits.layer_norm, {"eps": eps}
        yield fits.cohere_norm, {"eps": eps}
        yield fits.t5_norm, {"eps": eps}
        for rounded in (False, True):
            yield fits.weightless_norm, {"eps": eps, "rounded": rounded}
        for cast in ("fp32", "none"):
            yield fits.l2norm, {"eps": eps, "cast": cast}
    for written in () if named else WRITTEN_EPS:
        yield fits.layer_norm, {"eps": written}


def _group_norms(part: nn.Module) -> Iterator[Guess]:
    yield fits.group_norm, {}


def _gated_norms(part: nn.Module) -> Iterator[Guess]:
    if len(_parameters(part)) != 2:
        return
    counts = [{word: name} for name in _attributes(part, int) for word in ("groups", "group_size")]
    every = itertools.product(
        _attributes(part, float), (True, False), ("llama", "fp32-weight"), ("silu", "sigmoid"), [{}, *counts]
    )
    for eps, first, cast, activation, more in every:
        options = {"norm_before_gate": first, "cast": cast, "activation": activation, "eps": eps}
        yield fits.gated_rms_norm, {**options, **more}


def _mlps(part: Any) -> Iterator[Guess]:
    for act, multipliers in itertools.product(fits.GATED, (True, False)):
        yield fits.gated_mlp, {"act": act, "multipliers": multipliers}
    for name, act in itertools.product(_attributes(part, float), fits.GATED):
        yield fits.gated_mlp, {"act": act, "limit": name}
        yield fits.gated_mlp, {"act": act, "residual": name}
    for dropout, act in itertools.product([n for n, c in part.named_children() if type(c) is nn.Dropout], fits.GATED):
        yield fits.gated_mlp, {"act": act, "dropout": dropout}
    for (alpha, limit), layout in itertools.product(itertools.permutations(_attributes(part, float), 2), fits.PACKED):
        yield fits.clamped_mlp, {"layout": layout, "alpha": alpha, "limit": limit}
    linear = _linears(part)
    others = [name for name, _ in part.named_children() if name not in linear]
    for (gate, up, down), act_fn in itertools.product(itertools.permutations(linear, 3), [*others, None]):
        wide = {getattr(part, gate).out_features, getattr(part, up).out_features}
        for act in fits.GATED if wide == {getattr(part, down).in_features} else ():
            yield fits.gated_mlp, {"act": act, "gate": gate, "up": up, "down": down, "act_fn": act_fn}
    for (merged, down), act_fn in itertools.product(itertools.permutations(linear, 2), others):
        if getattr(part, merged).out_features != 2 * getattr(part, down).in_features:
            continue
        for act, layout in itertools.product(fits.GATED, fits.PACKED):
            yield fits.packed_mlp, {"act": act, "layout": layout, "merged": merged, "down": down, "act_fn": act_fn}
    yield fits.mlp, {}  # last: of reasons that are equally far the first is told


def _experts(part: nn.Module) -> Iterator[Guess]:
    for layout in fits.PACKED:
        for alpha, limit in itertools.permutations(_attributes(part, float), 2):
            yield fits.clamped_experts, {"layout": layout, "alpha": alpha, "limit": limit}
        for act in fits.GATED:
            yield fits.experts, {"act": act, "layout": layout}
    for limit, act in itertools.product(_attributes(part, float), fits.GATED):
        yield fits.experts, {"act": act, "limit": limit}


def _attentions(part: nn.Module) -> Iterator[Guess]:
    for function in rotary(part):
        every = itertools.product((False, True), fits.LAYOUTS, fits.TABLES, fits.ROPE_CASTS)
        for last, layout, tables, cast in every:
            yield fits.rope, {"layout": layout, "tables": tables, "cast": cast, "function": function, "last": last}
        for unsqueeze_dim in (2, 1):
            yield fits.rope_complex, {"function": function, "unsqueeze_dim": unsqueeze_dim}


KINDS: tuple[tuple[Callable[[nn.Module], Any], Callable[[nn.Module], Iterator[Guess]]], ...] = (
    (_is_experts, _experts),
    (rotary, _attentions),
    (_is_group_norm, _group_norms),
    (_is_norm, _norms),
    (_is_norm, _gated_norms),
    (_is_mlp, _mlps),
)
"""What tells that guesses are worth trying, and the guesses."""
