"""What the packages of this repository say about themselves. Found by glob: no file holds a list of packages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Package:
    """One distribution: a folder with a pyproject.toml under packages/."""

    folder: Path

    @cached_property
    def toml(self) -> dict[str, Any]:
        """The parsed pyproject.toml."""
        return tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def dist(self) -> str:
        """Name of the distribution: `liger-models-gemma`."""
        return str(self.toml["project"]["name"])

    @property
    def version(self) -> str:
        """Version, the same in every package, after the prefix of the one that has one."""
        return str(self.toml["project"]["version"])

    def version_at(self, version: str) -> str:
        """Its version where the others are at ``version``: liger-compat's begins with the interface it answers."""
        prefix = self.settings.get("version-prefix")
        return f"{prefix}.{version}" if prefix else version

    @property
    def pin(self) -> str:
        """Requirement that only our own build of this package satisfies."""
        return f"{self.dist}=={self.version}"

    @property
    def label(self) -> str:
        """Name of the folder below packages/, of the entry point and of the test session: `models-gemma`."""
        return "-".join(self.folder.relative_to(ROOT / "packages").parts)

    @property
    def module(self) -> str:
        """Name to import: `liger_models_gemma`."""
        (source,) = self.toml["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        return Path(source).name

    @property
    def source(self) -> Path:
        """Folder to put on the import path."""
        return self.folder / "src"

    @property
    def tests(self) -> Path | None:
        """Folder of tests, if this package has any (`[tool.liger] test = true`)."""
        return self.folder / "tests" if self.settings.get("test") else None

    @property
    def settings(self) -> dict[str, Any]:
        """The table `[tool.liger]`."""
        return dict(self.toml["tool"].get("liger", {}))

    @property
    def dependencies(self) -> list[str]:
        """What an ordinary installation needs."""
        return list(self.toml["project"].get("dependencies", []))

    @property
    def requirements(self) -> list[str]:
        """Every requirement, those of all extras included."""
        extras = self.toml["project"].get("optional-dependencies", {})
        return [*self.dependencies, *(line for lines in extras.values() for line in lines)]


def packages() -> dict[str, Package]:
    """Every package of the repository by name of its distribution, in order of name."""
    found = (Package(file.parent) for file in (ROOT / "packages").glob("**/pyproject.toml"))
    return dict(sorted((package.dist, package) for package in found))


def name_of(requirement: str) -> str:
    """`torch` of `torch>=2.11,<3`."""
    match = NAME.match(requirement)
    assert match, requirement
    return match[0]


def closure(package: Package) -> dict[str, Package]:
    """The package and what it declares of this repository, transitively."""
    known, todo, seen = packages(), [package.dist], dict[str, Package]()
    while todo:
        dist = todo.pop()
        if dist in known and dist not in seen:
            seen[dist] = known[dist]
            todo += [name_of(requirement) for requirement in known[dist].dependencies]
    return dict(sorted(seen.items()))


def external(of: Iterable[Package]) -> Iterator[str]:
    """Requirements of these packages on anything that is not from this repository, each once."""
    known = packages()
    lines = {line for package in of for line in package.requirements}
    return iter(sorted(line for line in lines if name_of(line) not in known))


def root_settings() -> dict[str, Any]:
    """The table `[tool.liger]` of the root pyproject.toml: what the combined suite needs."""
    toml = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(toml["tool"]["liger"])
