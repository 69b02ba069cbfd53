"""``liger new``: start a package from ``liger/templates``. What is made passes its own tests at once.

Inside a checkout of this repository the package goes under ``packages/`` and pins its siblings exactly; elsewhere it
goes into the current folder and takes a range of versions.
"""

from __future__ import annotations

import ast
import enum
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from liger import upstream
from liger._known import OPS
from liger.errors import LigerError
from liger.registry import registry

app = typer.Typer(no_args_is_help=True, help="Start a package: a model, or an op with its kernel.")
NAME = re.compile(r"[a-z][a-z0-9_]*")
IMPORTS = ("Kernel", "Needs", "Op", "Option", "Profile", "Sweep")


class Tier(enum.StrEnum):
    """Which kind of kernel an op starts with."""

    elementwise = "elementwise"
    reduction = "reduction"
    fused = "fused"


WHOLE_ROWS = "whole rows, 2048 elements or one row; ceil(R / rows) programs"
TIERS: Mapping[Tier, Mapping[str, object]] = {
    Tier.elementwise: {
        "arguments": "x", "bad_arguments": "x.long()", "option": "beta", "default": 1.0, "other": 2.0,
        "mixed": "",
        "saved": '("x",)',
        "recomputed": '("s = sigmoid(beta * x)",)',
        "gradients": '{"x": "dy * s * (1 + beta * x * (1 - s))"}',
        "grid": "1024 elements; ceil(N / 1024) programs",
    },
    Tier.reduction: {
        "arguments": "x", "bad_arguments": "x.long()", "option": "eps", "default": 1e-6, "other": 0.1,
        "mixed": "",
        "saved": '("x", "scale (R,) float32")',
        "recomputed": '("y = x * scale",)',
        "gradients": '{"x": "(dy - y * sum(y * dy)) * scale"}',
        "grid": WHOLE_ROWS,
    },
    Tier.fused: {
        "arguments": "x, x", "bad_arguments": "x.long(), x", "option": "eps", "default": 1e-6, "other": 0.1,
        "mixed": '    mixed=("x", "gate"),\n',
        "saved": '("x", "gate", "scale (R,) float32")',
        "recomputed": '("s = sigmoid(gate)", "y = x * s * scale")',
        "gradients": '{"x": "dh * s, dh = (dy - y * mean(y * dy)) * scale", "gate": "dh * x * s * (1 - s)"}',
        "grid": WHOLE_ROWS,
    },
}  # fmt: skip
LIMIT = '        max_size={"H": 8192},  # a program holds whole rows; twice as wide spills (tools/compile_gate.py)\n'
REDUCTION = '    reduction="H",\n'
RUFF = """
[tool.ruff]
line-length = 120

[tool.ruff.lint.isort]
known-first-party = ["liger*"]
"""  # how the templates are formatted, where no repository of ours around the package says so


@dataclass(frozen=True)
class Place:
    """A package to be made or added to: ``kind`` is models or kernels."""

    root: Path
    kind: str
    name: str

    @property
    def inside(self) -> bool:
        """Whether ``root`` is a checkout of this repository."""
        return (self.root / "packages" / "core" / "pyproject.toml").is_file()

    @property
    def label(self) -> str:
        """``models-foo``: name of entry point and session."""
        return f"{self.kind}-{self.name.replace('_', '-')}"

    @property
    def module(self) -> str:
        """``liger_models_foo``."""
        return f"liger_{self.label.replace('-', '_')}"

    @property
    def folder(self) -> Path:
        """Where the package is, or will be."""
        if not self.inside:
            return self.root / f"liger-{self.label}"
        name = self.name.replace("_", "-")
        return self.root / "packages" / (f"models/{name}" if self.kind == "models" else f"kernels-{name}")

    @property
    def code(self) -> Path:
        """Folder of its modules."""
        return self.folder / "src" / self.module

    def blanks(self) -> dict[str, str]:
        """What every template may name."""
        if self.inside:
            toml = (self.root / "packages" / "core" / "pyproject.toml").read_text(encoding="utf-8")
            ours = tomllib.loads(toml)["project"]["version"]
            own, pin = ours, f"=={ours}"
        else:
            major, minor, *_ = version("liger-core").split(".")
            own, pin = "0.1.0", f">={major}.{minor},<{major}.{int(minor) + 1}"
        return {"dist": f"liger-{self.label}", "label": self.label, "module": self.module, "version": own, "pin": pin}


def new_model(name: str, model_type: str, root: Path) -> Path:
    """Make a model package for a model type that the installed transformers knows; returns its folder.

    Raises:
        LigerError: the name is not one, or the package exists.
        ValueError: transformers does not know the model type.
    """
    _write(model_files(name, model_type, root))
    return Place(root, "models", name).folder


def model_files(name: str, model_type: str, root: Path) -> dict[Path, str]:
    """What ``new_model`` writes: path -> text. It raises what ``new_model`` does."""
    place = Place(root, "models", _checked(name))
    if place.folder.exists():
        raise LigerError(
            f"{place.folder} exists: add a ModelPatch for {model_type!r} to its plugin.py and a mini instead"
        )
    found = upstream.find(model_type)
    function = re.sub(r"\W", "_", model_type)
    notes = [f"        # {cls}: not recognised; docs/add-a-model.md says how to fit it" for cls in found.unknown]
    blanks = {
        **place.blanks(),
        "model_type": model_type,
        "constant": function.upper(),
        "function": function,
        "upstream": found.module,
        "config": found.config,
        "head": found.head,
        "fits": "\n".join([*(f'        "{cls}": {fit},' for cls, fit in found.fits.items()), *notes]),
        "settings": "\n".join(f"        {key}={value!r}," for key, value in found.settings.items()),
    }
    made = {
        **_start(place, "model", blanks),
        place.code / "mini.py": _fill("model/mini.py", blanks),
        place.folder / "tests" / f"test_{place.name}.py": _fill("model/test.py", blanks),
    }
    if place.inside:
        made[root / "changes" / f"{place.label}.md"] = _fill("model/change.md", blanks)
    return made


def new_kernel(family: str, op: str, tier: Tier, root: Path) -> Path:
    """Add an op with a reference, a Triton kernel and tests to a family's package, which is made if it does not exist.

    Raises:
        LigerError: a name is not one or is taken, or the family's plugin.py has a shape that cannot be added to.
    """
    _write(kernel_files(family, op, tier, root))
    return Place(root, "kernels", family).folder


def kernel_files(family: str, op: str, tier: Tier, root: Path) -> dict[Path, str]:
    """What ``new_kernel`` writes: path -> text. It raises what ``new_kernel`` does."""
    place = Place(root, "kernels", _checked(family))
    if _checked(op) in {*registry().ops, *OPS} or (place.code / f"{op}.py").exists():
        raise LigerError(f"there is an op {op!r} already; take another name")
    rows = tier is not Tier.elementwise
    extra = {"reduction": REDUCTION if rows else "", "limit": LIMIT if rows else ""}
    names = {"family": place.name, "op": op, "constant": op.upper(), "tier": str(tier)}
    blanks = {**place.blanks(), **TIERS[tier], **extra, **names}
    plugin = place.code / "plugin.py"
    made = {} if place.folder.exists() else _start(place, "kernel", blanks)
    text = made.get(plugin) or plugin.read_text(encoding="utf-8")
    return {
        **made,
        place.code / f"{op}.py": _fill(f"op/{tier}.py", blanks),
        place.code / f"_{op}_triton.py": _fill(f"op/{tier}_triton.py", blanks),
        place.folder / "tests" / f"test_{op}.py": _fill("op/test.py", blanks),
        plugin: add_to_plugin(text, _fill("op/registration.py", blanks), (op.upper(), f"{op.upper()}_TRITON")),
    }


def add_to_plugin(text: str, declarations: str, names: Iterable[str]) -> str:
    """The source of a plugin.py with further declarations, returned by its ``liger_register_ops``."""
    tree = ast.parse(text)
    hook = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "liger_register_ops"), None)
    result = hook.body[-1] if hook else None
    if hook is None or not isinstance(result, ast.Return) or not isinstance(result.value, ast.List):
        raise LigerError("plugin.py has no liger_register_ops that ends with `return [...]`; add the op by hand")
    items = [*(ast.unparse(item) for item in result.value.elts), *names]
    line = f"    return [{', '.join(items)}]"
    if len(line) > 120:
        line = "    return [\n" + "".join(f"        {item},\n" for item in items) + "    ]"
    lines = text.splitlines()
    lines[result.lineno - 1 : result.end_lineno] = [line]
    start = (hook.decorator_list[0] if hook.decorator_list else hook).lineno - 1
    lines[start - 1 : start] = [*declarations.rstrip().splitlines(), "", ""]  # one blank line before, two after
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "liger":
            every = sorted({*IMPORTS, *(alias.name for alias in node.names)})
            lines[node.lineno - 1 : node.end_lineno] = [f"from liger import {', '.join(every)}"]
    return "\n".join(lines) + "\n"


def _start(place: Place, kind: str, blanks: Mapping[str, object]) -> dict[Path, str]:
    """The files that each package has."""
    made = {place.folder / name: _fill(f"{kind}/{name}", blanks) for name in ("pyproject.toml", "README.md")}
    made |= {place.code / name: _fill(f"{kind}/{name}", blanks) for name in ("__init__.py", "plugin.py")}
    made[place.code / "py.typed"] = ""
    if place.inside:
        made[place.folder / "LICENSE"] = (place.root / "LICENSE").read_text(encoding="utf-8")
    else:
        made[place.folder / "pyproject.toml"] += RUFF
    return made


def _fill(template: str, blanks: Mapping[str, object]) -> str:
    source = files("liger").joinpath("templates", f"{template}.in").read_text(encoding="utf-8")
    return Template(source).substitute(blanks)


def _write(made: Mapping[Path, str]) -> None:
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise LigerError(f"{name!r} cannot be a name here: lower-case letters, digits and _, a letter first")
    return name


# -- Commands ----------------------------------------------------------------------------------------------------------
Root = Annotated[Path, typer.Option(help="Where to make it: a checkout of this repository, or any folder.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print every file and write none.")]


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="Name of the family, e.g. qwen.")],
    model_type: Annotated[str | None, typer.Option(help="config.model_type; by default the name.")] = None,
    root: Root = Path(),
    dry_run: DryRun = False,
) -> None:
    """A model package for a model type that the installed transformers knows."""
    _make(model_files(name, model_type or name, root), dry_run)


@app.command()
def kernel(
    family: Annotated[str, typer.Argument(help="Family of the op, e.g. norm: packages/kernels-norm.")],
    op: Annotated[str, typer.Argument(help="Name of the op, e.g. layer_norm.")],
    tier: Annotated[Tier, typer.Option(help="Which template to start from.")] = Tier.elementwise,
    root: Root = Path(),
    dry_run: DryRun = False,
) -> None:
    """An op with its reference, a Triton kernel and tests."""
    _make(kernel_files(family, op, tier, root), dry_run)


def _make(made: Mapping[Path, str], dry_run: bool) -> None:
    if dry_run:
        for path, text in made.items():
            typer.echo(f"--- {path}\n{text}")
        typer.echo(f"{len(made)} files, none written")
        return
    _write(made)
    for path in sorted(made):
        typer.echo(path)
    typer.echo("it passes its tests as it is: run them, then replace what is there by yours, step by step")
