"""MLPs: how upstream's modules meet the ops. They call the projections, so quantised ones and adapters on them work."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import Probe, load
from liger.registry import registry
from liger.report import IDLE
from liger.swap import Namespace, forward, original_class, own, quiet, refusing
from liger_hf.standin import DTYPES, ROWS, differs, gradients_differ, place, said, same, stand_in

WIDTH = 16


@forward(fixed={"act_fn": "act_fn", "unless": None})
def gated_mlp(
    op: Callable[..., Tensor],
    module: Any,
    x: Tensor,
    /,
    *,
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
    act_fn: str | None = "act_fn",
    limit: str | None = None,
    unless: str | None = None,
    dropout: str | None = None,
    residual: str | None = None,
    **options: Any,
) -> Tensor:
    """(..., H) -> (..., H)."""
    pair = getattr(module, gate)(x), getattr(module, up)(x)
    if limit is not None:
        pair = _cut(*pair, getattr(module, limit))
    product = op(*pair, **options)
    if dropout is not None:
        product = getattr(module, dropout)(product)
    y: Tensor = getattr(module, down)(product)
    return y if residual is None else nn.functional.dropout(y, getattr(module, residual), module.training)


def _cut(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Gate and up within the limit, in plain torch: no op does this in front of a plain activation."""
    return gate.clamp(max=limit), up.clamp(min=-limit, max=limit)


@forward(fixed={"act_fn": "act_fn"})
def scaled_mlp(op: Callable[..., Tensor], module: Any, x: Tensor, /, **options: Any) -> Tensor:
    """(..., H) -> (..., H). The product with ``down_multiplier`` stays behind the projection: upstream rounds there."""
    gate, up = module.gate_proj(x), module.up_proj(x)
    y = module.down_proj(op(gate, up, gate_multiplier=module.gate_multiplier, **options))
    return y * module.down_multiplier  # type: ignore[no-any-return]


@forward(fixed={"act_fn": None})
def packed_mlp(
    op: Callable[..., Tensor], module: Any, x: Tensor, /, *, merged: str, down: str, act_fn: str, **options: Any
) -> Tensor:
    """(..., H) -> (..., H)."""
    return getattr(module, down)(op(getattr(module, merged)(x), **options))  # type: ignore[no-any-return]


@forward
def clamped_mlp(
    op: Callable[..., Tensor], module: Any, x: Tensor, /, *, merged: str, alpha: str, limit: str, **options: Any
) -> Tensor:
    """(..., H) -> (..., H)."""
    read = {"alpha": getattr(module, alpha), "limit": getattr(module, limit)}
    return module.down_proj(op(getattr(module, merged)(x), **read, **options))  # type: ignore[no-any-return]


@forward(fixed={"act_fn": "act_fn"})
def mlp(op: Callable[..., Tensor], module: Any, x: Tensor, /) -> Tensor:
    """(..., H) -> (..., H)."""
    return module.down_proj(op(module.up_proj(x)))  # type: ignore[no-any-return]


def match_gated_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether the submodules are there, and the activation and the whole forward compute what the fit says."""
    act_fn, unless = options.get("act_fn", "act_fn"), options.get("unless")
    if unless and getattr(module, unless, None):
        return f"{IDLE}{_gated(options)} on the projection itself: {unless} is {getattr(module, unless)}"
    names = [options.get(name, f"{name}_proj") for name in ("gate", "up", "down")]
    residual = options.get("residual")
    names += [name for name in (act_fn, options.get("limit"), options.get("dropout"), residual) if name is not None]
    if residual is None or not hasattr(module, residual):
        return _match(module, options, _gated(options), gated_mlp, names, *_gelu(options), act_fn)
    still = quiet(module)  # a copy
    still.__dict__[residual] = 0.0  # draws nothing, so that all else can be compared bit by bit
    reason = _match(still, options, _gated(options), gated_mlp, names, *_gelu(options), act_fn)
    return reason or _dropout_differs(module, options, residual)


def _dropout_differs(module: nn.Module, options: Mapping[str, Any], residual: str) -> str | None:
    """Whether what it draws in training is the dropout behind the projection, by the elements that are left."""
    cls: Any = original_class(module)
    generator, act_fn = torch.Generator().manual_seed(0), options.get("act_fn", "act_fn")
    copy = stand_in(module, torch.float32, generator, () if act_fn is None else (act_fn,))
    copy.__dict__[residual] = 0.5
    x = torch.randn(ROWS, 2, WIDTH, generator=generator)
    ours = functools.partial(gated_mlp.__liger_adapter__, load(registry().op(_gated(options)).reference), **options)
    for copy.training in (True, False):
        results = []
        for forward_ in (cls.forward, ours):
            with torch.no_grad(), torch.random.fork_rng(devices=[]):  # both begin with the same state
                results.append(forward_(copy, x))
        if not same(*results):
            return f"its forward does not end with a dropout of probability {residual}, in training alone"
    return None


def match_scaled_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same, with both multipliers."""
    names = ("gate_proj", "up_proj", "down_proj", "gate_multiplier", "down_multiplier", "act_fn")
    return _match(module, options, _gated(options), scaled_mlp, names, *_gelu(options))


def match_packed_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same, with gate and up in one projection."""
    names = [options[part] for part in ("merged", "down", "act_fn") if options[part] is not None]
    return _match(module, options, f"{_gated(options)}_packed", packed_mlp, names, *_gelu(options), options["act_fn"])


def match_clamped_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether names and numbers are there, and its forward computes the op."""
    for name in (options["alpha"], options["limit"]):
        if not isinstance(getattr(module, name, None), float):
            return f"it has no float attribute {name!r}"
    if missing := [name for name in (options["merged"], "down_proj") if not hasattr(module, name)]:
        return f"it has no {', '.join(missing)}"
    inputs = [(ROWS, 2, WIDTH)]
    return differs(module, options, op="silu_mul_clamped_packed", adapter=clamped_mlp, inputs=inputs)


def match_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same, without a gate."""
    names = ("up_proj", "down_proj", "act_fn")
    return _match(module, options, "relu_squared", mlp, names, "relu2", lambda x: nn.functional.relu(x).square())


def _gated(options: Mapping[str, Any]) -> str:
    return "gelu_mul" if "approximate" in options else "silu_mul"


def _gelu(options: Mapping[str, Any]) -> tuple[str, Callable[[Tensor], Tensor]]:
    """The activation that the options mean, with a name for messages."""
    approximate = options.get("approximate")
    if approximate is None:
        return "silu", nn.functional.silu
    return f"gelu (approximate={approximate!r})", lambda x: nn.functional.gelu(x, approximate=approximate)


def _match(
    module: nn.Module,
    options: Mapping[str, Any],
    op: str,
    adapter: Any,
    names: Sequence[str],
    want: str,
    activation: Callable[[Tensor], Tensor],
    act_fn: str | None = "act_fn",
) -> str | None:
    """Whether ``names`` are there, ``act_fn`` computes ``activation``, and the forward what the adapter does.

    Without ``act_fn`` upstream's forward calls a function, and only the whole forward is compared.
    """
    missing = [n for n in names if not hasattr(module, n)]
    if missing:
        return f"it has no {', '.join(missing)}"
    if act_fn is not None and (reason := _activation(getattr(module, act_fn), want, activation)):
        return reason
    keep = () if act_fn is None else (act_fn,)
    return differs(module, options, op=op, adapter=adapter, inputs=[(ROWS, 2, WIDTH)], keep=keep)


def _activation(act: Any, want: str, activation: Callable[[Tensor], Tensor]) -> str | None:
    """Why a module's activation is not ``activation``, or must not be left out."""
    if isinstance(act, nn.Module):
        if any(True for _ in act.parameters()):
            return f"its activation {type(act).__name__} has parameters"
        if act._forward_hooks or act._forward_pre_hooks or act._backward_hooks or act._backward_pre_hooks:
            return f"hooks on its activation {type(act).__name__} would no longer be called"
    if not _computes(act, activation):
        return f"its activation {getattr(act, '__name__', type(act).__name__)} does not compute {want}"
    return None


def _computes(act: Any, activation: Callable[[Tensor], Tensor]) -> bool:
    """Also in training, where a dropout shows."""
    for dtype, training in itertools.product(DTYPES, (False, True)):
        if isinstance(act, nn.Module):
            act = quiet(act)
            act.training = training
        x = _values(2000, dtype)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if not same(act(x.clone()), activation(x)):
                return False
    return True


def _values(count: int, dtype: torch.dtype) -> Tensor:
    """Most where activations bend, and a few up to the largest of float16, where a limit shows."""
    few = torch.logspace(1, 4.8, 20)
    return torch.cat((torch.linspace(-12, 12, count - 40), few, -few)).to(dtype)


def probe_mlp(module: Any, generator: torch.Generator) -> Probe:
    """Hidden states (2, 5, H), in the dtype and on the device of the first weight."""
    width = next(child.in_features for child in module.children() if hasattr(child, "in_features"))
    x = torch.randn(2, 5, width, generator=generator)
    return Probe(lambda m, x: m.forward(x), (x.to(*place(module)).requires_grad_(),))


def experts(
    original: type, op: Callable[..., Tensor], *, reads: tuple[tuple[str, str], ...], **options: Any
) -> Namespace:
    """Adapter: the activation that all implementations of experts call, a method of their class.

    Args:
        reads: options of the op and the attributes that hold them.
    """

    def _apply_gate(self: Any, gate_up: Tensor) -> Tensor:
        return op(gate_up, **{option: getattr(self, name) for option, name in reads}, **options)

    return {"_apply_gate": own(_apply_gate, original), **refusing([] if reads else ["act_fn"])}


clamped_experts = experts
"""The same with another op, which the fit names."""


def cut_experts(original: type, op: Callable[..., Tensor], *, limit: str, **options: Any) -> Namespace:
    """The same with gate and up cut off at a limit in front of it."""

    def _apply_gate(self: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return op(*_cut(gate, up, getattr(self, limit)), **options)

    return {"_apply_gate": own(_apply_gate, original), **refusing(["act_fn"])}


def match_experts(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether upstream's method is called at all, and computes ``silu_mul_packed`` or ``gelu_mul_packed``."""
    return _match_experts(module, options, f"{_gated(options)}_packed", experts, dict(options["reads"]).values())


def match_cut_experts(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same with ``silu_mul`` or ``gelu_mul`` behind a limit."""
    return _match_experts(module, options, _gated(options), cut_experts, [options["limit"]])


def match_clamped_experts(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same with ``silu_mul_clamped_packed``."""
    return _match_experts(module, options, "silu_mul_clamped_packed", experts, dict(options["reads"]).values())


def _match_experts(
    module: Any, options: Mapping[str, Any], op: str, adapter: Callable[..., Namespace], floats: Iterable[str]
) -> str | None:
    cls: Any = original_class(module)
    if not hasattr(cls, "_apply_gate"):
        return "it has no method '_apply_gate'"
    for name in floats:
        if not isinstance(getattr(module, name, None), float):
            return f"it has no float attribute {name!r}"
    eager = getattr(getattr(module, "config", None), "_experts_implementation", None) in (None, "eager")
    if eager and "_apply_gate" not in inspect.unwrap(cls.forward).__code__.co_names:
        return "its eager forward does not call _apply_gate; load the model with another experts_implementation"
    reference = load(registry().op(op).reference)
    adapted: Any = adapter(cls, reference, **options)["_apply_gate"]
    for dtype, training in itertools.product(DTYPES, (True, False)):
        copy = quiet(module)
        copy.training = training
        x = _values(4000, dtype).view(-1, 2 * WIDTH)[:, torch.arange(2 * WIDTH) * 7 % (2 * WIDTH)]
        with torch.set_grad_enabled(training), torch.random.fork_rng(devices=[]):
            if not same(cls._apply_gate(copy, x.clone()), adapted(module, x)):
                when = " in training" if training else ""
                return f"its _apply_gate does not compute {op} {said(options)}: {dtype} differs{when}"
    x = _values(4000, torch.float32).view(-1, 2 * WIDTH)
    return gradients_differ(lambda x: cls._apply_gate(quiet(module), x), lambda x: adapted(module, x), [x])


def probe_experts(module: Any, generator: torch.Generator) -> Probe:
    """What the activation gets, (7, 2 I), in the dtype and on the device of the first weight."""
    x = torch.randn(7, 2 * WIDTH, generator=generator) * 5
    return Probe(lambda m, x: m._apply_gate(x), (x.to(*place(module)).requires_grad_(),), uses=())
