"""RoPE: upstream's attention forward, cloned over globals in which the rotary function is ours; nothing is copied."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import Probe, load
from liger.errors import PatchRefused
from liger.patch import has_own_forward, owner_of
from liger.planner import HUB
from liger.registry import registry
from liger.report import IDLE
from liger.swap import Namespace, original_class, quiet, remember_globals
from liger_hf.attention import probe_attention, probe_complex
from liger_hf.standin import DTYPES, gradients_differ, plain

PARAMETERS = ["q", "k", "cos", "sin"]
ONE_TENSOR = ["x", "cos", "sin", "unsqueeze_dim"]
"""Of functions that rotate queries and keys one at a time (gemma3n, gemma4)."""
FURTHER: tuple[list[str], ...] = ([], ["unsqueeze_dim"], ["position_ids", "unsqueeze_dim"])
Rotate = Callable[..., Any]
"""It returns the rotated queries and keys, or the one tensor that it was given."""


def rope(original: type, op: Rotate, *, function: str, layout: str, tables: str, cast: str, last: bool) -> Namespace:
    """Adapter: ``forward`` becomes the clone."""
    rotate = as_upstream(_called(original, function), op, layout, tables, cast, last)
    return {"forward": clone(original.forward, function, rotate)}  # type: ignore[attr-defined]


def _called(cls: Any, function: str) -> Any:
    """The function that its forward finds under the name, also inside what the package kernels makes of one."""
    found = _global(cls, function)
    if _is_kernels(found):
        return inspect.getclosurevars(type(found).forward).nonlocals.get("func", found)
    return found


def _is_kernels(found: Any) -> bool:
    """Whether a function has become a module of the package kernels, as one that ``use_kernels=True`` may replace."""
    return isinstance(found, nn.Module) and type(found).__module__.partition(".")[0] == "kernels"


def _global(cls: Any, function: str) -> Any:
    """What its forward finds under the name, which may be inherited from a class of another module."""
    layer: Any = inspect.unwrap(cls.forward, stop=lambda layer: uses_global(layer, function))  # type: ignore[arg-type]
    return layer.__globals__.get(function)


def rope_complex(original: type, op: Rotate, *, function: str, unsqueeze_dim: int) -> Namespace:
    """The same for angles as complex numbers."""
    upstream = _called(original, function)
    return {"forward": clone(original.forward, function, as_upstream_complex(upstream, op, unsqueeze_dim))}  # type: ignore[attr-defined]


def as_upstream_complex(upstream: types.FunctionType, op: Rotate, unsqueeze_dim: int) -> Rotate:
    """The op behind upstream's parameters, whose names differ; a vision tower's numbers are (T, 1, D / 2)."""

    def rotate(q: Tensor, k: Tensor, *freqs: Tensor, **named: Tensor) -> Any:
        (numbers,) = (*freqs, *named.values())
        if not numbers.is_complex():  # model.to(bfloat16) leaves only the real parts of a buffer: no rotation any more
            return upstream(q, k, numbers)
        return op(q, k, numbers.view(-1, q.shape[3 - unsqueeze_dim], numbers.shape[-1]), unsqueeze_dim=unsqueeze_dim)

    return rotate


def as_upstream(
    upstream: types.FunctionType, op: Rotate, layout: str, tables: str, cast: str, last: bool = False
) -> Rotate:
    """The op behind upstream's parameters; ``position_ids`` are ignored there as well.

    Where upstream rotates one tensor at a time, the op gets that and keys without heads, or the last columns of it.
    At a call without keys upstream's function runs (mistral_large4, qwen4_exp).
    """

    def rotate(q: Tensor, k: Tensor | None = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
        if k is None:
            return upstream(q, None, cos, sin, unsqueeze_dim=unsqueeze_dim)
        if tables == "first half":
            half = cos.shape[-1] // 2
            cos, sin = cos[..., :half], sin[..., :half]
        if q.dim() - cos.dim() == 2:  # images in a batch, one row of tables for all: of step3p7's vision tower
            cos, sin, unsqueeze_dim = cos[None], sin[None], unsqueeze_dim + 1
        elif unsqueeze_dim == 0:  # of tables without a batch (pixtral)
            cos, sin, unsqueeze_dim = cos[None], sin[None], 1
        per = "column" if tables == "column" else "pair"
        return op(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, layout=layout, tables=per, cast=cast)

    def rotate_with_positions(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1
    ) -> Any:
        return rotate(q, k, cos, sin, unsqueeze_dim)

    def rotate_one(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        rest = x.shape[-1] - cos.shape[-1] * (2 if tables == "pair" else 1)
        if last and rest > 0:
            return torch.cat((x[..., :rest], rotate_one(x[..., rest:], cos, sin, unsqueeze_dim)), -1)
        return rotate(x, x.narrow(unsqueeze_dim, 0, 0), cos, sin, unsqueeze_dim)[0]

    names = list(inspect.signature(upstream).parameters)
    if names == ONE_TENSOR:
        return rotate_one
    return rotate_with_positions if "position_ids" in names else rotate


def clone(fn: types.FunctionType, name: str, replacement: Callable[..., Any]) -> types.FunctionType:
    """Copy ``fn`` through its chain of decorators; the one function that uses global ``name`` gets ``replacement``.

    Raises:
        PatchRefused: no function of the chain uses the global, or a decorator does not hold the next in a closure.
    """
    if uses_global(fn, name):
        scope = {**fn.__globals__, name: replacement}
        del scope["__name__"]  # by it dynamo would look the global up in the real module, and guard on upstream's
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
    return _match(
        module,
        options["function"],
        lambda upstream: _computes(upstream, *(options[name] for name in ("layout", "tables", "cast", "last"))),
        lambda: probe_attention(module, torch.Generator().manual_seed(0), options["tables"], tokens=2),
    )


def match_complex(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same for complex numbers."""
    return _match(
        module,
        options["function"],
        lambda upstream: _computes_complex(upstream, options["unsqueeze_dim"]),
        lambda: probe_complex(module, torch.Generator().manual_seed(0), tokens=2),
    )


def _match(
    module: nn.Module,
    function: str,
    computes: Callable[[types.FunctionType], str | None],
    probe: Callable[[], Probe],
) -> str | None:
    cls: Any = original_class(module)
    found, upstream = _global(cls, function), _called(cls, function)
    if _is_kernels(found) and "forward" in found.__dict__ and not has_own_forward(found):
        return f"its {function} is {owner_of(found.__dict__['forward'])}, {HUB}"
    if not isinstance(upstream, types.FunctionType):
        return f"{cls.forward.__module__} has no function {function!r}"
    if reason := computes(upstream):
        return reason
    key = (
        cls,
        cls.forward,
        function,
        plain(module),
    )  # of a model's layers some may have no positional encoding (smollm3, llama4)
    if key in _reached:
        return None
    try:
        forward = clone(cls.forward, function, _hit)
    except PatchRefused as refusal:
        return str(refusal)
    if reason := _reaches(forward, module, probe, function):
        return reason
    _reached.add(key)
    return None


_reached: set[tuple[Any, ...]] = set()


@functools.cache
def _computes(upstream: types.FunctionType, layout: str, tables: str, cast: str, last: bool = False) -> str | None:
    """Compare upstream's function with the op's reference, bit by bit, also with fp32 tables and a part of the head."""
    names = list(inspect.signature(upstream).parameters)
    one = names == ONE_TENSOR
    if not one and (last or names[:4] != PARAMETERS or names[4:] not in FURTHER):
        expected = ONE_TENSOR if last else [*PARAMETERS, "unsqueeze_dim"]
        reason = f"{upstream.__qualname__} takes ({', '.join(names)}), expected ({', '.join(expected)})"
        return reason + (_streams_differ(upstream, layout, cast) if names[4:5] == ["mrope_section"] else "")
    ours = as_upstream(upstream, load(registry().op("rope").reference), layout, tables, cast, last)
    generator = torch.Generator().manual_seed(0)
    vision = not one and len(names) == 4  # such have their heads behind tokens, and a batch around that or none
    leads: tuple[tuple[int, ...], ...] = ((), (2,)) if vision else ((2,),)
    dtypes = [(dtype, dtype) for dtype in DTYPES] + [(torch.bfloat16, torch.float32)]
    for lead, (dtype, table), width, training in itertools.product(leads, dtypes, (8, 4), (False, True)):
        tokens, keys = (3, 1) if training else (1, 4)  # else as in generation: one row of tables for all of a batch
        q, k = (torch.randn(*lead, n, tokens, 8, generator=generator).to(dtype) for n in (4, keys))
        if vision:
            q, k = q.transpose(-2, -3), k.transpose(-2, -3)
        shape = *(() if vision else lead if training else (1,)), tokens, width // 2 if tables == "pair" else width
        cos, sin = (torch.randn(shape, generator=generator).to(table) for _ in range(2))
        heads = [q] if one else [q, k]
        try:
            with torch.set_grad_enabled(training):
                found = upstream(*heads, cos, sin)
        except RuntimeError as error:
            if width == 8 and lead == leads[0]:
                return f"{upstream.__qualname__} failed on tables={tables!r}: {error}"
            continue  # the model cannot rotate a part of the head, or has no batch of images either
        wide = [t.float() for t in (*heads, cos, sin)]
        for f, e in zip(_several(found), _several(ours(*heads, cos, sin)), strict=True):
            if f.dtype != e.dtype or not torch.equal(f, e):
                return (
                    f"{upstream.__qualname__} does not rotate as layout={layout!r}, tables={tables!r} and "
                    f"cast={cast!r} say: {dtype} with {table} tables differs"
                )
    return _gradients_differ(upstream, ours, wide[:-2], *wide[-2:])


def _streams_differ(upstream: Rotate, layout: str, cast: str) -> str:
    """By how much the op is off where upstream has three streams of positions; empty if that does not run."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, n, 3, 8, generator=generator) for n in (4, 1))
    cos, sin = (torch.randn(3, 2, 3, 8, generator=generator) for _ in range(2))
    try:
        expected = upstream(q, k, cos, sin, [1, 1, 2])[0]
    except RuntimeError:
        return ""
    found = load(registry().op("rope").reference)(q, k, cos[0], sin[0], layout=layout, cast=cast)[0]
    return (
        "; it has three streams of positions, and with one the result differs by up to "
        f"{float((found - expected).abs().max()):.3g} where the largest value is {float(expected.abs().max()):.3g}"
    )


def _several(rotated: Any) -> Sequence[Tensor]:
    return [rotated] if isinstance(rotated, Tensor) else rotated


def _gradients_differ(upstream: Rotate, ours: Rotate, heads: Sequence[Tensor], *tables: Tensor) -> str | None:
    """The same for gradients of q and k, in fp32."""

    def over(rotate: Rotate) -> Rotate:
        return lambda *heads: rotate(*heads, *(t.to(heads[0].dtype) if t.is_floating_point() else t for t in tables))

    return gradients_differ(over(upstream), over(ours), heads)


@functools.cache
def _computes_complex(upstream: types.FunctionType, unsqueeze_dim: int) -> str | None:
    """The same for complex numbers: q, k and frequencies are upstream's three parameters."""
    ours = as_upstream_complex(upstream, load(registry().op("rope_complex").reference), unsqueeze_dim)
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        q, k = (torch.randn(2, 3, n, 8, generator=generator).to(dtype) for n in (4, 1))
        if unsqueeze_dim == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        freqs = torch.view_as_complex(torch.randn(1, 3, 4, 2, generator=generator))
        try:
            found = upstream(q, k, freqs)
        except Exception as error:
            return f"{upstream.__qualname__} failed on q, k and complex numbers: {error}"
        for f, e in zip(found, ours(q, k, freqs), strict=True):
            if f.dtype != e.dtype or not torch.equal(f, e):
                return (
                    f"{upstream.__qualname__} does not rotate as rope_complex with unsqueeze_dim={unsqueeze_dim} does: "
                    f"{dtype} differs"
                )
    return _gradients_differ(upstream, ours, (q.float(), k.float()), freqs)


class _Hit(Exception):
    pass


def _hit(*args: Any, **kwargs: Any) -> Any:
    raise _Hit


def _reaches(forward: types.FunctionType, module: Any, make: Callable[[], Probe], function: str) -> str | None:
    """Call the clone with two tokens: it must arrive at the replacement."""
    shadow = quiet(module)
    shadow.__dict__["forward"] = types.MethodType(forward, shadow)
    try:
        probe = make()
        with torch.no_grad():
            probe.run(shadow, *probe.inputs)
    except _Hit:
        return None
    except Exception as error:
        return f"a probe call of its forward failed with {type(error).__name__}: {error}"
    return f"{IDLE}{function}, as a probe of it shows"
