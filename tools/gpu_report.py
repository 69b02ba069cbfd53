"""Sum up a run of tools/gpu.sh: python tools/gpu_report.py WORK OUT writes OUT/gpu.json and prints a table."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

NAMES = ("torch", "triton", "transformers", "accelerate", "peft", "pytest", "liger-core", "liger-kernel")
TIMED_OUT = (124, 137)
NOTHING = 5
LEFT_OUT = "left out"
ROOT = re.escape(str(Path(__file__).resolve().parent.parent))
FOLDERS = re.compile(rf"{ROOT}/|[\w./-]*site-packages/")  # of one machine; messages may begin in the middle of one
STATUS: dict[int | str, str] = {  # of pytest
    LEFT_OUT: LEFT_OUT,
    "": "died",
    0: "passed",
    NOTHING: "nothing ran",
    **dict.fromkeys(TIMED_OUT, "timed out"),
}


def counts(xml: Path) -> dict[str, Any]:
    """Numbers of tests in a JUnit file, and what failed."""
    out: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "failures": []}
    if not xml.is_file():
        return out
    root = ElementTree.parse(xml).getroot()
    for suite in root.iter("testsuite"):
        number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        out["failed"] += failed
        out["skipped"] += number["skipped"]
        out["passed"] += number["tests"] - failed - number["skipped"]
        out["seconds"] += float(suite.get("time", 0))
    for case in root.iter("testcase"):
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            message = FOLDERS.sub("", bad.get("message", ""))[:300]
            out["failures"].append({"test": f"{case.get('name')}", "message": message})
    return out


def unfinished(log: Path) -> dict[str, int]:
    """Roughly how far a suite came that ran out of time: pytest -q prints one character per test."""
    text = "".join(re.findall(r"^([.FEsxX]+)(?: *\[ *\d+%\])?$", log.read_text(errors="replace"), re.MULTILINE))
    return {"passed": text.count("."), "failed": text.count("F") + text.count("E"), "skipped": text.count("s")}


def code(rc: Path) -> int | str:
    """The exit status that a suite wrote, "left out", or "" if it died before it could write any."""
    text = rc.read_text(encoding="utf-8").strip() if rc.is_file() else ""
    return text if text in (LEFT_OUT, "") else int(text)


def suites(work: Path) -> dict[str, dict[str, Any]]:
    """Each suite's counts and status: passed, failed, timed out, nothing ran, died, or left out."""
    out = {}
    for log in sorted(work.glob("*.log")):
        ended, found = code(log.with_suffix(".rc")), counts(log.with_suffix(".xml"))
        if ended in TIMED_OUT:
            found |= unfinished(log)
        if ended == 0 and not found["passed"]:  # all skipped is not passed
            ended = NOTHING
        out[log.stem] = {"status": STATUS.get(ended, f"failed ({ended})"), **found}
    return out


def machine() -> dict[str, Any]:
    """Device and versions."""
    import torch

    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in NAMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {"sha": os.environ.get("LIGER_SHA") or "unknown", "device": device, "versions": versions}


def main(work: Path, out: Path) -> int:
    """Write gpu.json, print a table, return the exit status."""
    found = suites(work)
    bench = code(work / "bench.rc")
    report = {**machine(), "suites": found, "bench_status": bench}
    (out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['device']}, commit {report['sha'][:12]}, {report['versions']}")
    if bench != LEFT_OUT and (out / "bench.log").is_file():
        log = (out / "bench.log").read_text(encoding="utf-8", errors="replace")
        print(log[log.find("op  ") :].rstrip() if "ours ms" in log else log[-3000:])
    print(f"\n{'suite':24}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}  status")
    for name, s in found.items():
        print(f"{name:24}{s['passed']:8}{s['failed']:8}{s['skipped']:8}{s['seconds']:9.0f}  {s['status']}")
        for failure in s["failures"][:4]:
            print(f"    {failure['test'][:80]}: {failure['message'].partition(chr(10))[0][:120]}")
    print(f"{'bench':57}  {STATUS.get(bench, f'failed ({bench})')}")
    return int(bench not in (0, LEFT_OUT) or any(s["status"] not in ("passed", LEFT_OUT) for s in found.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
