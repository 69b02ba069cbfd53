"""``liger analyze --diff``: what to change in a package after a release of transformers or a change of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import liger
from liger import ModelPatch
from liger.declare import load
from liger.plugins import describe
from liger.registry import registry, require
from liger.report import Report
from liger.swap import original_class
from liger_hf.commands import find_config, meta_model
from liger_hf.recognise import as_source


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change.

    Attributes:
        what: the finding, and what to write.
        kernels: those of the op it concerns.
        files: where.
        behaviour: what is so until then, and what to expect after it.
    """

    what: str
    kernels: tuple[str, ...]
    files: tuple[str, ...]
    behaviour: str


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What to change so that a declaration is right for the installed transformers and kernels."""

    model_type: str
    owner: str
    transformers: str
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    def markdown(self) -> str:
        """A table to paste into an issue."""
        rows = "".join(
            f"| {' | '.join(text.replace('|', '/') for text in _texts(change).values())} |\n" for change in self.changes
        )
        return f"# {self._head()}\n\n| what | kernels | files | expected |\n|---|---|---|---|\n{rows}"

    def __str__(self) -> str:
        lines = [self._head()]
        for at, change in enumerate(self.changes, 1):
            what, *rest = _texts(change).items()
            lines += [f"{at}. {what[1]}", *(f"   {name}: {text}" for name, text in rest)]
        return "\n".join(lines)

    def _head(self) -> str:
        count = f"{len(self.changes)} to change" if self.changes else "nothing to change"
        return f"{self.model_type} of {self.owner} with transformers {self.transformers}: {count}"


def _texts(change: Change) -> dict[str, str]:
    lists = {"kernels": ", ".join(change.kernels) or "none", "files": ", ".join(change.files)}
    return {"what": change.what, **lists, "expected": change.behaviour}


def change_plan(target: str) -> ChangePlan:
    """Compare the declaration of a model type with what the recogniser finds in its mini now.

    Raises:
        LigerError: no installed package declares the type.
    """
    import transformers

    name = target if target in registry().models else find_config(target)[0].model_type
    patch = require(registry().models, "model patch", name)
    owner = registry().owner("model", name)
    return ChangePlan(name, owner, transformers.__version__, tuple(_changes(patch)))


def _changes(patch: ModelPatch) -> Iterator[Change]:
    plugin, mini = _files(patch)
    try:
        model = meta_model(load(patch.mini)())
    except Exception as error:
        what = f"the mini cannot be made: {describe(error)}"
        yield Change(what, (), (mini,), "no check of this type runs; with a config that upstream takes all do")
        return
    report = liger.plan(model)
    for (cls, op, reason), count in Counter((r.cls, r.op, r.reason) for r in report.skipped if not r.idle).items():
        found = next((as_source(m) for m in model.modules() if original_class(m).__name__ == cls), None)
        instead = f"; declare {found}" if found else "; take it out, or write a fit of your own (docs/add-a-model.md)"
        behaviour = f"{count} modules run upstream's code; declared as they are now, they are patched and equal again"
        yield Change(f"{cls}: {reason}{instead}", _kernels(op), (plugin,), behaviour)
    yield from _not_declared(model, report, plugin)
    named = {name.rpartition(".")[2] for name in patch.fits}
    for cls in sorted(named - {row.cls for row in report.rows}):
        what = f"{cls} is declared, but no module of the mini is one: take it out, or let the mini have one"
        yield Change(what, (), (plugin, mini), "the check pinned fails; nothing else is affected")


def _not_declared(model: Any, report: Report, plugin: str) -> Iterator[Change]:
    """Classes that a fit suits and no declaration names; some are left out for a reason."""
    paths = {row.path for row in report.rows}
    found = {original_class(m): as_source(m) for path, m in model.named_modules() if path not in paths}
    for cls, fit in found.items():
        if fit is not None:
            what = f"{cls.__name__} is recognised and not declared: add {cls.__module__}.{cls.__qualname__}: {fit}"
            yield Change(what, (), (plugin,), "its modules run upstream's code; declared they are patched")


def _files(patch: ModelPatch) -> tuple[str, str]:
    """Its plugin.py and the file of its mini, from here where they lie below."""
    module = patch.mini.partition(":")[0]
    spec = find_spec(module)
    mini = Path(spec.origin) if spec and spec.origin else Path(f"{module.replace('.', '/')}.py")
    files = [mini.with_name("plugin.py"), mini]
    here = Path.cwd()
    plugin, mini = (file.relative_to(here) if file.is_relative_to(here) else file for file in files)
    return str(plugin), str(mini)


def _kernels(op: str) -> tuple[str, ...]:
    return tuple(kernel.id for kernel in registry().kernels(op)) if op in registry().ops else ()
