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
from liger.plugins import Plugins

Declaration = Op | Kernel | Fit | ModelPatch


class Registry:
    """All ops, kernels, fits and model patches, each with the distribution that owns it."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.problems: list[str] = []
        self._owners: dict[tuple[str, str], list[str]] = {}
        declared = self._collect()
        self.ops: dict[str, Op] = _index(declared["op"])
        self.fits: dict[str, Fit] = _index(declared["fit"])
        self.models: dict[str, ModelPatch] = _index(declared["model"])
        self._kernels: dict[str, Kernel] = _index(declared["kernel"])
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

    def check_options(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise TypeError for an option or op name that no declaration knows."""
        for op, values in options.items():
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
            known = {k.name for k in (self._kernels.values() if op == "*" else self.kernels(self.op(op).name))}
            if name not in known:
                raise KernelUnavailable(
                    f"prefer={name!r}: no kernel of {'any op' if op == '*' else op} has this name; "
                    f"known: {', '.join(sorted(known)) or 'none'}{_near(name, known)}"
                )

    def _collect(self) -> dict[str, list[Declaration]]:
        hooks = ("liger_register_ops", "liger_register_fits", "liger_register_models")
        found: dict[tuple[str, str], list[tuple[str, Declaration]]] = {}
        for hook in hooks:
            for info, declarations in self.plugins.call(hook):
                for declaration in declarations or ():
                    kind = _KINDS.get(type(declaration))
                    if kind is None:
                        self.problems.append(f"{info.owner}: {hook} returned {declaration!r}, not a declaration")
                        continue
                    found.setdefault((kind, _name(declaration)), []).append((info.owner, declaration))
        out: dict[str, list[Declaration]] = {kind: [] for kind in _KINDS.values()}
        for (kind, name), claims in found.items():
            if len(claims) > 1:
                self.problems.append(str(duplicate(kind, name, [owner for owner, _ in claims])))
                continue
            self._owners[kind, name] = [claims[0][0]]
            out[kind].append(claims[0][1])
        return out


_KINDS: dict[type, str] = {Op: "op", Kernel: "kernel", Fit: "fit", ModelPatch: "model"}


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
