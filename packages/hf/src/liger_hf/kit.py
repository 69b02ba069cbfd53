"""``liger.kit``: patching by configuration, before a model is built.

    result = LigerKernelKit().apply("llama", custom_patches={
        "layer_norm": LigerPatch("my_package.encoder", "EncoderNorm", fits.layer_norm()),
    })
    print(result)                         # what will be patched, what not and why, how to check it
    model = MyModel(config)               # patched when it is loaded or at its first forward
    result.revert()                       # what is built from here on is upstream's again

Names of modules are those of ``liger_hf.groups``, or of ops.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import liger
from liger import Report
from liger.construct import resolve
from liger.errors import PatchRefused, WrongOrder
from liger.patch import PENDING
from liger.planner import usual_defaults
from liger.registry import registry
from liger.report import log
from liger_hf.families import Family, find_family
from liger_hf.groups import LOSSES, group_of, ops_of
from liger_hf.kit_options import Wanted, plain
from liger_hf.loading import patch_from_now_on
from liger_hf.samples import MADE
from liger_hf.symbols import LigerPatch, Symbol, read_patches

__all__ = ["KitResult", "LigerKernelKit", "LigerPatch"]

_lock = threading.RLock()
"""Held while symbols change."""


@dataclass(slots=True)
class KitResult:
    """What one ``apply`` will patch.

    Attributes:
        route: ``"family"`` (declared by a package), ``"recognised"`` (its parts are, in a small or given config),
            ``"custom"``, or both with a ``+``.
        family: the model type, if any.
        selection: name -> ``"applied"``, or why it is not.
        symbols: what was changed to do it, as ``package.module.Class.__init__``.
        unchecked: symbols whose check has to wait until the first instance is built, and raises there.
        ops: that patched modules will call.
        commands: that validate the result.
        report: of the family, to which the rows of each model are added that is loaded; None without a family.
    """

    route: str
    family: str | None
    selection: dict[str, str]
    symbols: list[str]
    unchecked: list[str]
    ops: tuple[str, ...]
    commands: list[str]
    report: Report | None = None
    _family: Family | None = field(default=None, repr=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    @property
    def applied(self) -> list[str]:
        """The names of ``selection`` that are applied."""
        return [name for name, status in self.selection.items() if status == "applied"]

    @property
    def lacks(self) -> list[str]:
        """What this environment lacks to serve the ops and to run the commands, each with what to do."""
        from liger.doctor import diagnose

        found = [*diagnose().problems, *(self._family.lacks() if self._family else [])]
        device = torch.accelerator.current_accelerator()
        if device is None:
            return [*found, "an accelerator: on a CPU ops run as plain torch, which saves memory and no time"]
        for op in self.ops:
            served = [k.name for k in registry().kernels(op) if not k.needs.devices or device.type in k.needs.devices]
            if served == ["reference"]:
                found.append(f"a kernel of {op} for {device.type}: `liger explain {op}` says what each needs")
        return found

    def revert(self) -> None:
        """Put every symbol back; models that were built meanwhile stay patched until ``liger.unpatch``. Then a no-op.

        Raises:
            UnpatchConflict: someone else has replaced a symbol since. It and those before it stay.
        """
        with _lock:
            while self._undo:
                self._undo[-1]()
                self._undo.pop()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        names = ("route", "family", "selection", "symbols", "unchecked", "ops", "commands", "lacks")
        return {name: plain(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        lines = [f"liger kit: {self.route}" + (f" {self.family}" if self.family else "")]
        lines += [f"  {name}: {status}" for name, status in self.selection.items()]
        for title in ("symbols", "unchecked", "commands", "lacks"):
            if entries := getattr(self, title):
                lines += [title, *(f"  {entry}" for entry in entries)]
        return "\n".join(lines)


class LigerKernelKit:
    """Chooses ops by name and patches what is built from then on.

    Args:
        excluded_modules: names that ``modules="auto"`` leaves out and that may not be asked for; by default both
            losses, so that a recipe's own accounting of losses stays as it is.
    """

    def __init__(self, excluded_modules: Iterable[str] = LOSSES) -> None:
        self.results: list[KitResult] = []
        if isinstance(excluded_modules, (str, Mapping)) or not isinstance(excluded_modules, Iterable):
            hint = f": [{excluded_modules!r}]" if isinstance(excluded_modules, str) else ""
            raise TypeError(f"excluded_modules is {excluded_modules!r}, expected a list of names{hint}")
        self.excluded_modules = tuple(excluded_modules)
        ops_of(self.excluded_modules)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LigerKernelKit:
        """A kit that has applied what a mapping says, as YAML, JSON and OmegaConf give it.

        Args:
            config: ``excluded_modules`` and ``apply``, the arguments of one call of ``apply`` or a list of several.

        Raises:
            TypeError: another key, or nothing to apply. ``apply`` raises as it does; of several calls none is left
                applied then.
        """
        given = plain(config)
        if not isinstance(given, dict) or (unknown := given.keys() - {"excluded_modules", "apply"}):
            found = sorted(unknown) if isinstance(given, dict) else type(config).__name__
            raise TypeError(f"the configuration of a kit has excluded_modules and apply, found {found}")
        found = given.pop("apply", None)
        calls = [found] if isinstance(found, dict) else found
        if not (isinstance(calls, list) and calls and all(isinstance(call, dict) for call in calls)):
            raise TypeError(f"apply is {found!r}, expected the arguments of one call, or a list of several")
        kit = cls(**given)
        try:
            for call in calls:
                kit.apply(**call)
        except BaseException:
            kit.revert()
            raise
        return kit

    def apply(
        self,
        model_name_or_path: Any = None,
        modules: Any = "auto",
        model_family: str | None = None,
        custom_patches: Mapping[str, Any] | None = None,
    ) -> KitResult:
        """Patch what is built from now on. Several calls compose: a family, then an encoder of one's own.

        Args:
            model_name_or_path: a model type, a directory, a hub id, a config, also as a mapping, or a model class.
            modules: ``"auto"``, all that the family has; a list of names; or ``{name: bool}``, which changes "auto".
            model_family: the model type, where the name cannot tell: a composite model with a known text model.
            custom_patches: name -> ``LigerPatch``, a mapping of its fields, or a list of them.

        Raises:
            ValueError, TypeError: an unknown name, contradicting arguments, nothing to patch.
            PatchRefused: a module that was asked for does not exist in the family, or a replacement does not compute
                what its symbol does; with the numbers.
            WrongOrder: an instance exists already: that is for ``liger.autopatch(model)``.
            AlreadyPatched: a class is already patched with other options.
        """
        _refuse_model(model_name_or_path)
        wanted = Wanted.of(modules, self.excluded_modules)
        with _lock, torch.inference_mode(False):
            family = find_family(model_name_or_path, model_family)
            symbols = read_patches(custom_patches, wanted, family and family.config)
            if family is None and not symbols:
                raise ValueError("nothing to patch: give model_name_or_path, model_family or custom_patches")
            _refuse_instances([*(family.classes if family else ()), *(s.original for s in symbols)])
            result = _select(family, symbols, wanted)
            with usual_defaults():
                for symbol in symbols:
                    symbol.check(result.unchecked)
            _install(result, family, symbols, wanted)
            self.results.append(result)
        log(type(self), f"{result.route}: {', '.join(result.applied)}")
        return result

    def finish(self, model: nn.Module) -> list[Report]:
        """Patch now what inside a model waits for its first forward: before FSDP, or ``torch.compile``.

        Returns:
            The report of each part of the model that waited.
        """
        return [resolve(module) for module in list(model.modules()) if PENDING in module.__dict__]

    def revert(self) -> None:
        """Undo every ``apply``, the last one first."""
        while self.results:
            self.results[-1].revert()
            self.results.pop()


def _refuse_model(target: Any) -> None:
    if isinstance(target, nn.Module):
        raise WrongOrder(
            f"this {type(target).__name__} is built already, and a kit patches what is built later: call "
            "liger.autopatch(model)"
        )


def _refuse_instances(classes: list[type]) -> None:
    """Raise WrongOrder if a plain instance of one of the classes is alive."""

    def alive() -> list[str]:
        holders: list[Any] = gc.get_referrers(*classes)
        held = (one for one in holders if type(one) in classes and one not in MADE and not liger.is_patched(one))
        return sorted({type(one).__name__ for one in held})

    if not alive():
        return
    gc.collect()
    if names := alive():
        raise WrongOrder(
            f"{' and '.join(names)} already built, and a kit patches what is built later: call "
            "liger.autopatch(model) on the model that there is, or apply the kit before building it"
        )


def _select(family: Family | None, symbols: list[Symbol], wanted: Wanted) -> KitResult:
    """What would be done.

    Raises:
        PatchRefused: a name that was asked for has nothing to patch.
        ValueError: nothing would be patched.
    """
    has = family.ops() if family else set()
    custom = {symbol.group for symbol in symbols}
    selection = _selection(has, wanted) | dict.fromkeys(custom, "applied")
    for name in sorted(wanted.asked - custom):
        if not ops_of([name]) & has:
            raise PatchRefused(_has_none(name, family, selection))
    if "applied" not in selection.values():
        left = "; ".join(f"{name}: {why}" for name, why in selection.items())
        raise ValueError(f"nothing is left to patch ({left or 'no part of it is known'})")
    ops = sorted({op for op in has if not wanted.left_out(op)} | {s.fit.op for s in symbols if s.fit})
    explain = [f"liger explain {op}" for op in ops]
    return KitResult(
        route="+".join(([family.route] if family else []) + ["custom"] * bool(symbols)),
        family=family.model_type if family else None,
        selection=selection,
        symbols=[],
        unchecked=[],
        ops=tuple(ops),
        commands=[*(family.commands() if family else []), *explain, "liger doctor"],
        _family=family,
    )


def _selection(has: set[str], wanted: Wanted) -> dict[str, str]:
    """Name -> "applied" if any of its ops is, else why they are left out."""
    found: dict[str, str] = {}
    for op in sorted(has):
        why = wanted.left_out(op)
        if why is None or group_of(op) not in found:
            found[group_of(op)] = why or "applied"
    return found


def _has_none(name: str, family: Family | None, selection: Mapping[str, str]) -> str:
    """The message for a name that has nothing to patch."""
    reasons = sorted({row.reason for row in family.rows if row.op in ops_of([name])}) if family else []
    because = f" ({'; '.join(reasons)})" if reasons else ""
    of = family.model_type if family else "custom_patches"
    return f"modules: {of} has no {name} to patch{because}; it has {', '.join(selection) or 'nothing'}"


def _install(result: KitResult, family: Family | None, symbols: list[Symbol], wanted: Wanted) -> None:
    """Change the symbols; an error in the middle leaves them as they were."""
    try:
        for symbol in symbols:
            result._undo.append(symbol.install())
            result.symbols.append(symbol.name)
        if family is not None and any(not wanted.left_out(op) for op in family.ops()):
            strict = bool(wanted.asked) and family.route == "family"
            report = result.report = patch_from_now_on(family.classes, only=wanted.only(), strict=strict)
            result._undo.append(report.revert)
            marked = [c for c, row in zip(family.classes, report.rows, strict=True) if row.status == "deferred"]
            result.symbols += [f"{cls.__module__}.{cls.__name__}.__init__" for cls in marked]
    except BaseException:
        result.revert()
        raise
