"""Write the metadata that an installation would, so that plugins are found where nothing can be installed.

python tools/gpu_metadata.py FOLDER [DIST ...]     and put FOLDER and the sources, which it prints, on PYTHONPATH
"""

from __future__ import annotations

import sys
from pathlib import Path

from repo import Package, packages


def write(package: Package, folder: Path) -> None:
    """One ``*.dist-info`` with METADATA and entry_points.txt."""
    info = folder / f"{package.dist.replace('-', '_')}-{package.version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in package.dependencies)
    head = f"Metadata-Version: 2.1\nName: {package.dist}\nVersion: {package.version}\n"
    (info / "METADATA").write_text(head + needs, encoding="utf-8")
    groups = dict(package.toml["project"].get("entry-points", {}))
    groups["console_scripts"] = package.toml["project"].get("scripts", {})
    lines = [f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for g, entries in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def main(folder: Path, *dists: str) -> None:
    """Write it, and print the import path with it; without names of all but liger-compat, which would hide a peer."""
    every = packages()
    found = [every[dist] for dist in dists or [dist for dist in every if dist != "liger-compat"]]
    for package in found:
        write(package, folder)
    print(":".join(str(path) for path in (folder, *(package.source for package in found))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
