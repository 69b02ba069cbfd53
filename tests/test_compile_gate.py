"""The compile gate bites: a kernel that spills is found. The gate itself runs as ``python tools/compile_gate.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPILLS = """
import sys
sys.path.insert(0, {tools!r})
import compile_gate, torch
from liger_kernels_norm import _rms_norm_triton as norm

x, w = torch.empty(8, 32768, device="meta"), torch.empty(32768, device="meta")
with compile_gate.dry_launches("sm90") as launches:
    for warps in (4, 32):
        sizes = {{"H": 32768, "BLOCK": 32768, "ROWS": 1, "CAST": 0}}
        norm.launch(norm._forward, (8,), (x, w, x, x[:, 0]), (8, 1e-6, 0.0), num_warps=warps, **sizes)
print([bool(launch.faults()) for launch in launches.values()])
"""


def test_a_kernel_that_spills_is_found() -> None:
    pytest.importorskip("triton")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = SPILLS.format(tools=str(ROOT / "tools"))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[True, False]", done.stdout + done.stderr
