"""The one mechanism of patching: an instance's class becomes a subclass made for it.

The subclass keeps ``__module__``, ``__name__`` and ``__qualname__``, so isinstance, parameters, state_dict keys, hooks,
repr and everything keyed by class name stay as they are. It pickles as (original class, spec). Everything needed to
undo it can be derived from the class, so a deepcopy or an unpickled copy can be undone as well.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from liger.declare import load
from liger.errors import WrongOrder

Namespace = Mapping[str, Any]
"""Class attributes that an adapter installs."""


class Spec(NamedTuple):
    """What a swapped class was made from. Hashable and picklable; the same spec always gives the same class."""

    fit: str
    op: str
    adapter: str
    options: tuple[tuple[str, Any], ...] = ()
    op_options: tuple[tuple[str, Any], ...] = ()
    kernel: str | None = None


class Part(NamedTuple):
    """One module of a fit: the adapter for its class, options found out about it, and attributes its instance gets.

    An attribute is removed by undo. It must deep-copy and pickle with the module.
    """

    module: Any
    adapter: str
    options: Mapping[str, Any] = types.MappingProxyType({})
    attributes: Mapping[str, Any] = types.MappingProxyType({})


class Swapped:
    """Base of every class made here."""

    __liger_spec__: Spec
    __liger_original__: type

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tell no class above: a registry there has the original already, and may refuse another of its name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reduce as the original class would, then swap again."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, args, *rest = reduced
        cls = type(self)
        args = tuple(cls.__liger_original__ if a is cls else a for a in args)
        return (_rebuild, (cls.__liger_original__, cls.__liger_spec__, function, args), *rest)


def _rebuild(original: type, spec: Spec, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    instance = function(*args)
    instance.__class__ = swapped_class(original, spec)
    return instance


def swapped_class(original: type, spec: Spec) -> type:
    """The subclass of ``original`` for ``spec``: the same object until ``original`` gets another forward."""
    # the class, or one that it inherits from, may get another forward between two models
    key = original, getattr(original, "forward", None), spec
    found = _classes.get(key)
    if found is None:
        found = _classes[key] = _make_class(original, spec)
    return found


_classes: dict[tuple[type, Any, Spec], type] = {}


def _make_class(original: type, spec: Spec) -> type:
    from liger.dispatch import bind

    op = bind(spec.op, spec.kernel, dict(spec.op_options)) if spec.op else None
    namespace = dict(load(spec.adapter)(original, op, **dict(spec.options)))
    namespace.update(
        __module__=original.__module__,
        __qualname__=original.__qualname__,
        __doc__=original.__doc__,
        __liger_spec__=spec,
        __liger_original__=original,
    )
    if hasattr(original, "kernel_layer_name"):  # or `kernels` would lay another forward over ours at each train()
        namespace["kernel_condition"] = staticmethod(lambda module: False)
    return type(original.__name__, (Swapped, original), namespace)


def still_patched(instance: Any) -> bool:
    """Whether an instance of ours, or of a class that something derived from ours, has not been undone."""
    return isinstance(instance, Swapped)


def is_swapped(cls: type) -> bool:
    """Whether ``cls`` itself was made here; False for a class that something else derived from ours."""
    return "__liger_spec__" in cls.__dict__


def original_class(module: Any) -> type:
    """The upstream class of an instance, patched or not."""
    cls: Any = type(module)
    return cls.__liger_original__ if is_swapped(cls) else cls  # type: ignore[no-any-return]


def forward(
    adapter: Callable[..., Any] | None = None, *, fixed: Mapping[str, str | None] = types.MappingProxyType({})
) -> Callable[..., Any]:
    """Turn ``adapter(op, module, *upstream_args, **constants)`` into an adapter that replaces ``forward``.

    Positional-only parameters stand for upstream's parameters whatever their names, so one adapter serves many models;
    other parameters must have upstream's names. ``match_signature`` compares them before patching.

    Args:
        adapter: what computes the result.
        fixed: of each attribute that upstream's forward reads and this one does not: the constant that may name it ->
            the name it has without that constant, None if there is then no such attribute. Setting or deleting such an
            attribute of a patched module is an error, for it would change nothing.
    """
    if adapter is None:
        return functools.partial(forward, fixed=fixed)

    @functools.wraps(adapter)
    def namespace(original: type, op: Callable[..., Any], **constants: Any) -> Namespace:
        names = _parameters(original.forward)  # type: ignore[attr-defined]

        upstream = original.forward  # type: ignore[attr-defined]

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not still_patched(self):  # undone, and called by a wrapper that still holds this function
                return upstream(self, *args, **kwargs)
            if kwargs:
                args += tuple([kwargs.pop(n) for n in names[len(args) :] if n in kwargs])
            return adapter(op, self, *args, **kwargs, **constants)

        unread = [str(name) for c, default in fixed.items() if (name := constants.get(c, default)) is not None]
        return {"forward": own(forward, original), **refusing(unread)}

    namespace.__liger_adapter__ = adapter  # type: ignore[attr-defined]
    return namespace


def refusing(names: Collection[str]) -> Namespace:
    """Class attributes that make it an error to set or delete an attribute of these names, also as a submodule."""
    if not names:
        return {}

    def refuse(module: Any, name: str, done: str, value: Any = None) -> None:
        same = value is not None and getattr(module, name, None) is value  # FSDP1 sets each child that it does not wrap
        if name in names and not same and still_patched(module):
            raise WrongOrder(
                f"{name} of a patched {type(module).__name__} was to {done}, but its forward no longer reads it: "
                "unpatch the model, change it, and patch again"
            )

    def set_attribute(self: Any, name: str, value: Any) -> None:
        refuse(self, name, f"become {value!r}", value)
        super(Swapped, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        refuse(self, name, "be deleted")
        super(Swapped, self).__delattr__(name)

    def add_module(self: Any, name: str, module: Any) -> None:
        refuse(self, name, f"become {module!r}", module)
        super(Swapped, self).add_module(name, module)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute, "add_module": add_module}


def own(fn: Any, original: type) -> types.FunctionType:
    """A copy of ``fn`` with a code object of its own, named after ``original``.

    Dynamo counts recompilations per code object: with a shared one the ninth model type would run eager, silently.
    """
    name = f"{original.__qualname__}.{fn.__name__}"
    file = f"<liger {original.__module__}.{name}>"
    code = fn.__code__.replace(co_qualname=name, co_filename=file)
    copy = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__qualname__ = name
    upstream = getattr(original, fn.__name__, None)
    if inspect.isfunction(upstream):
        copy.__doc__ = upstream.__doc__
        copy.__signature__ = inspect.signature(upstream)  # type: ignore[attr-defined]
    return copy


def overridden(cls: type) -> str | None:
    """Who replaced ``forward`` of a class: the function found there comes from another module than the class."""
    holder = next(c for c in cls.__mro__ if "forward" in c.__dict__)
    function = inspect.unwrap(holder.__dict__["forward"])
    home = getattr(function, "__globals__", {}).get("__name__")
    if home == holder.__module__:
        return None
    return f"{home or '?'}.{getattr(function, '__qualname__', function)}"


def quiet(module: Any) -> Any:
    """A copy of a module tree without hooks and in evaluation mode; it shares parameters, buffers and classes.

    Probes run on it, so that planning fires no hook, draws no random number and adds nothing to a list of the module's.
    """
    return _quiet(module, {})


def _quiet(module: Any, copies: dict[int, Any]) -> Any:
    cls: Any = type(module)
    clone = cls.__new__(cls)
    for name, value in module.__dict__.items():
        hooks = name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")) and isinstance(value, dict)
        clone.__dict__[name] = type(value)() if hooks else unshared(value, copies)
    clone.__dict__["_modules"] = {n: m and _quiet(m, copies) for n, m in module._modules.items()}
    clone.__dict__["_parameters"] = {n: present(p) for n, p in module._parameters.items()}
    clone.__dict__["training"] = False
    return clone


def present(parameter: Any) -> Any:
    """A parameter as a probe needs it: of one that DeepSpeed ZeRO-3 keeps elsewhere zeros of its shape, else itself."""
    return parameter.detach().new_zeros(parameter.ds_shape) if is_elsewhere(parameter) else parameter


def is_elsewhere(parameter: Any) -> bool:
    """Whether DeepSpeed ZeRO-3 has shared a parameter out and left an empty one."""
    return hasattr(parameter, "ds_shape") and parameter.shape != parameter.ds_shape


def unshared(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of lists, sets and dictionaries and those inside them, one of each, by id; everything else itself."""
    if type(value) not in (list, set, dict):
        return value
    if id(value) not in copies:
        copies[id(value)] = copy = type(value)()
        if type(value) is list:
            copy.extend([unshared(inner, copies) for inner in value])
        elif type(value) is dict:
            copy.update({key: unshared(inner, copies) for key, inner in value.items()})
        else:
            copy.update(value)
    return copies[id(value)]


def match_signature(adapter: Callable[..., Any], original: type) -> str | None:
    """Why a ``@forward`` adapter cannot stand in for ``original.forward``, or None."""
    function = getattr(adapter, "__liger_adapter__", None)
    if function is None:
        return None
    upstream = _parameters(original.forward)  # type: ignore[attr-defined]
    constants: set[Any] = {inspect.Parameter.KEYWORD_ONLY}
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(original.forward).parameters.values()):  # type: ignore[attr-defined]
        constants.add(inspect.Parameter.VAR_KEYWORD)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in constants][2:]
    named = [(o.kind is o.POSITIONAL_ONLY or o.name == u) for o, u in zip(parameters, upstream, strict=False)]
    if len(parameters) != len(upstream) or not all(named):
        return (
            f"upstream's forward takes ({', '.join(upstream)}), the adapter ({', '.join(p.name for p in parameters)})"
        )
    return None


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of a method's parameters without self; a catch-all counts under its own name."""
    return [p.name for p in inspect.signature(function).parameters.values()][1:]


_cloned: list[tuple[types.FunctionType, str, dict[str, Any]]] = []


def remember_globals(function: types.FunctionType, replaced: str, scope: dict[str, Any]) -> None:
    """Note that ``function`` was cloned over ``scope``, its globals with one ``replaced``, for ``changed_globals``."""
    _cloned.append((function, replaced, scope))


def changed_globals() -> list[str]:
    """Module globals that someone replaced after a function using them was cloned; the clone still sees the old one."""
    out = []
    for function, replaced, scope in _cloned:
        live = function.__globals__
        for key, value in scope.items():
            if key in live and live[key] is not value and key != replaced and not key.startswith("__"):
                name = f"{function.__module__}.{key}"
                out.append(f"{name} was replaced after patching; patched modules still use the old one: patch again")
    return sorted(set(out))
