"""The two lists of what this repository holds, made from the plugins: `known.py write`, `known.py check`.

`liger/_known.py` lets a person who has only liger-core read which package to install; liger-all depends on every kernel
and model package. Nothing else lists packages, ops or models.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repo import ROOT, Package, packages

KNOWN = ROOT / "packages" / "core" / "src" / "liger" / "_known.py"
EVERYTHING = "liger-all"
PARTS = ("core", "hf", "kernels-", "models-", "integrations-")  # not compat: its import name is another project's
DEPENDENCIES = re.compile(r"(?ms)^dependencies = \[\n.*?^\]\n")


def declared(package: Package, hook: str) -> Sequence[Any]:
    """What a package's plugin returns from a hook."""
    if not (package.source / package.module / "plugin.py").is_file():
        return ()
    plugin = importlib.import_module(f"{package.module}.plugin")
    found: Sequence[Any] = getattr(plugin, hook, tuple)()
    return found


def index(found: dict[str, Package]) -> str:
    """The text of `_known.py`."""
    from liger import Op

    ops: dict[str, str] = {}
    models: dict[str, str] = {}
    for dist, package in found.items():
        ops |= {op.name: dist for op in declared(package, "liger_register_ops") if isinstance(op, Op)}
        models |= {patch.model_type: dist for patch in declared(package, "liger_register_models")}
    head = KNOWN.read_text(encoding="utf-8").partition("OPS: ")[0]
    return head + "\n".join((table("OPS", ops), table("MODELS", models)))


def table(name: str, owners: dict[str, str]) -> str:
    """A dictionary as source text, sorted."""
    lines = "".join(f'    "{key}": "{owners[key]}",\n' for key in sorted(owners))
    return f"{name}: dict[str, str] = {{\n{lines}}}\n"


def everything(found: dict[str, Package]) -> str:
    """The text of liger-all's pyproject.toml."""
    text = (found[EVERYTHING].folder / "pyproject.toml").read_text(encoding="utf-8")
    pins = "".join(f'    "{package.pin}",\n' for package in found.values() if package.label.startswith(PARTS))
    return DEPENDENCIES.sub(lambda _: f"dependencies = [\n{pins}]\n", text)


def wanted() -> dict[Path, str]:
    """Each of the two files with the text that it should have."""
    found = packages()
    sys.path[:0] = [str(package.source) for package in found.values()]
    return {KNOWN: index(found), found[EVERYTHING].folder / "pyproject.toml": everything(found)}


def main(arguments: list[str]) -> int:
    """Run the command; 0 if the lists are in step."""
    if arguments not in (["write"], ["check"]):
        print(f"{__doc__}\nusage: known.py write | known.py check", file=sys.stderr)
        return 2
    stale = {file: text for file, text in wanted().items() if file.read_text(encoding="utf-8") != text}
    for file, text in stale.items():
        if arguments == ["write"]:
            file.write_text(text, encoding="utf-8")
        print(f"{file.relative_to(ROOT)} {'written' if arguments == ['write'] else 'is out of step'}")
    if arguments == ["write"] or not stale:
        return 0
    print("run: python tools/known.py write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
