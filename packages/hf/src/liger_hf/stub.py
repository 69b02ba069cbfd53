"""Upstream's own forward of a causal LM, run on a shadow of the model whose backbone, head and loss are stand-ins.

The shadow shares the model's attributes; the model itself is not touched.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from liger.errors import PatchRefused
from liger.swap import unshared


class Output:
    """A backbone output: the given hidden states, None for everything else upstream may ask of it."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: Any) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def get(self, name: str, default: Any = None) -> Any:
        """As of a mapping."""
        return self.last_hidden_state if name == "last_hidden_state" else default


class Stub(nn.Module):
    """Stands in for a submodule: ``forward`` is the given function, what else is asked for comes from ``original``."""

    def __init__(self, function: Callable[..., Any], original: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.__dict__["original"] = original  # as no submodule

    def __getattr__(self, name: str) -> Any:
        """What upstream reads beside calling it: mamba2 the head's dtype, falcon_h1 a multiplier of the backbone."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if (original := self.__dict__.get("original")) is None:
                raise
            return getattr(original, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def config_of(module: Any) -> Any:
    """The config of a model, None of any other module, also where a property of that name raises."""
    try:
        return module.config
    except Exception:
        return None


def mentions(cls: type, name: str) -> bool:
    """Whether a method of a class, or of those below transformers' own base that it inherits from, uses a name."""
    own = itertools.takewhile(lambda c: c.__module__ != "transformers.modeling_utils", cls.__mro__)
    methods = [inspect.unwrap(f) for c in own for f in vars(c).values() if isinstance(f, types.FunctionType)]
    return any(name in used for method in methods for used in _names(method.__code__))


def _names(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Names of globals and attributes in a function and in those inside it."""
    yield code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def children(model: Any) -> tuple[str, str]:
    """Paths of backbone and head: children of the model, or of a causal LM inside it (llama4).

    The head may lie in another child of it than the backbone (bert).

    Raises:
        PatchRefused: there is no such backbone or head.
    """
    head, modules = model.get_output_embeddings(), model._modules
    paths = [path for path, module in model.named_modules() if module is head] if head is not None else []
    if len(paths) != 1:
        raise PatchRefused("its output embeddings are not a part of the model")
    prefix, holder = model.base_model_prefix, paths[0].partition(".")[0]
    if prefix in modules and prefix != holder:
        return prefix, paths[0]
    models = [name for name, child in modules.items() if name != holder and config_of(child)]
    if _is_causal_lm(modules[holder]):
        return tuple(f"{holder}.{path}" for path in children(modules[holder]))  # type: ignore[return-value]
    if len(models) != 1:  # llama4 names its prefix after the model around it
        raise PatchRefused(f"its backbone {prefix!r} is not a direct child of the model, or holds the head")
    return models[0], paths[0]


def _is_causal_lm(module: Any) -> bool:
    """Whether a model has a head of its own and can compute a loss."""
    forward = inspect.signature(type(module).forward).parameters
    return config_of(module) is not None and "labels" in forward and module.get_output_embeddings() is not None


def _replace(module: Any, path: str, replacement: nn.Module) -> Any:
    """A shallow copy of a module tree with another module at ``path``."""
    name, _, rest = path.partition(".")
    inner = _replace(module._modules[name], rest, replacement) if rest else replacement
    copy: Any = object.__new__(type(module))  # FSDP2's classes have a __new__ of their own
    copy.__dict__.update(module.__dict__, _modules={**module._modules, name: inner})
    return copy


def shadow(
    model: Any,
    hidden: Tensor,
    *,
    head: Callable[[Tensor], Tensor] | None = None,
    loss: Callable[..., Tensor] | None = None,
    patched: bool = False,
    training: bool = True,
) -> Any:
    """A copy of the model whose backbone returns ``hidden`` (B, T, H).

    Args:
        head: stands in for the output embeddings; None keeps the real ones.
        loss: stands in for the loss function.
        patched: keep Liger's forward around upstream's, if the model has one.
        training: the mode of the copy.
    """
    cls: Any = type(model)
    if not patched:  # not original_class: FSDP's class may lie around ours
        cls = getattr(model, "__liger_original__", cls)
    backbone, path = children(model)
    real = model.get_submodule(path)
    used = real if head is None else Stub(head, real)
    instead = Stub(lambda *args, **kwargs: Output(hidden), model.get_submodule(backbone))
    modules = _replace(_replace(model, path, used), backbone, instead)._modules
    copy = cls.__new__(cls)
    copies: dict[int, Any] = {}
    held = {name: unshared(value, copies) for name, value in model.__dict__.items() if name != "_modules"}
    buffers = {name: b if b is None else b.clone() for name, b in model._buffers.items()}  # one may be counted in
    copy.__dict__.update(held, _modules=modules, _buffers=buffers, training=training)
    copy.__dict__["get_output_embeddings"] = lambda: used  # upstream's asks the backbone first
    if "." in backbone:
        copy.__dict__["get_input_embeddings"] = lambda: Stub(lambda ids: hidden)  # asked by the model around it
    if loss is not None:
        copy.__dict__["_loss_function"] = loss
    return copy


def run(model: Any, hidden: Tensor, **kwargs: Any) -> Any:
    """Run upstream's forward as if the backbone had returned ``hidden`` (B, T, H), in training mode.

    Args:
        kwargs: as of ``shadow``; and further arguments of the forward, e.g. labels.
    """
    taken = {name: kwargs.pop(name) for name in ("head", "loss", "patched", "training") if name in kwargs}
    return call(shadow(model, hidden, **taken), hidden, **kwargs)


def call(copy: Any, hidden: Tensor, **inputs: Any) -> Any:
    """The forward of what ``shadow`` returned."""
    ids = torch.zeros(hidden.shape[:-1], dtype=torch.long, device=hidden.device)
    return type(copy).forward(copy, input_ids=ids, use_cache=False, **inputs)
