"""``liger validate model``: whether the package of a model type is right, as one table."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from liger import ModelPatch
from liger.candidates import unknown_reason
from liger.declare import load
from liger.plugins import describe
from liger.registry import registry
from liger.testing import convergence
from liger.testing import upstream as checks
from liger.testing.models import Pair

Status = Literal["PASS", "FAIL", "SKIP", "TOLERANCE"]
TUNING = "tolerance tuning needed"


class Result(NamedTuple):
    """One row of the table."""

    row: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows of a model type."""

    model_type: str
    results: tuple[Result, ...]

    @property
    def failed(self) -> bool:
        """Whether a row failed or missed its tolerance."""
        return any(result.status in ("FAIL", "TOLERANCE") for result in self.results)

    def to_dict(self) -> dict[str, object]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "results": [result._asdict() for result in self.results]}

    def __str__(self) -> str:
        wide = max(len(result.row) for result in self.results)
        lines = [f"liger validate model {self.model_type}"]
        for row, status, detail in self.results:
            lines.append(f"{row:<{wide}}  {status}{f' ({detail})' if detail else ''}")
        for row in [result.row for result in self.results if result.status == "FAIL"]:
            cause, remedy = CAUSES["Convergence" if row.startswith("Convergence ") else row]
            lines += [f"{row}: usual cause: {cause}", f"{' ' * len(row)}  remedy: {remedy}"]
        return "\n".join(lines)


CAUSES: Mapping[str, tuple[str, str]] = {
    "Import": (
        "the package is not installed, or transformers renamed its module or config",
        "pip install -e the package; liger plugins shows errors; liger analyze TYPE --diff what was renamed",
    ),
    "Instance patching": (
        "a class is gone or computes something else, or the mini lacks a part that the declaration names",
        "liger analyze TYPE --diff",
    ),
    "Undo": (
        "an adapter changes the module and not only its class",
        "let the adapter return class attributes, or name what it sets in Part.attributes",
    ),
    "Convergence": (
        "a fit with the wrong order of casts or activation, or a mini too small to learn",
        "liger.autopatch(model, verify=True) names the module; then with prefer='reference': still wrong is the fit",
    ),
    "Multimodal": (
        "images= makes other inputs than the mini's tower takes, or the tower is patched wrongly",
        "run the mini unpatched on images(ids); then liger.autopatch(model, only='*vision*')",
    ),
    "Lint": ("style that ruff cannot fix by itself", "ruff check in the folder of the package"),
}
"""Row -> its usual cause and the remedy; the four of the training share one."""


def validate(model_type: str, device: str = "cpu", allow_tolerance: bool = False) -> Validation:
    """Run all rows, each once.

    Args:
        model_type: declared by an installed package.
        device: where the mini is trained.
        allow_tolerance: a row that only misses its tolerance is skipped with ``TUNING`` and added to the change note.

    Raises:
        ValueError: there is no such device here.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        raise ValueError(f"device is {device!r}, which cannot be used here: {error}") from error
    results = tuple(_rows(model_type, device))
    if allow_tolerance and any(result.status == "TOLERANCE" for result in results):
        _note(model_type, [result for result in results if result.status == "TOLERANCE"])
        results = tuple(Result(r.row, "SKIP", TUNING) if r.status == "TOLERANCE" else r for r in results)
    return Validation(model_type, results)


def _rows(model_type: str, device: str) -> Iterator[Result]:
    patch = registry().models.get(model_type)
    if patch is None:
        yield Result("Import", "FAIL", unknown_reason(model_type, registry()))
        return
    pair = Pair(patch, device)
    yield _row("Import", _import, patch)
    yield _row("Instance patching", _patches, pair)
    yield _row("Undo", checks.check_undo, pair)
    for dtype in ("bf16", "fp32"):
        for name, mode in (("fused", "fused-loss"), ("with logits", "with-logits")):
            yield _convergence(f"Convergence {dtype} {name}", functools.partial(convergence.CHECKS[dtype], pair, mode))
    if patch.images is None:
        yield Result("Multimodal", "SKIP", "text-only model")
    else:
        yield _row("Multimodal", checks.check_images, pair)
    yield _lint(patch)


def _row(name: str, run: Callable[[Any], None], subject: Any) -> Result:
    try:
        run(subject)
    except Exception as error:
        return Result(name, "FAIL", describe(error))
    return Result(name, "PASS")


def _convergence(name: str, run: Callable[[], list[convergence.Miss]]) -> Result:
    try:
        misses = run()
    except Exception as error:
        return Result(name, "FAIL", describe(error))
    worst = max(misses, key=lambda miss: miss.error / miss.allowed, default=None)
    return Result(name, "TOLERANCE", f"{worst}; {len(misses)} in all") if worst else Result(name, "PASS")


def _import(patch: ModelPatch) -> None:
    importlib.import_module(patch.module)
    load(patch.mini)()
    if patch.images is not None:
        load(patch.images)


def _patches(pair: Pair) -> None:
    checks.check_pinned(pair)
    checks.check_layers_bit_equal(pair)


# -- Lint --------------------------------------------------------------------------------------------------------------
def _folder(patch: ModelPatch) -> Path | None:
    """The folder of the package's source tree; None where it was installed from a wheel."""
    spec = find_spec(patch.mini.partition(":")[0])
    above = Path(spec.origin).parents if spec and spec.origin else ()
    return next((folder for folder in list(above)[:4] if (folder / "pyproject.toml").is_file()), None)


def _lint(patch: ModelPatch) -> Result:
    """What ruff can fix it fixes, once."""
    folder = _folder(patch)
    if folder is None:
        return Result("Lint", "SKIP", "installed without its source tree")
    if find_spec("ruff") is None:
        return Result("Lint", "SKIP", "ruff is not installed")
    if not _ruff(folder, "check") and not _ruff(folder, "format", "--check"):
        return Result("Lint", "PASS")
    _ruff(folder, "check", "--fix")
    _ruff(folder, "format")
    left = _ruff(folder, "check") or _ruff(folder, "format", "--check")
    return Result("Lint", "FAIL", left) if left else Result("Lint", "PASS", "fixed by ruff")


def _ruff(folder: Path, *words: str) -> str:
    """What ruff complains about in a folder; empty if it does not."""
    command = [sys.executable, "-m", "ruff", *words, "--quiet", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() or f"exit status {done.returncode}" if done.returncode else ""


# -- Known issues ------------------------------------------------------------------------------------------------------
def _note(model_type: str, results: list[Result]) -> None:
    """Add what misses its tolerance to the change note of the package, beside it where it is in no checkout.

    Raises:
        ValueError: the package has no source tree to write into.
    """
    folder = _folder(registry().models[model_type])
    if folder is None:
        raise ValueError(f"--allow-tolerance writes a note, but the package of {model_type!r} has no source tree")
    changes = next((above / "changes" for above in folder.parents if (above / "changes").is_dir()), None)
    name = f"{folder.name}.md" if changes is None else f"models-{folder.name}.md"
    note = (folder / "CHANGES.md") if changes is None else changes / name
    issues = "; ".join(f"{result.row}: {result.detail}" for result in results)
    with note.open("a", encoding="utf-8") as file:
        file.write(f"Known issue of `{model_type}`, {TUNING}: {issues}.\n")
