"""RoPE: upstream's attention forward, cloned over globals in which the rotary function is ours; nothing is copied."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import Probe, load
from liger.errors import PatchRefused
from liger.registry import registry
from liger.swap import Namespace, original_class, quiet, remember_globals

PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]


def rope(original: type, op: Callable[..., tuple[Tensor, Tensor]], *, function: str) -> Namespace:
    """Adapter: ``forward`` becomes the clone."""

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return op(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    return {"forward": clone(original.forward, function, apply_rotary_pos_emb)}  # type: ignore[attr-defined]


def clone(fn: types.FunctionType, name: str, replacement: Callable[..., Any]) -> types.FunctionType:
    """Copy ``fn`` through its chain of decorators; the one function that uses global ``name`` gets ``replacement``.

    Raises:
        PatchRefused: no function of the chain uses the global, or a decorator does not hold the next in a closure.
    """
    if uses_global(fn, name):
        scope = {**fn.__globals__, name: replacement}
        del scope[
            "__name__"
        ]  # by this name dynamo would look the global up in the real module, and guard on upstream's
        if replacement is not _hit:
            remember_globals(fn, name, scope)
        return _copy(fn, scope, fn.__closure__)
    inner = getattr(fn, "__wrapped__", None)
    layer = getattr(fn, "__qualname__", repr(fn))
    if not isinstance(inner, types.FunctionType):
        raise PatchRefused(f"{layer} does not use a global {name!r}")
    cells = fn.__closure__ or ()
    holds = [c.cell_contents is inner for c in cells]
    if sum(holds) != 1:
        raise PatchRefused(f"the decorator around {layer} ({fn.__code__.co_qualname}) does not hold it in its closure")
    copied = clone(inner, name, replacement)
    closure = tuple(types.CellType(copied) if h else c for h, c in zip(holds, cells, strict=True))
    copy = _copy(fn, fn.__globals__, closure)
    copy.__wrapped__ = copied  # type: ignore[attr-defined]
    return copy


def uses_global(fn: types.FunctionType, name: str) -> bool:
    """Whether the function's own bytecode loads the global."""
    return any(i.opname == "LOAD_GLOBAL" and i.argval == name for i in dis.get_instructions(fn.__code__))


def _copy(fn: types.FunctionType, scope: dict[str, Any], closure: tuple[Any, ...] | None) -> types.FunctionType:
    # replace() makes a new code object: dynamo counts recompilations per code object, ours must not use up upstream's
    copy = types.FunctionType(fn.__code__.replace(), scope, fn.__name__, fn.__defaults__, closure)
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__dict__.update(fn.__dict__)
    copy.__qualname__, copy.__doc__, copy.__module__ = fn.__qualname__, fn.__doc__, fn.__module__
    copy.__annotations__ = fn.__annotations__
    return copy


def match(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether upstream's function is the one the op computes, and the clone's call reaches a replacement."""
    cls: Any = original_class(module)
    upstream = inspect.getmodule(cls).__dict__.get(options["function"])
    if not isinstance(upstream, types.FunctionType):
        return f"{cls.__module__} has no function {options['function']!r}"
    if reason := _computes_half(upstream):
        return reason
    if cls in _reached:
        return None
    try:
        forward = clone(cls.forward, options["function"], _hit)
    except PatchRefused as refusal:
        return str(refusal)
    if reason := _reaches(forward, module):
        return reason
    _reached.add(cls)
    return None


_reached: set[type] = set()


@functools.cache
def _computes_half(upstream: types.FunctionType) -> str | None:
    """Compare upstream's function with the op's reference, bit by bit."""
    names = list(inspect.signature(upstream).parameters)
    if names != PARAMETERS:
        return f"{upstream.__qualname__} takes ({', '.join(names)}), expected ({', '.join(PARAMETERS)})"
    reference = load(registry().op("rope").reference)
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        q, k = (torch.randn(2, n, 3, 8, generator=generator).to(dtype) for n in (4, 1))
        cos, sin = (torch.randn(2, 3, 8, generator=generator).to(dtype) for _ in range(2))
        found, expected = upstream(q, k, cos, sin), reference(q, k, cos, sin)
        if not all(torch.equal(f, e) for f, e in zip(found, expected, strict=True)):
            return f"{upstream.__qualname__} does not rotate in the half layout"
    return None


class _Hit(Exception):
    pass


def _hit(*args: Any, **kwargs: Any) -> Any:
    raise _Hit


def _reaches(forward: types.FunctionType, module: Any) -> str | None:
    """Call the clone with two tokens: it must arrive at the replacement."""
    hidden, cos, sin = _inputs(module, torch.Generator().manual_seed(0), tokens=2)
    try:
        with torch.no_grad():
            forward(quiet(module), hidden, position_embeddings=(cos, sin), attention_mask=None)
    except _Hit:
        return None
    except Exception as error:
        return f"a probe call of its forward failed with {type(error).__name__}: {error}"
    return "a probe call of its forward did not reach the rotary function"


def probe_attention(module: Any, generator: torch.Generator) -> Probe:
    """A decoder attention on five tokens, without mask and cache."""

    def run(m: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return m.forward(hidden, position_embeddings=(cos, sin), attention_mask=None)[0]  # type: ignore[no-any-return]

    return Probe(run, _inputs(module, generator, tokens=5))


def _inputs(module: Any, generator: torch.Generator, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (1, T, H), cos and sin (1, T, D), in the dtype and on the device of the first weight."""
    weight = next(p for p in module.parameters() if p.is_floating_point())
    hidden = torch.randn(1, tokens, module.config.hidden_size, generator=generator)
    angle = torch.randn(1, tokens, module.head_dim, generator=generator)
    hidden, cos, sin = (t.to(weight.device, weight.dtype) for t in (hidden, angle.cos(), angle.sin()))
    return hidden.requires_grad_(), cos, sin
