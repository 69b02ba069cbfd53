"""Decides what to patch and touches nothing."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from liger.candidates import Candidate, find
from liger.context import as_prefer
from liger.declare import Fit, load
from liger.errors import AlreadyPatched, KernelUnavailable, PatchRefused, WrongOrder
from liger.patch import (
    PENDING,
    Action,
    has_own_forward,
    is_accelerate,
    owner_of,
    prepared_forward,
    tensor_parallel,
)
from liger.plugins import describe
from liger.registry import Registry, registry
from liger.report import IDLE, Report, Row, Status
from liger.swap import Part, Spec, is_swapped, match_signature, original_class, overridden
from liger.testing.cases import typical

if TYPE_CHECKING:
    from torch.nn import Module

UNWRAP_LIMIT = 8
ONLY = "left out by only="
"""The reason of a row that ``only`` did not name."""
HUB = "a kernel of the package kernels, put there by use_kernels=True or kernelize(): load it without to have Liger's"
"""The end of a reason."""


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

    def excluded(self, op: str, names: Sequence[str]) -> str | None:
        """Why ``only`` or ``skip`` leaves a module out, or None; ``names`` as ``Candidate.names`` has them."""
        if any(_matches(p, op, names) for p in self.skip):
            return "left out by skip="
        if self.only is not None and not any(_matches(p, op, names) for p in self.only):
            return ONLY
        return None


def make_plan(target: Module, choices: Choices) -> tuple[Report, list[Action], Module]:
    """Return the report, what to do, and the module that the work is done on (wrappers taken off)."""
    root = unwrap(target)
    check_order(target)
    reg = registry()
    actions: list[Action] = []
    with usual_defaults():
        rows, candidates = find(root, reg)
        _check_patterns(choices, candidates, reg)
        _check_options(choices, candidates)
        for candidate in candidates:
            row, todo = _consider(candidate, choices, reg)
            rows.append(row)
            actions += todo
    prefer = {row.op: choices.kernel(row.op) for row in rows if row.op}
    return _strict(Report(_idle(rows), prefer, planned=True), choices), actions, root


@contextmanager
def usual_defaults() -> Iterator[None]:
    """New tensors are float32 on the CPU, gradients work and autocast is off, whatever the caller's modes.

    Probes compute with numbers of their own, and a model may be patched at a first forward inside of any mode.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    accelerator = torch.accelerator.current_accelerator()
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"), ExitStack() as off:
            for device in {"cpu", accelerator.type if accelerator else "cpu"}:
                off.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        torch.set_default_dtype(before)


def _idle(rows: list[Row]) -> list[Row]:
    """That a module never comes to the op is no mistake of the declaration where others of its class do."""
    used = {(r.cls, r.fit) for r in rows if r.status != "refused"}
    return [replace(r, status="skipped") if r.reason.startswith(IDLE) and (r.cls, r.fit) in used else r for r in rows]


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
        if _is_gathered(module):
            raise WrongOrder(f"{path or 'the model'} has hooks of DeepSpeed ZeRO-3: patch before deepspeed.initialize")
        if _is_convolution(module):
            continue  # upstream parametrises some by weight norm (wav2vec2), and no fit is for one
        if hasattr(module, "parametrizations") and type(module).__name__.startswith("Parametrized"):
            raise WrongOrder(f"{path or 'the model'} is {type(module).__name__}: patch before register_parametrization")


def _is_gathered(module: Module) -> bool:
    """Whether DeepSpeed fetches the module's parameters when it runs, as its stage 3 does; below that they stay."""
    hooks = module._forward_pre_hooks.values()
    return any(owner_of(hook).startswith("deepspeed.") for hook in hooks) and any(
        hasattr(parameter, "ds_shape") for parameter in module.parameters()
    )


def _is_convolution(module: Module) -> bool:
    return any(base.__name__ == "_ConvNd" for base in type(module).__mro__)


_TOO_LATE = {
    "FSDPModule": "fully_shard",
    "ReplicateModule": "replicate",
    "FullyShardedDataParallel": "wrapping in FullyShardedDataParallel",
}


def _consider(candidate: Candidate, choices: Choices, reg: Registry) -> tuple[Row, list[Action]]:
    path, module, fit, owner, _, why = candidate
    row = Row(
        path=path, cls=original_class(module).__name__, fit=fit.id, op=fit.op, status="applied", reason=why, owner=owner
    )

    def left(status: Status, reason: str) -> tuple[Row, list[Action]]:
        return replace(row, status=status, reason=reason), []

    if reason := _outside(candidate, choices, reg):
        return left("skipped", reason)
    try:
        parts = parts_of(module, fit)
    except PatchRefused as refusal:
        return left("refused", str(refusal))
    actions = [Action(_path_of(p, module, path), p.module, choices.spec(fit, p), dict(p.attributes)) for p in parts]
    if choices.verify:
        from liger.verify import verify_fit

        try:
            status, reason = verify_fit(module, fit, actions)
        except Exception as error:
            return left("refused", f"verify: the probe failed with {describe(error)}")
        row = replace(row, reason="; ".join(filter(None, (why, reason))))
        if status != "applied":
            return left(status, reason)
    return row, actions


def _outside(candidate: Candidate, choices: Choices, reg: Registry) -> str | None:
    """Why a module is left alone for a reason outside it."""
    path, module, fit, *_ = candidate
    if reason := choices.excluded(fit.op, candidate.names):
        patched = is_swapped(type(module)) and PENDING not in module.__dict__
        return f"{reason}, but an earlier call patched it: liger.unpatch(model) first" if patched else reason
    if fit.op not in reg.ops:
        return f"op {fit.op!r} is not installed; {reg.hint(fit.op)}"
    if is_swapped(type(module)) and PENDING not in module.__dict__:
        return _already(path, module, fit, choices)
    return _foreign(module)


def parts_of(module: Module, fit: Fit) -> list[Part]:
    """The modules of a fit, once it has been matched with ``module``.

    Raises:
        PatchRefused: it does not describe the module, or its probes fail.
    """
    try:
        if reason := _mismatch(module, fit):
            raise PatchRefused(reason)
        return load(fit.parts)(module, fit.options) if fit.parts else [Part(module, fit.adapter)]
    except PatchRefused:
        raise
    except Exception as error:  # upstream's code or a plugin's, run in a way it was not made for
        raise PatchRefused(f"a probe of it failed with {describe(error)}") from error


def _foreign(module: Module) -> str | None:
    """Who has replaced the forward, on the instance or on its class; accelerate and tensor parallelism do not count."""
    if by := overridden(original_class(module)):
        return f"forward of its class was replaced by {by}"
    held = module.__dict__.get("forward")
    if held is None or is_accelerate(module) or has_own_forward(module) or tensor_parallel(module) is not None:
        return None
    if PENDING in module.__dict__ and prepared_forward(module) is type(module).forward:
        return None
    if hasattr(module, "kernel_layer_name"):
        return f"its forward is {owner_of(held)}, {HUB}"
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


def _check_patterns(choices: Choices, candidates: list[Candidate], reg: Registry) -> None:
    if not candidates:
        return  # nothing that a pattern could name
    ops = {c.fit.op for c in candidates} | set(reg.ops)
    for name, patterns in (("only", choices.only or ()), ("skip", choices.skip)):
        for pattern in patterns:
            if pattern not in ops and not any(_matches(pattern, "", c.names) for c in candidates):
                raise ValueError(
                    f"{name}={pattern!r} is neither an op nor a pattern that matches a module that could be patched or "
                    f"one around it; ops: {', '.join(sorted(ops))}; paths: {candidates[0].path}, ..."
                )


def _check_options(choices: Choices, candidates: list[Candidate]) -> None:
    """Raise for an option that a fit reads from the model, as it would be ignored, and for a value its op refuses."""
    for fit in {c.fit.id: c.fit for c in candidates}.values():
        for name in choices.options.get(fit.op, {}):
            if name in fit.sets:
                raise TypeError(
                    f"options[{fit.op!r}]: {name!r} is read from the model by the fit {fit.id!r} and cannot be chosen; "
                    f"change the model, or call liger.ops.{fit.op}"
                )
    for op in {c.fit.op for c in candidates if choices.options.get(c.fit.op) and registry().op(c.fit.op).inputs}:
        _try_options(op, choices.options[op])


def _try_options(op: str, options: Mapping[str, Any]) -> None:
    """Raise what an op says of option values that it takes in no dtype; the model's first forward would be too late.

    The kernel that is asked for does not exist, so where an op refuses nothing it ends with that: nothing is computed,
    logged or counted, whatever kernels are preferred or disabled.
    """
    refusals = []
    for dtype in ("float32", "bfloat16", "float16"):
        tensors, every = typical(registry().kernels(op)[-1], dtype).replace(options=options).make()
        try:
            load(registry().op(op).public)(*tensors, **every, kernel="none, as only the options are tried")
        except KernelUnavailable:
            return
        except (TypeError, ValueError) as error:
            refusals.append(error)
    raise refusals[0]


def _matches(pattern: str, op: str, names: Sequence[str]) -> bool:
    return pattern == op or any(fnmatch.fnmatchcase(n, pattern) for n in names)


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset([names]) if isinstance(names, str) else frozenset(names)


def _strict(report: Report, choices: Choices) -> Report:
    left = [r for r in report.skipped if not (r.idle or r.reason.startswith(("left out by", "already patched")))]
    if choices.strict and left:
        lines = "\n".join(f"  {r.path or '(model)'} ({r.cls}): {r.status}: {r.reason}" for r in left)
        raise PatchRefused(f"strict=True and {len(left)} of {len(report.rows)} rows would not be applied:\n{lines}")
    return report
