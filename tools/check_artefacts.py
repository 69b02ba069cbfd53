"""Fail unless a folder holds exactly one sdist and one complete wheel of every package."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

from repo import Package, packages


def missing(package: Package, out: Path) -> list[str]:
    """What the built wheel and sdist of one package lack."""
    stem = f"{package.dist.replace('-', '_')}-{package.version}"
    wheel, sdist = out / f"{stem}-py3-none-any.whl", out / f"{stem}.tar.gz"
    if absent := [file.name for file in (wheel, sdist) if not file.exists()]:
        return [f"{name} was not built" for name in absent]
    root = package.source / package.module
    files = {f for f in root.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    modules = {f.relative_to(package.source).as_posix() for f in files}
    wanted = modules | {f"{package.module}/py.typed", f"{stem}.dist-info/licenses/LICENSE"}
    with zipfile.ZipFile(wheel) as archive:
        lacks = [f"{wheel.name} lacks {name}" for name in sorted(wanted - set(archive.namelist()))]
    with tarfile.open(sdist) as archive:
        inside = set(archive.getnames())
    wanted = {f"{stem}/{name}" for name in ("pyproject.toml", "README.md", "LICENSE")}
    return lacks + [f"{sdist.name} lacks {name}" for name in sorted(wanted - inside)]


def main(out: Path) -> int:
    """Print what is missing; 0 if nothing is."""
    found = packages()
    lines = [line for package in found.values() for line in missing(package, out)]
    extra = len(list(out.iterdir())) - 2 * len(found)
    lines += [f"{extra} files too many in {out}"] if extra > 0 else []
    print("\n".join(lines) or f"{len(found)} wheels and {len(found)} sdists are complete")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
