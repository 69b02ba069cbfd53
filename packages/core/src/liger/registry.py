"""What the loaded plugins declare, checked and indexed. Imports no torch."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from liger._known import OPS
from liger.declare import Fit, Kernel, ModelPatch, Needs, Op
from liger.errors import DuplicateName, KernelUnavailable, PluginError
from liger.plugins import PluginInfo, Plugins, describe, shown

Declaration = Op | Kernel | Fit | ModelPatch


class Registry:
    """All ops, kernels, fits and model patches, each with the distribution that owns it."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.problems: list[str] = []
        self._owners: dict[tuple[str, str], list[str]] = {}
        self._duplicates: dict[tuple[str, str], str] = {}
        declared = self._collect()
        self.ops: dict[str, Op] = _index(declared["op"])
        self.fits: dict[str, Fit] = _index(declared["fit"])
        self.models: dict[str, ModelPatch] = _index(declared["model"])
        self._kernels: dict[str, Kernel] = _index(declared["kernel"])
        for kernel in self._kernels.values():
            if kernel.op not in self.ops and kernel.op not in OPS and self.problem("op", kernel.op) is None:
                self.problems.append(
                    f"{self.owner('kernel', kernel.id)}: kernel {kernel.id!r} is for the op {kernel.op!r}, which no "
                    f"installed package declares{_near(kernel.op, {*self.ops, *OPS})}; it is never used"
                )
        for op in self.ops.values():
            reference = Kernel(op=op.name, name="reference", fn=op.reference, rank=0, needs=Needs())
            if self._kernels.setdefault(reference.id, reference) is reference:
                self._owners["kernel", reference.id] = self._owners["op", op.name]

    def op(self, name: str) -> Op:
        """Return the op called ``name``; raise KernelUnavailable that says what to install if there is none."""
        if name in self.ops:
            return self.ops[name]
        raise KernelUnavailable(f"op {name!r} is not installed; {self.hint(name)}")

    def hint(self, op: str) -> str:
        """What to do about an op that is not installed."""
        if package := OPS.get(op):
            broken = [str(i) for i in self.plugins.failed if i.dist == package]
            return broken[0] if broken else f"pip install {package}"
        return f"installed ops: {', '.join(sorted(self.ops)) or 'none'}{_near(op, self.ops)}"

    def kernels(self, op: str) -> list[Kernel]:
        """The kernels of an op, highest rank first."""
        return sorted((k for k in self._kernels.values() if k.op == op), key=lambda k: (-k.rank, k.name))

    def owner(self, kind: str, name: str) -> str:
        """``dist version`` of a declaration; ``kind`` is op, kernel, fit or model."""
        return self._owners[kind, name][0]

    def problem(self, kind: str, name: str) -> str | None:
        """Why there is no ``name`` although it is declared: several do; ``kind`` is op, kernel, fit or model."""
        return self._duplicates.get((kind, name))

    def check_options(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise TypeError for an option that its op does not have or a wrong type, KernelUnavailable for no such op."""
        if not isinstance(options, Mapping):
            raise TypeError(f"options is {options!r}, expected a mapping from op to a mapping from option to value")
        for op, values in options.items():
            if not isinstance(values, Mapping):
                raise TypeError(f"options[{op!r}] is {values!r}, expected a mapping from option to value")
            known = self.op(op).options
            for name in values:
                if name not in known:
                    raise TypeError(
                        f"options[{op!r}]: {name!r} is not an option of {op}; "
                        f"it has {', '.join(sorted(known)) or 'none'}{_near(name, known)}"
                    )

    def check_prefer(self, prefer: Mapping[str, str]) -> None:
        """Raise KernelUnavailable for a kernel name that the op does not have; ``"*"`` must exist in some op."""
        for op, name in prefer.items():
            if not isinstance(op, str) or not isinstance(name, str):
                raise TypeError(f"prefer has {op!r}: {name!r}, expected the names of an op and of one of its kernels")
            known = {k.name for k in (self._kernels.values() if op == "*" else self.kernels(self.op(op).name))}
            if name not in known:
                raise KernelUnavailable(
                    f"prefer={name!r}: no kernel of {'any op' if op == '*' else op} has this name; "
                    f"known: {', '.join(sorted(known)) or 'none'}{_near(name, known)}"
                )

    def _collect(self) -> dict[str, list[Declaration]]:
        found: dict[tuple[str, str], list[tuple[str, Declaration]]] = {}
        for hook in dict.fromkeys(_HOOKS.values()):
            for info, returned in self.plugins.call(hook):
                for declaration in self._listed(info, hook, returned):
                    kind = _KINDS.get(type(declaration))
                    wrong = _wrong(hook, kind, declaration)
                    if kind is None or wrong:
                        self.problems.append(f"{info.owner}: {wrong}")
                        continue
                    found.setdefault((kind, _name(declaration)), []).append((info.owner, declaration))
        out: dict[str, list[Declaration]] = {kind: [] for kind in _KINDS.values()}
        for (kind, name), claims in found.items():
            if len(claims) > 1:
                self._duplicates[kind, name] = str(duplicate(kind, name, [owner for owner, _ in claims]))
                self.problems.append(self._duplicates[kind, name])
                continue
            self._owners[kind, name] = [claims[0][0]]
            out[kind].append(claims[0][1])
        return out

    def _listed(self, info: PluginInfo, hook: str, returned: Any) -> list[Any]:
        """What a hook returned, as a list; the plugin fails if it is no iterable, or raises while iterated."""
        if isinstance(returned, (str, bytes)) or not isinstance(returned, Iterable):
            self.plugins.fail(info, f"{hook} returned {shown(returned)}, expected a list of declarations")
            return []
        try:
            return list(returned)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.plugins.fail(info, f"{hook} raised {describe(error)}")
            return []


_KINDS: dict[type, str] = {Op: "op", Kernel: "kernel", Fit: "fit", ModelPatch: "model"}
_HOOKS = {
    "op": "liger_register_ops",
    "kernel": "liger_register_ops",
    "fit": "liger_register_fits",
    "model": "liger_register_models",
}


def _wrong(hook: str, kind: str | None, declaration: Any) -> str | None:
    """Why what ``hook`` returned cannot be used."""
    if kind is None:
        return f"{hook} returned {shown(declaration)}, not a declaration"
    parts = (declaration.op, declaration.name) if isinstance(declaration, Kernel) else (_name(declaration),)
    if not all(isinstance(part, str) for part in parts):
        return f"{hook} returned {shown(declaration)}, whose name is not a string"
    if kind == "kernel" and not isinstance(declaration.rank, (int, float)):
        return f"kernel {declaration.id!r} has rank {shown(declaration.rank)}, expected a number"
    if hook != _HOOKS[kind]:
        return f"{hook} returned the {kind} {_name(declaration)!r}, which belongs into {_HOOKS[kind]}; it is not used"
    return None


def duplicate(kind: str, name: str, owners: Iterable[str]) -> DuplicateName:
    """The error for one name declared by several distributions."""
    return DuplicateName(f"{kind} {name!r} is declared by {' and '.join(owners)}; neither is used: remove one of them")


def disabled_kernels() -> set[str]:
    """Kernel ids or names in ``LIGER_DISABLE_KERNELS``: ``triton`` or ``rms_norm/triton``, comma separated."""
    return {n.strip() for n in os.environ.get("LIGER_DISABLE_KERNELS", "").split(",") if n.strip()}


def _name(declaration: Declaration) -> str:
    if isinstance(declaration, ModelPatch):
        return declaration.model_type
    return declaration.name if isinstance(declaration, Op) else declaration.id


def _index(declarations: list[Declaration]) -> dict[str, Any]:
    return {_name(d): d for d in declarations}


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


_lock = threading.Lock()
_registry: Registry | None = None


def registry() -> Registry:
    """The registry of this process, built from the installed plugins at the first call."""
    global _registry
    if _registry is None:
        with _lock:
            if _registry is None:
                _registry = Registry(Plugins())
    return _registry


def use(replacement: Registry | None) -> Registry | None:
    """Install another registry and return the previous one (tests; None means: build anew when needed)."""
    global _registry
    previous, _registry = _registry, replacement
    return previous


def require(declarations: Mapping[str, Any], kind: str, name: str) -> Any:
    """Look up a declaration by name, with a message that lists what there is."""
    if name in declarations:
        return declarations[name]
    raise PluginError(
        f"no {kind} {name!r}; known: {', '.join(sorted(declarations)) or 'none'}{_near(name, declarations)}"
    )
