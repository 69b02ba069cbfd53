"""Decides what to patch and touches nothing."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from liger._known import MODELS
from liger.context import as_prefer
from liger.declare import Fit, ModelPatch, load
from liger.errors import AlreadyPatched, PatchRefused, WrongOrder
from liger.patch import PENDING, Action, is_accelerate, owner_of
from liger.registry import Registry, registry
from liger.report import Report, Row, Status
from liger.swap import Part, Spec, is_swapped, match_signature, original_class

if TYPE_CHECKING:
    from torch.nn import Module

UNWRAP_LIMIT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The caller's arguments of ``autopatch``, checked."""

    only: frozenset[str] | None = None
    skip: frozenset[str] = frozenset()
    prefer: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    verify: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        *,
        only: str | Iterable[str] | None = None,
        skip: str | Iterable[str] = (),
        prefer: str | Mapping[str, str] | None = None,
        strict: bool = False,
        verify: bool = False,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Choices:
        """Check the arguments that need no model."""
        options = options or {}
        registry().check_options(options)
        return cls(
            only=None if only is None else _names(only),
            skip=_names(skip),
            prefer=as_prefer(prefer),
            strict=strict,
            verify=verify,
            options=options,
        )

    def spec(self, fit: Fit, part: Part) -> Spec:
        """The spec of one module under these choices."""
        constants = {**fit.options, **part.options}
        return Spec(
            fit=fit.id,
            op=fit.op,
            adapter=part.adapter,
            options=tuple(sorted(constants.items())),
            op_options=tuple(sorted(self.options.get(fit.op, {}).items())),
            kernel=self.kernel(fit.op),
        )

    def kernel(self, op: str) -> str | None:
        """The kernel chosen by hand for ``op``; one preferred for all ops counts if this op has it."""
        if op in self.prefer:
            return self.prefer[op]
        name = self.prefer.get("*")
        return name if any(k.name == name for k in registry().kernels(op)) else None

    def excluded(self, op: str, path: str) -> str | None:
        """Why ``only`` or ``skip`` leaves this module out, or None."""
        if any(_matches(p, op, path) for p in self.skip):
            return "left out by skip="
        if self.only is not None and not any(_matches(p, op, path) for p in self.only):
            return "left out by only="
        return None


def make_plan(target: Module, choices: Choices) -> tuple[Report, list[Action], Module]:
    """Return the report, what to do, and the module that the work is done on (wrappers taken off)."""
    root = unwrap(target)
    check_order(target)
    reg = registry()
    rows: list[Row] = []
    candidates: list[tuple[str, Module, Fit, str]] = []
    for path, model, patch in _models(root, reg):
        if patch is None:
            rows.append(_unknown(path, model, reg))
        else:
            owner = reg.owner("model", patch.model_type)
            candidates += [(*c, owner) for c in _candidates(path, model, patch)]
    if not rows and not candidates:
        rows.append(_unknown("", root, reg))
    _check_patterns(choices, candidates, root, reg)
    actions: list[Action] = []
    for path, module, fit, owner in candidates:
        row, todo = _consider(path, module, fit, owner, choices, reg)
        rows.append(row)
        actions += todo
    prefer = {row.op: choices.kernel(row.op) for row in rows if row.op}
    return _strict(Report(rows, prefer, planned=True), choices), actions, root


def unwrap(target: Module) -> Module:
    """Take off wrappers (PEFT, DDP, torch.compile) that a plugin's ``liger_unwrap_module`` knows."""
    for _ in range(UNWRAP_LIMIT):
        inner = inner_modules(target)
        if len(inner) != 1:
            return target
        target = inner[0]
    return target


def inner_modules(module: Module) -> list[Module]:
    """The modules a wrapper hides, or nothing if no plugin knows it as a wrapper."""
    answers = [list(a) for _, a in registry().plugins.call("liger_unwrap_module", module=module) if a]
    return answers[0] if answers else []


def check_order(target: Module) -> None:
    """Raise WrongOrder if something has already taken over classes or parameters below ``target``."""
    for path, module in target.named_modules():
        for base in type(module).__mro__:
            if base.__name__ in _TOO_LATE or base.__module__.startswith("torch.distributed._composable"):
                raise WrongOrder(
                    f"{path or 'the model'} is already {type(module).__name__} ({base.__module__}.{base.__name__}): "
                    f"patch before {_TOO_LATE.get(base.__name__, 'replicate')}"
                )
        if hasattr(module, "parametrizations") and type(module).__name__.startswith("Parametrized"):
            raise WrongOrder(f"{path or 'the model'} is {type(module).__name__}: patch before register_parametrization")


_TOO_LATE = {
    "FSDPModule": "fully_shard",
    "ReplicateModule": "replicate",
    "FullyShardedDataParallel": "wrapping in FullyShardedDataParallel",
}


def _models(root: Module, reg: Registry) -> Iterator[tuple[str, Module, ModelPatch | None]]:
    """The topmost modules with a ``config.model_type``, and the patch for each if one is declared."""
    below: list[str] = []
    for path, module in root.named_modules():
        model_type = getattr(getattr(module, "config", None), "model_type", None)
        if isinstance(model_type, str) and not any(path.startswith(b) for b in below):
            below.append(f"{path}." if path else "")
            yield path, module, reg.models.get(model_type)


def _unknown(path: str, module: Module, reg: Registry) -> Row:
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    reason = unknown_reason(model_type, reg)
    return Row(path=path, cls=original_class(module).__name__, fit="", op="", status="skipped", reason=reason)


def unknown_reason(model_type: str | None, reg: Registry) -> str:
    """Why nothing is known about a model type, and what to install."""
    broken = "".join(f"; {info}" for info in reg.plugins.failed)
    if model_type is None:
        return f"it has no config.model_type, so no plugin can recognise it{broken}"
    if package := MODELS.get(model_type):
        return f"model_type {model_type!r} needs its package: pip install {package}{broken}"
    known = ", ".join(sorted(reg.models)) or "none"
    return f"no installed plugin declares model_type {model_type!r} (declared: {known}); it is left untouched{broken}"


def _candidates(path: str, model: Module, patch: ModelPatch) -> Iterator[tuple[str, Module, Fit]]:
    """Every module that the patch names, with its fit. The head comes last, because it spans modules."""
    for name, module in model.named_modules(prefix=path):
        cls = original_class(module)
        if cls.__module__ == patch.module and (fit := patch.fits.get(cls.__name__)):
            yield name, module, fit
    if patch.head and original_class(model).__module__ == patch.module:
        yield path, model, patch.head


def _consider(
    path: str, module: Module, fit: Fit, owner: str, choices: Choices, reg: Registry
) -> tuple[Row, list[Action]]:
    row = Row(path=path, cls=original_class(module).__name__, fit=fit.id, op=fit.op, status="applied", owner=owner)

    def left(status: Status, reason: str) -> tuple[Row, list[Action]]:
        return replace(row, status=status, reason=reason), []

    if reason := choices.excluded(fit.op, path):
        return left("skipped", reason)
    if fit.op not in reg.ops:
        return left("skipped", f"op {fit.op!r} is not installed; {reg.hint(fit.op)}")
    if is_swapped(type(module)) and PENDING not in module.__dict__:
        return left("skipped", _already(path, module, fit, choices))
    if reason := _foreign(module):
        return left("skipped", reason)
    if reason := _mismatch(module, fit):
        return left("refused", reason)
    try:
        parts = load(fit.parts)(module, fit.options) if fit.parts else [Part(module, fit.adapter)]
    except PatchRefused as refusal:
        return left("refused", str(refusal))
    actions = [Action(_path_of(p, module, path), p.module, choices.spec(fit, p), dict(p.attributes)) for p in parts]
    if choices.verify:
        from liger.verify import verify_fit

        status, reason = verify_fit(module, fit, actions)
        row = replace(row, reason=reason)
        if status != "applied":
            return left(status, reason)
    return row, actions


def _foreign(module: Module) -> str | None:
    """Who owns a forward on the instance, if it is neither upstream's nor accelerate's."""
    held = module.__dict__.get("forward")
    if held is None or is_accelerate(module):
        return None
    return f"its forward on the instance belongs to {owner_of(held)}, not to upstream"


def _mismatch(module: Module, fit: Fit) -> str | None:
    """Why the fit does not describe the module."""
    reason = match_signature(load(fit.adapter), original_class(module))
    return reason or (load(fit.match)(module, fit.options) if fit.match else None)


def _path_of(part: Part, module: Module, path: str) -> str:
    if part.module is module:
        return path
    inside = next((p for p, m in module.named_modules() if m is part.module), "?")
    return f"{path}.{inside}" if path else inside


def _already(path: str, module: Module, fit: Fit, choices: Choices) -> str:
    have: Spec = type(module).__liger_spec__  # type: ignore[attr-defined]
    constants = {**dict(have.options), **fit.options}
    want = choices.spec(fit, Part(module, fit.adapter))._replace(options=tuple(sorted(constants.items())))
    if have == want:
        return "already patched with the same options"
    changed = ", ".join(f"{n}: {h!r} -> {w!r}" for n, h, w in zip(Spec._fields, have, want, strict=True) if h != w)
    raise AlreadyPatched(f"{path or 'the model'} is already patched with other options ({changed}); unpatch it first")


def _check_patterns(
    choices: Choices, candidates: list[tuple[str, Module, Fit, str]], root: Module, reg: Registry
) -> None:
    ops = {fit.op for _, _, fit, _ in candidates} | set(reg.ops)
    paths = [path for path, _ in root.named_modules()]
    for name, patterns in (("only", choices.only or ()), ("skip", choices.skip)):
        for pattern in patterns:
            if pattern not in ops and not any(fnmatch.fnmatchcase(p, pattern) for p in paths):
                raise ValueError(
                    f"{name}={pattern!r} is neither an op nor a pattern that matches a module path; "
                    f"ops: {', '.join(sorted(ops))}"
                )


def _matches(pattern: str, op: str, path: str) -> bool:
    return pattern == op or fnmatch.fnmatchcase(path, pattern)


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset([names]) if isinstance(names, str) else frozenset(names)


def _strict(report: Report, choices: Choices) -> Report:
    left = [r for r in report.skipped if not r.reason.startswith(("left out by", "already patched"))]
    if choices.strict and left:
        lines = "\n".join(f"  {r.path or '(model)'} ({r.cls}): {r.status}: {r.reason}" for r in left)
        raise PatchRefused(f"strict=True and {len(left)} of {len(report.rows)} rows would not be applied:\n{lines}")
    return report
