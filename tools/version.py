"""One version for every package: `version.py set 0.2.0` writes it everywhere, `version.py check` fails if any differs.

The version and the pins between our packages are static text in each pyproject.toml, because every build tool reads
static text; computed metadata breaks some of them. This script is what keeps the text in step.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from repo import ROOT, Package, name_of, packages

VERSION_LINE = re.compile(r'(?m)^version = "[^"]*"$')
INIT_LINE = re.compile(r'(?m)^__version__ = "[^"]*"$')
STATED = ("liger-core", "liger-compat")  # their modules have to state it
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def problems(found: dict[str, Package]) -> list[str]:
    """Everything that is out of step, one sentence each."""
    version = found["liger-core"].version
    lines = []
    for package in found.values():
        file = (package.folder / "pyproject.toml").relative_to(ROOT)
        wanted = package.version_at(version)
        if package.version != wanted:
            lines.append(f"{file}: version is {package.version}, with liger-core at {version} it must be {wanted}")
        for requirement in package.requirements:
            name = name_of(requirement)
            if name in found and requirement.split(";")[0].strip() != (pin := pin_at(found[name], version)):
                lines.append(f"{file}: {requirement!r} must be {pin!r}")
        init = init_of(package)
        stated = INIT_LINE.findall(init.read_text(encoding="utf-8"))
        if stated != [f'__version__ = "{wanted}"'] and (stated or package.dist in STATED):
            lines.append(f"{init.relative_to(ROOT)}: __version__ is not {wanted}")
    return lines


def pin_at(package: Package, version: str) -> str:
    """The requirement of one of our packages on another."""
    return f"{package.dist}=={package.version_at(version)}"


def init_of(package: Package) -> Path:
    """The file that may state ``__version__``."""
    return package.source / package.module / "__init__.py"


def write(found: dict[str, Package], version: str) -> None:
    """Set the version of every package and every pin between them."""
    ours = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
    pins = re.compile(rf'"({ours})==[^"\s;]+')
    for package in found.values():
        file, init, own = package.folder / "pyproject.toml", init_of(package), package.version_at(version)
        text = VERSION_LINE.sub(f'version = "{own}"', file.read_text(encoding="utf-8"), count=1)
        text = pins.sub(lambda match: f'"{pin_at(found[match[1]], version)}', text)
        file.write_text(text, encoding="utf-8")
        text = init.read_text(encoding="utf-8")
        init.write_text(INIT_LINE.sub(f'__version__ = "{own}"', text), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the command; 0 if every package is in step."""
    match arguments:
        case ["set", version] if VERSION.fullmatch(version):
            write(packages(), version)
        case ["check"]:
            pass
        case _:
            print(f"{__doc__}\nusage: version.py check | version.py set X.Y.Z[a|b|rcN]", file=sys.stderr)
            return 2
    lines = problems(packages())
    print("\n".join(lines) or f"all packages are at {packages()['liger-core'].version}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
