"""Whether a module computes what a fit says: upstream's method and the adapter, on a stand-in, compared bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import load
from liger.registry import registry
from liger.swap import original_class, quiet
from liger_hf.stub import Stub

DTYPES = ((torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32))
"""Of inputs and of parameters; the mixed pair only counts for modules that take it."""


def differs(
    module: nn.Module,
    options: Mapping[str, Any],
    *,
    op: str,
    adapter: Any,
    inputs: Sequence[tuple[int, ...]],
    keep: Collection[str] = (),
    mixed: bool = True,
) -> str | None:
    """Why upstream's forward is not what ``adapter`` makes of the op's reference, or None.

    Args:
        options: of the fit.
        adapter: one made by ``liger.swap.forward``.
        inputs: shapes of the tensors that forward takes.
        keep: children that stay as they are; the others are replaced by a function that both sides call.
        mixed: whether parameters of another dtype than the inputs' are compared as well.
    """
    shapes = tuple((n, p if p is None else tuple(p.shape)) for n, p in module._parameters.items())
    kept = tuple(repr(getattr(module, name)) for name in keep)
    key = (original_class(module), op, adapter, tuple(inputs), *options.items(), plain(module), shapes, kept)
    if key not in _compared:
        _compared[key] = _compare(module, options, op, adapter.__liger_adapter__, inputs, keep, mixed)
    return _compared[key]


def plain(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """Attributes that may decide what forward does, to tell modules of one class apart; not which layer it is."""
    kept = (bool, int, float, str)
    return tuple((n, v) for n, v in vars(module).items() if isinstance(v, kept) and n != "layer_idx")


_compared: dict[tuple[Any, ...], str | None] = {}


def _compare(
    module: nn.Module,
    options: Mapping[str, Any],
    op: str,
    adapter: Callable[..., Tensor],
    inputs: Sequence[tuple[int, ...]],
    keep: Collection[str],
    mixed: bool,
) -> str | None:
    cls: Any = original_class(module)
    reference = load(registry().op(op).reference)
    generator = torch.Generator().manual_seed(0)
    for dtype, weights in DTYPES if mixed else DTYPES[:-1]:
        copy = stand_in(module, weights, generator, keep)
        tensors = [_rows(shape, generator).to(dtype) for shape in inputs]
        try:
            expected = cls.forward(copy, *tensors)
        except Exception as error:
            if dtype != weights:
                continue
            return f"a probe of its forward failed with {type(error).__name__}: {error}"
        found = adapter(reference, copy, *tensors, **options)
        if found.dtype != expected.dtype or not torch.equal(found, expected):
            return f"its forward does not compute {op} {said(options)}: {dtype} with {weights} parameters differs"
    return None


def said(options: Mapping[str, Any]) -> str:
    """The options of a fit, for a message."""
    return f"with {', '.join(f'{n}={v!r}' for n, v in options.items())}" if options else "as the fit has it"


def stand_in(module: nn.Module, dtype: torch.dtype, generator: torch.Generator, keep: Collection[str] = ()) -> Any:
    """A copy of the module on the CPU with random parameters of ``dtype``, whose children but ``keep`` are stubs."""
    copy = quiet(module)

    def random(t: Tensor | None) -> Tensor | None:
        if t is None or not t.is_floating_point():
            return t
        return nn.Parameter(torch.randn(t.shape, generator=generator).to(dtype), requires_grad=False)

    for kind in ("_parameters", "_buffers"):
        copy.__dict__[kind] = {name: random(t) for name, t in copy.__dict__[kind].items()}
    copy.__dict__["_modules"] = {
        name: child if child is None or name in keep else Stub(functools.partial(_project, at + 1))
        for at, (name, child) in enumerate(copy._modules.items())
    }
    return copy


def _rows(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random, the rows of magnitude 1e-3, 1 and 30 in turn, so that an epsilon shows."""
    scale = torch.tensor([1e-3, 1.0, 30.0])[torch.arange(shape[0]) % 3]
    return torch.randn(shape, generator=generator) * scale.view(-1, *[1] * (len(shape) - 1))


def _project(at: int, x: Tensor) -> Tensor:
    """(..., H) -> (..., 2 H): stands in for a projection, another one for each ``at``."""
    return torch.cat((x * at, x.flip(-1) - 0.25 * at), dim=-1)


def readable(weight: Tensor, name: str) -> str | None:
    """Why an op must not read ``weight`` directly: quantised and other tensor subclasses mean something else."""
    kind = type(weight)
    if kind not in (nn.Parameter, Tensor) and kind.__name__ != "DTensor":
        return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a plain parameter"
    if not weight.dtype.is_floating_point:
        return f"{name} has dtype {weight.dtype}, not a floating one"
    return None
