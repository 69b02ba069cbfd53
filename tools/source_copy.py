"""The sources in a folder of their own, into which `tools/mutants.py` plants faults."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_metadata
from repo import ROOT, packages

if TYPE_CHECKING:
    from mutants import Mutation


class Copy:
    """The sources in a folder of their own, with at most one fault in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in ("packages", "tools"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for package in packages().values():
            gpu_metadata.write(package, folder / "metadata")

    @contextmanager
    def planted(self, mutation: Mutation) -> Iterator[None]:
        """Put the fault in for the length of the block."""
        file = self.folder / mutation.path
        right = file.read_text(encoding="utf-8")
        self._write(file, mutation.applied(right))
        try:
            yield
        finally:
            self._write(file, right)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.write_text(text, encoding="utf-8")
        # Python takes bytecode for current if size and second of the source agree
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def environment(self, interpret: bool, gpu: bool) -> dict[str, str]:
        """Of a gate that imports our packages from here."""
        sources = [p.source.relative_to(ROOT) for p in packages().values()]
        path = [str(self.folder / p) for p in (Path("metadata"), *sources)]
        kept = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "LIGER_TEST_SEED")}
        path += [kept["PYTHONPATH"]] if "PYTHONPATH" in kept else []
        fixed = {"OMP_NUM_THREADS": "1", "TRITON_DEFAULT_FP_FUSION": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "300"}
        device = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
        device |= {"TRITON_INTERPRET": "1"} if interpret else {}
        return {**kept, **fixed, **device, "PYTHONPATH": os.pathsep.join(path)}
