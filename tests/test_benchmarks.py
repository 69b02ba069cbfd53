"""The benchmarks run, verify and report; in toy sizes, in triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liger.registry import registry

RUN = Path(__file__).resolve().parent.parent / "benchmarks" / "run.py"
BROKEN = """
import sys
sys.path.insert(0, {folder!r})
sys.argv = ["run.py", "--smoke", "--ops", "silu_mul", "--providers", "ours"]
import run
from liger_kernels_act import _gated_triton as act
right = act.silu_mul_triton
act.silu_mul_triton = lambda gate, up: right(gate, up) * 1.05
sys.exit(run.main(sys.argv[1:]))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "LIGER_SHA": "abc"}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=False)


def test_every_triton_kernel_is_verified_and_timed_beside_its_peers(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = python(str(RUN), "--smoke", "--out", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert not [r for r in rows if r["direction"] == "verify"]
    for kernel in (k for op in registry().ops for k in registry().kernels(op) if k.needs.interpreter):
        mine = [r for r in rows if r["kernel"] == kernel.id and r["direction"] != "host"]
        assert mine and all(r["p20"] <= r["p50"] <= r["p80"] and r["bytes"] > 0 and r["gbps"] > 0 for r in mine)
        for r in mine:
            beside = {o["provider"] for o in rows if (o["op"], o["direction"]) == (r["op"], r["direction"])}
            assert {"ours", "eager", "torch.compile", r["limit"]} <= beside
    assert {r["op"] for r in rows if r["direction"] == "host"} >= {"rms_norm", "silu_mul", "rope"}
    assert all(r["sha"] == "abc" and r["versions"]["torch"] and r["device"] for r in rows)
    assert "F.rms_norm" in {r["provider"] for r in rows}
    assert "ours ms" in done.stdout and "rms_norm" in done.stdout


def test_a_wrong_kernel_is_not_timed() -> None:
    pytest.importorskip("triton")
    done = python("-c", BROKEN.format(folder=str(RUN.parent)))
    assert done.returncode == 1, done.stderr
    assert "silu_mul" in done.stdout and "ours:" in done.stdout
