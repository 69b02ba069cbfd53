"""``LigerPatch``: a class of any importable module, replaced by a fit or by another class, and put back."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from liger import Fit
from liger.declare import load
from liger.errors import AlreadyPatched, PatchRefused, PluginError
from liger.patch import Action, apply, replace_attributes
from liger.planner import Choices, parts_of, usual_defaults
from liger.registry import registry
from liger_hf import fits
from liger_hf.groups import ops_of
from liger_hf.kit_options import Wanted, plain
from liger_hf.samples import Unbuildable, parameters, refuse_class, refuse_fit, samples


@dataclass(frozen=True, slots=True)
class LigerPatch:
    """A class by name and what takes its place.

    Attributes:
        module: importable name of the module, e.g. of a vendored or remote-code modelling file.
        attr: name of the class in it.
        replacement: a fit, whose op then does the work of the class's ``forward``; or a class with the constructor and
            the parameters of the one it replaces. As plain data: ``{"fit": "rms_norm", "cast": "gemma"}``, a function
            of ``liger_hf.fits`` and its arguments, or ``"package.module:Class"``.
        example: ``f(cls) -> (instance, inputs of its forward)``, or its name as ``"package.module:function"``, for a
            class that cannot be built and run by its signature alone. It must work for both classes.
    """

    module: str
    attr: str
    replacement: Any
    example: Any = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A patch that has been looked up.

    ``group``: the name it was given under. ``fit`` or ``cls``: what replaces ``original``. ``config``: of the family it
    is applied with, if any.
    """

    group: str
    module: ModuleType
    attr: str
    original: Any
    fit: Fit | None
    cls: Any
    example: Callable[..., Any] | None
    config: Any

    @property
    def place(self) -> tuple[Any, str, str]:
        """What holds what is changed, the holder's name, and the attribute: a constructor, or a name in a module."""
        if self.fit:
            return self.original, f"{self.original.__module__}.{self.original.__qualname__}", "__init__"
        return self.module, self.module.__name__, self.attr

    @property
    def name(self) -> str:
        """What is changed, in a word."""
        return ".".join(self.place[1:])

    def check(self, unchecked: list[str]) -> None:
        """Compare the replacement with the original; a fit that no instance can be built for waits for the first.

        Raises:
            PatchRefused: it computes something else, with the numbers; or a class cannot be compared.
        """
        try:
            found = samples(self.original, self.config, self.example, self.fit is None)
        except Unbuildable as error:
            if self.fit is None:
                raise PatchRefused(
                    f"{self.name} cannot be compared with {self.cls.__name__}: {error}; give LigerPatch an example= "
                    "that builds and feeds it"
                ) from error
            unchecked.append(self.name)
            return
        for sample in found:
            reason = refuse_fit(sample.module, self.fit) if self.fit else refuse_class(sample, self.cls)
            if reason:
                by = self.fit.id if self.fit else self.cls.__name__
                raise PatchRefused(f"{self.name} cannot be replaced by {by}: {reason}")

    def install(self) -> Callable[[], None]:
        """Change the symbol; returns what puts it back.

        Raises:
            AlreadyPatched: a kit has changed the symbol before.
        """
        if self.name in _installed:
            raise AlreadyPatched(f"{self.name} is already patched by a kit; revert that one first")
        holder, where, attribute = self.place
        value = self.cls if self.fit is None else _fitting(self.original, self.fit)
        undo = replace_attributes(holder, {attribute: value}, where, "what the kit put there")
        _installed.add(self.name)

        def revert() -> None:
            undo()
            _installed.discard(self.name)

        return revert


_installed: set[str] = set()


def _fitting(cls: Any, fit: Fit) -> Callable[..., None]:
    """A constructor whose instances of exactly this class are checked and patched."""
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  (it becomes the class's own)
        original(self, *args, **kwargs)
        if type(self) is cls:
            try:
                with usual_defaults():  # models are loaded on the meta device and in 16 bits
                    parts = parts_of(self, fit)
            except PatchRefused as refusal:
                raise PatchRefused(
                    f"a kit patches {cls.__module__}.{cls.__qualname__} with the fit {fit.id}, which does not suit "
                    f"this one: {refusal}; revert the kit, or leave the patch out"
                ) from refusal
            apply(self, [Action("", p.module, Choices().spec(fit, p), dict(p.attributes)) for p in parts])

    return __init__


# -- Reading -----------------------------------------------------------------------------------------------------------
def read_patches(given: Any, wanted: Wanted, config: Any) -> list[Symbol]:
    """Look up the argument ``custom_patches``.

    Raises:
        ValueError: an unknown group, one that is left out, a module or symbol that is not there, another op's fit.
        TypeError: what should be a class or a fit is none.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"custom_patches is {given!r}, expected {{name: LigerPatch or a list of them}}")
    found = []
    for group, patches in plain(given or {}).items():
        for op in sorted(ops_of([group])):
            if why := wanted.left_out(op):
                raise ValueError(f"custom_patches has {group}, which is {why}")
        for patch in patches if isinstance(patches, list) and patches else [patches]:
            found.append(_read(group, LigerPatch(**patch) if isinstance(patch, dict) else patch, config))
    return found


def _read(group: str, patch: Any, config: Any) -> Symbol:
    if not isinstance(patch, LigerPatch):
        raise TypeError(f"custom_patches[{group!r}] is {patch!r}, expected a LigerPatch or its fields")
    if not (isinstance(patch.module, str) and isinstance(patch.attr, str)):
        raise TypeError(f"custom_patches[{group!r}]: {patch} has to name its module and class by strings")
    where = f"custom_patches[{group!r}]: {patch.module}.{patch.attr}"
    module, original = _symbol(patch, where)
    replacement = _replacement(patch.replacement, where)
    fit = replacement if isinstance(replacement, Fit) else None
    if fit is not None:
        _check_fit(fit, original, module, group, where)
    elif not (isinstance(replacement, type) and issubclass(replacement, nn.Module)):
        raise TypeError(f"{where}: the replacement is {replacement!r}, expected a fit or a subclass of torch.nn.Module")
    else:
        _check_class(replacement, original, where)
    example = _named(patch.example, where) if isinstance(patch.example, str) else patch.example
    return Symbol(group, module, patch.attr, original, fit, None if fit else replacement, example, config)


def _symbol(patch: LigerPatch, where: str) -> tuple[ModuleType, Any]:
    try:
        module = importlib.import_module(patch.module)
    except (ImportError, TypeError, ValueError) as error:  # the last two: a relative or an empty name
        raise ValueError(f"{where}: the module cannot be imported: {error}") from error
    original = vars(module).get(patch.attr)
    if original is None:
        near = difflib.get_close_matches(patch.attr, vars(module), n=3)
        raise ValueError(f"{where}: there is no such name" + (f"; did you mean {', '.join(near)}?" if near else ""))
    if inspect.isfunction(original):
        raise TypeError(
            f"{where} is a function; name the class whose forward calls it, with fits.rope(function={patch.attr!r}) "
            "for a rotary embedding"
        )
    if not (isinstance(original, type) and issubclass(original, nn.Module)):
        raise TypeError(f"{where} is {original!r}, expected a subclass of torch.nn.Module")
    return module, original


def _replacement(given: Any, where: str) -> Any:
    """The fit or class that plain data means."""
    if isinstance(given, str):
        return _named(given, where)
    if not isinstance(given, Mapping):
        return given
    options = dict(given)
    name = options.pop("fit", None)
    make = getattr(fits, str(name), None)
    if not inspect.isfunction(make) or make.__module__ != fits.__name__ or str(name).startswith("_"):
        known = ", ".join(n for n, f in vars(fits).items() if inspect.isfunction(f) and not n.startswith("_"))
        raise ValueError(f"{where}: {dict(given)} names no fit; {{'fit': NAME}} with one of {known}")
    try:
        return make(**options)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from error


def _named(target: str, where: str) -> Any:
    """What ``"package.module:name"`` means."""
    try:
        return load(target)
    except (ImportError, PluginError) as error:
        raise ValueError(f"{where}: {target!r} cannot be loaded: {error}") from error


def _check_fit(fit: Fit, original: Any, module: ModuleType, group: str, where: str) -> None:
    if fit.op not in ops_of([group]):
        raise ValueError(f"{where}: the fit {fit.id} is for {fit.op}, not for {group}")
    registry().op(fit.op)
    if fit.parts:
        raise TypeError(f"{where}: the fit {fit.id} spans several modules; patch the model: liger.autopatch(model)")
    if original.__module__ != module.__name__:
        raise ValueError(
            f"{where} is defined in {original.__module__}: name that module, where it counts for all that import it; "
            "or give a class, which counts for this module alone"
        )


def _check_class(replacement: Any, original: Any, where: str) -> None:
    """Raise unless a class takes what the original's constructor takes, options by name, and can stand for it."""
    if replacement is original:
        raise ValueError(f"{where} is its own replacement")
    methods = [f for f in vars(original).values() if inspect.isfunction(f)]
    if issubclass(replacement, original) and any(original.__name__ in f.__code__.co_names for f in methods):
        raise ValueError(
            f"{where} names itself, as in super({original.__name__}, self), which would then be {replacement.__name__}"
            ", a class derived from it: derive that from torch.nn.Module"
        )
    required, optional = parameters(original.__init__)
    by_position = [*required, *(p for p in optional if p.kind is not p.KEYWORD_ONLY)]
    by_name = [p.name for p in optional if p not in by_position]
    takes = inspect.signature(replacement.__init__)
    try:
        takes.bind(None, *(p.name for p in required), **{p.name: p.name for p in optional})
        bound = takes.bind(None, *(p.name for p in by_position), **dict.fromkeys(by_name))
    except TypeError as error:
        names = ", ".join(p.name for p in (*required, *optional))
        raise TypeError(
            f"{where} is built with ({names}), which {replacement.__name__} does not take: {error}"
        ) from error
    options = [p.name for p in optional]
    moved = [f"{given} as {name}" for name, given in bound.arguments.items() if given in options and given != name]
    if moved:
        raise TypeError(f"{where}: {replacement.__name__} takes by position {', '.join(moved)}: keep their order")
