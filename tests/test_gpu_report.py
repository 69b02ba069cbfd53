"""What tools/gpu.sh makes of its suites, shown with synthetic results of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from gpu_report import main  # noqa: E402  (tools/ is no package)


def suite(work: Path, name: str, code: int | str, passed: int = 0, failed: int = 0, skipped: int = 0) -> None:
    """The files that a suite leaves behind."""
    (work / f"{name}.log").write_text("..s\n")
    if code != "":
        (work / f"{name}.rc").write_text(f"{code}\n")
    if not isinstance(code, int):
        return
    bad = '<testcase name="t"><failure message="off by 1"/></testcase>' * failed
    numbers = f'tests="{passed + failed + skipped}" failures="{failed}" errors="0" skipped="{skipped}" time="1.5"'
    (work / f"{name}.xml").write_text(f"<testsuites><testsuite {numbers}>{bad}</testsuite></testsuites>")


def test_messages_name_no_folder_of_the_machine(tmp_path):
    suite(tmp_path, "norm", 1, failed=1)
    seen = f'File "{ROOT}/tests/a.py", File "/opt/env/lib/python3/site-packages/b.py", v/site-packages/c.py'
    xml = tmp_path / "norm.xml"
    xml.write_text(xml.read_text().replace("off by 1", seen.replace('"', "&quot;")))
    assert report(tmp_path)[0] == 1
    (failure,) = json.loads((tmp_path / "out" / "gpu.json").read_text())["suites"]["norm"]["failures"]
    assert failure["message"] == 'File "tests/a.py", File "b.py", c.py'


def report(tmp_path: Path, bench: int | str = 0) -> tuple[int, dict[str, str]]:
    """Exit status, and status by suite."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "bench.log").write_text("op  ours ms\n")
    if bench != "":
        (tmp_path / "bench.rc").write_text(str(bench))
    code = main(tmp_path, out)
    found = json.loads((out / "gpu.json").read_text())["suites"]
    return code, {name: s["status"] for name, s in found.items()}


def test_passed_and_left_out_are_well(tmp_path):
    suite(tmp_path, "norm", 0, passed=3, skipped=1)
    suite(tmp_path, "wrappers", "left out")
    assert report(tmp_path) == (0, {"norm": "passed", "wrappers": "left out"})


@pytest.mark.parametrize(
    "code, counts, expected",
    [
        (0, {"skipped": 4}, "nothing ran"),
        (5, {}, "nothing ran"),
        (1, {"passed": 3, "failed": 1}, "failed (1)"),
        (124, {}, "timed out"),
        ("", {}, "died"),
    ],
)
def test_anything_else_fails(tmp_path, capsys, code, counts, expected):
    suite(tmp_path, "norm", 0, passed=3)
    suite(tmp_path, "act", code, **counts)
    assert report(tmp_path) == (1, {"norm": "passed", "act": expected})
    table = capsys.readouterr().out
    assert expected in table
    assert ("off by 1" in table) == bool(counts.get("failed"))


@pytest.mark.parametrize("bench, code", [(1, 1), (124, 1), ("", 1), ("left out", 0)])
def test_benchmarks_count_where_they_ran(tmp_path, bench, code):
    suite(tmp_path, "norm", 0, passed=3)
    assert report(tmp_path, bench)[0] == code


def test_only_some_tests_of_the_kernels(tmp_path):
    python = tmp_path / "python"  # one without xdist, whose workers would each import torch
    python.write_text(f'#!/bin/sh\n[ "$2" = "import xdist" ] && exit 1\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "LIGER_ONLY": "no_test_has_this_name", "PYTHON": str(python)}
    command = ["bash", str(ROOT / "tools" / "gpu.sh"), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    suites = json.loads((tmp_path / "gpu.json").read_text())["suites"]
    assert done.returncode == 1
    assert suites
    assert {name.partition("-")[0] for name in suites} == {"kernels"}
    assert {s["status"] for s in suites.values()} == {"nothing ran"}
    assert not (tmp_path / "bench.log").exists()


def test_an_unknown_group_of_tests_is_named_before_any_starts(tmp_path):
    env = {**os.environ, "LIGER_GROUPS": "kernels modles", "PYTHON": "false"}
    command = ["bash", str(ROOT / "tools" / "gpu.sh"), str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "LIGER_GROUPS has modles, expected some of: kernels models" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [None, "5"])
def test_suites_are_shared_out(tmp_path, workers):
    python, asked = tmp_path / "python", tmp_path / "asked"
    found = f'case "$*" in *"import xdist") exit 0 ;; *"-m pytest"*) echo "$*" >>{asked} && exit 5 ;; esac'
    python.write_text(f'#!/bin/sh\n{found}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {
        **os.environ,
        "LIGER_ONLY": "anything",
        "PYTHON": str(python),
        **({"LIGER_WORKERS": workers} if workers else {}),
    }
    subprocess.run(
        ["bash", str(ROOT / "tools" / "gpu.sh"), str(tmp_path / "out")], env=env, capture_output=True, check=False
    )
    calls = asked.read_text().splitlines()
    assert calls and all(call.endswith(f"-n {workers or 3}") for call in calls)


@pytest.mark.parametrize("workers", ["0", "many", "-1"])
def test_no_number_of_processes_is_named_before_anything_starts(tmp_path, workers):
    env = {**os.environ, "LIGER_WORKERS": workers, "PYTHON": "false"}
    command = ["bash", str(ROOT / "tools" / "gpu.sh"), str(tmp_path / "out")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"LIGER_WORKERS is {workers}, expected a number" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_arguments_it_says_all_that_it_takes():
    command = ["bash", str(ROOT / "tools" / "gpu.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout.rstrip().endswith("LIGER_SHA names the commit where git cannot.")


def test_what_would_hide_a_peer_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gpu_metadata

    gpu_metadata.main(tmp_path)
    written, on_path = {info.name.split("-")[0] for info in tmp_path.iterdir()}, capsys.readouterr().out
    assert "liger_core" in written and "packages/core/src" in on_path
    assert "liger_compat" not in written and "packages/compat" not in on_path
    gpu_metadata.main(tmp_path / "compat", "liger-compat")
    assert [info.name.split("-")[0] for info in (tmp_path / "compat").iterdir()] == ["liger_compat"]
    assert capsys.readouterr().out.strip() == f"{tmp_path / 'compat'}:{ROOT / 'packages/compat/src'}"
