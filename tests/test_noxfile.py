"""What the noxfile says before anything else."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path
from runpy import run_path

import pytest

pytest.importorskip("nox")
NOXFILE = str(Path(__file__).parent.parent / "noxfile.py")
Usage = namedtuple("Usage", "total used free")


def test_little_disk(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1.5e9))
    with pytest.raises(SystemExit, match=r"1.5 GB are free .* are needed: free some"):
        run_path(NOXFILE)


def test_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match="needs Python >= 3.11"):
        run_path(NOXFILE)
