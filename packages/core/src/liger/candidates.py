"""What a plan is about: each module that a fit is meant for, by a declaration or because a plugin recognises it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from liger._known import MODELS
from liger.declare import Fit, ModelPatch
from liger.registry import Registry
from liger.report import UNNAMED, Row
from liger.swap import original_class

if TYPE_CHECKING:
    from torch.nn import Module

RECOGNISED = "recognised"
"""The reason of a row whose fit no package declared for its model type."""


class Candidate(NamedTuple):
    """A module that a fit is meant for.

    ``names``: its path, those of modules around it, and for a head the head's. ``reason``: why, beyond a declaration.
    """

    path: str
    module: Module
    fit: Fit
    owner: str
    names: tuple[str, ...]
    reason: str = ""


class Scope(NamedTuple):
    """A model, known by ``config.model_type``, and the patch that decides below it; None: what is recognised."""

    path: str
    model: Module
    patch: ModelPatch | None


Found = Candidate | Row


def find(root: Module, reg: Registry) -> tuple[list[Row], list[Candidate]]:
    """The candidates below ``root``, heads last because they span modules; and rows for what no fit suits."""
    scopes = _scopes(root, reg)
    found: list[Found] = []
    for scope in scopes.values():
        if scope.patch is not None:
            found += _missing(scope.patch, reg.owner("model", scope.patch.model_type))
    heads: list[Found] = []
    for path, module in root.named_modules():
        around = _models_around(path, scopes) or _by_itself(path, module, scopes, reg)
        for one in _of_module(path, module, around, reg):
            (heads if isinstance(one, Candidate) and one.fit.parts else found).append(one)
    found += heads
    paths = {one.path for one in found}
    for scope in scopes.values():
        below = f"{scope.path}." if scope.path else ""
        if scope.patch is None and not any(path == scope.path or path.startswith(below) for path in paths):
            found.append(_unknown(scope.path, scope.model, reg))
    if not found:
        found.append(_unknown("", root, reg))
    return [f for f in found if isinstance(f, Row)], [f for f in found if isinstance(f, Candidate)]


def _scopes(root: Module, reg: Registry) -> dict[str, Scope]:
    """Path -> model: the topmost, and those inside of another declared type, or of none inside a declared one."""
    scopes: dict[str, Scope] = {}
    for path, module in root.named_modules():
        model_type = _type_of(module)
        if model_type is None:
            continue
        outer = next(iter(_models_around(path, scopes)), None)
        patch = reg.models.get(model_type)
        if patch is not None and not _is_of(module, patch):
            if outer is not None or any(_is_of(inner, patch) for inner in module.modules()):
                continue  # it only carries the config of a model inside it, or around it
            patch = None
        if outer is None or _begins(module, model_type, patch, outer):
            scopes[path] = Scope(path, module, patch)
    return scopes


def _models_around(path: str, scopes: Mapping[str, Scope]) -> list[Scope]:
    """The models that a path is in, the innermost first."""
    return [scopes[name] for name in dict.fromkeys((*_around(path), "")) if name in scopes]


def _begins(module: Module, model_type: str, patch: ModelPatch | None, outer: Scope) -> bool:
    """Whether a model inside another one is decided about by itself."""
    if patch is not None:
        return patch is not outer.patch
    inside = outer.patch is not None and model_type != outer.patch.model_type
    return inside and not _is_of(module, outer.patch)  # type: ignore[arg-type]


def _is_of(module: Module, patch: ModelPatch) -> bool:
    return any(c.__module__ == patch.module for c in original_class(module).__mro__)


def _by_itself(path: str, module: Module, scopes: Mapping[str, Scope], reg: Registry) -> list[Scope]:
    """For a module in no model, such as a layer in a stage of a pipeline: the patch that declares its class.

    Or none, so that it is recognised, if something else of its file is (an attention, which holds the config).
    """
    cls = original_class(module)
    for _, patch in sorted(reg.models.items()):
        if patch.module == cls.__module__ and patch.fits.get(cls.__name__):
            return [Scope(path, module, patch)]
    files = {original_class(scope.model).__module__ for scope in scopes.values() if scope.patch is None}
    return [Scope(path, module, None)] if cls.__module__ in files else []


def _of_module(path: str, module: Module, around: Sequence[Scope], reg: Registry) -> Iterator[Found]:
    """What concerns one module; ``around`` are the models it is in, the innermost first."""
    cls = original_class(module)
    for scope in around:
        patch = scope.patch
        key = cls.__name__ if patch and cls.__module__ == patch.module else qualified(cls)
        if patch is None or key not in patch.fits:
            continue
        if (fit := patch.fits[key]) is None:
            yield from _recognised(path, module, around, reg, refused=True)
        else:
            yield Candidate(path, module, fit, reg.owner("model", patch.model_type), _around(path))
        break
    else:
        if around and around[0].patch is None and reg.problem("model", str(_type_of(around[0].model))) is None:
            yield from _recognised(path, module, around, reg, refused=around[-1].patch is None)
    if around and around[0].path == path and (patch := around[0].patch) is not None and patch.head is not None:
        yield from _head(path, module, patch.head, reg.owner("model", patch.model_type), around)


def _recognised(path: str, module: Module, around: Sequence[Scope], reg: Registry, *, refused: bool) -> Iterator[Found]:
    """What the plugins say about a module of an undeclared model, or one that a declaration leaves to them.

    ``refused``: a module that fits nothing gets a row which says why; else none.
    """
    answers = [(i, a) for i, a in reg.plugins.call("liger_recognise_module", module=module) if a is not None]
    fitting = [(info, answer) for info, answer in answers if isinstance(answer, Fit)]
    row = Row(path=path, cls=original_class(module).__name__, fit="", op="", status="refused")
    if len(fitting) > 1:
        claims = " and ".join(f"{info.owner} as {fit.id}" for info, fit in fitting)
        yield replace(row, reason=f"it is recognised by {claims}; disable one of the plugins")
    elif fitting:
        info, fit = fitting[0]
        if fit.parts:
            yield from _head(path, module, fit, info.owner, around, RECOGNISED)
        else:
            yield Candidate(path, module, fit, info.owner, _around(path), RECOGNISED)
    elif refused:
        yield from (replace(row, reason=str(reason), owner=info.owner) for info, reason in answers[:1])
    else:  # what its declaration leaves out of the towers inside is no mistake (the MLPs of CLIP and SigLIP)
        row = replace(row, status="skipped")
        yield from (replace(row, reason=f"{UNNAMED}{reason}", owner=info.owner) for info, reason in answers[:1])


def _head(path: str, model: Module, fit: Fit, owner: str, around: Sequence[Scope], reason: str = "") -> Iterator[Found]:
    """The head of a model that is in no other: what another one does with logits is not ours to know."""
    try:
        head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    except Exception:  # upstream's way to say that this class has none
        head = None
    if head is None:
        return
    if (outermost := around[-1]).path == path:
        names = [n for n, m in model.named_modules(prefix=path) if m is head]
        yield Candidate(path, model, fit, owner, (*_around(path), *names), reason)
    elif outermost.patch is None:  # a declaration says what it wants of the models inside
        by = original_class(outermost.model).__name__
        why = f"{by} around it may need its logits; for its own loss patch this model by itself"
        cls = original_class(model).__name__
        yield Row(path=path, cls=cls, fit=fit.id, op=fit.op, status="skipped", reason=why, owner=owner)


def _missing(patch: ModelPatch, owner: str) -> Iterator[Row]:
    """A row for each class that the patch names and upstream's module does not have, or has no longer."""
    for key, fit in patch.fits.items():
        home, _, name = key.rpartition(".")
        home = home or patch.module
        found = getattr(sys.modules.get(home), name, None)
        row = Row(path="", cls=name, fit=fit.id if fit else "", op=fit.op if fit else "", status="refused", owner=owner)
        if found is None:
            yield replace(row, reason=f"{home} has no class {name!r}")
        elif found.__module__ != home:
            by = qualified(found)
            yield replace(row, status="skipped", reason=f"{home}.{name} was replaced by {by}")


def _type_of(module: Any) -> str | None:
    """``config.model_type``; None without one, also where a property of that name raises."""
    try:
        found = module.config.model_type
    except Exception:
        return None
    return found if isinstance(found, str) else None


def _unknown(path: str, module: Module, reg: Registry) -> Row:
    reason = unknown_reason(_type_of(module), reg)
    return Row(path=path, cls=original_class(module).__name__, fit="", op="", status="skipped", reason=reason)


def unknown_reason(model_type: str | None, reg: Registry) -> str:
    """Why nothing is known about a model type, and what to install."""
    broken = "".join(f"; {info}" for info in reg.plugins.failed)
    if model_type is not None and (claimed := reg.problem("model", model_type)):
        return claimed
    if model_type is None:
        return f"it has no config.model_type, so no plugin can recognise it{broken}"
    if package := MODELS.get(model_type):
        return f"model_type {model_type!r} needs its package: pip install {package}{broken}"
    known = ", ".join(sorted(reg.models)) or "none"
    return f"no installed plugin declares model_type {model_type!r} (declared: {known}); it is left untouched{broken}"


def qualified(cls: type) -> str:
    """``package.module.Class``."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _around(path: str) -> tuple[str, ...]:
    """``a.b.c`` -> ``a.b.c``, ``a.b``, ``a``; the model itself is ``""``."""
    parts = path.split(".")
    return tuple(".".join(parts[:n]) for n in range(len(parts), 0, -1))
