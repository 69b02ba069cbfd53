"""One version for every package: `version.py set 0.2.0` writes it everywhere, `version.py check` fails if any differs.

The version and the pins between our packages are static text in each pyproject.toml, because every build tool reads
static text; computed metadata breaks some of them. This script is what keeps the text in step.
"""

from __future__ import annotations

import re
import sys

from repo import ROOT, Package, closure, name_of, packages

VERSION_LINE = re.compile(r'(?m)^version = "[^"]*"$')
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def problems(found: dict[str, Package]) -> list[str]:
    """Everything that is out of step, one sentence each."""
    version = found["liger-core"].version
    lines = []
    for package in found.values():
        file = (package.folder / "pyproject.toml").relative_to(ROOT)
        if package.version != version:
            lines.append(f"{file}: version is {package.version}, liger-core has {version}")
        for requirement in package.requirements:
            name = name_of(requirement)
            if name in found and requirement.split(";")[0].strip() != f"{name}=={version}":
                lines.append(f"{file}: {requirement!r} must be '{name}=={version}'")
    if "liger-all" in found:
        kinds = ("liger-kernels-", "liger-models-")
        lines += [
            f"packages/all/pyproject.toml: {dist} is missing, liger-all brings every kernel and model package"
            for dist in sorted(found.keys() - closure(found["liger-all"]).keys())
            if dist.startswith(kinds)
        ]
    return lines


def write(found: dict[str, Package], version: str) -> None:
    """Set the version of every package and every pin between them."""
    ours = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
    pins = re.compile(rf'"({ours})==[^"\s;]+')
    for package in found.values():
        file = package.folder / "pyproject.toml"
        text = VERSION_LINE.sub(f'version = "{version}"', file.read_text(encoding="utf-8"), count=1)
        file.write_text(pins.sub(rf'"\1=={version}', text), encoding="utf-8")


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
