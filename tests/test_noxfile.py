"""What the noxfile says before and after everything else."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

nox = pytest.importorskip("nox")
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


def test_times_are_printed_for_every_session_failed_ones_too(capsys):
    noxfile = run_path(NOXFILE)
    sessions = nox.registry.get()
    assert {"lint", "tests", "oldest"} <= sessions.keys()
    assert all(session.func.__wrapped__ for session in sessions.values())
    noxfile["print_times"]()
    assert capsys.readouterr().err == ""  # `nox -l` runs none

    def fails(session):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        noxfile["timed"](fails)(SimpleNamespace(name="tests(core)"))
    noxfile["print_times"]()
    noxfile["TIMES"].clear()  # or they would be printed when pytest ends
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1:] for line in lines] == [["s", "tests(core)"], ["s", "total"]]
    assert float(lines[0].split()[0]) < 60
