"""Rows of a run: what each holds, which must be there, and the files they are kept in.

A row has op, kernel (ours alone), provider, case, sizes, variable, mode, status. One that is "timed" has p20, p50, p80
in ms of the repetitions, repetitions, method, bytes, gbps, limit, share (% of the limit: a copy of the same bytes, or
cuBLAS, in the same repetitions), flops, tflops, peak_mib above the inputs; in mode "full" also host_us and
host_above_us (above an autograd.Function that does nothing), measured on toy sizes. Each has sha, versions, device.
Other statuses have a problem, and mode None if it holds for all modes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from liger._known import OPS
from liger.bench import MODES
from liger.bench.options import Options
from liger.bench.plan import Point
from liger.bench.providers import Provider, providers
from liger.registry import registry

Row = dict[str, Any]
Key = tuple[str, str, str, str]
FORMAT = 1
ALWAYS = ("op", "kernel", "provider", "case", "mode", "status", "sha", "versions", "device")  # what each row has
TIMED = ("p50", "peak_mib", "limit")
EVERYONE = "all"  # provider of a row that explains a whole case
EXCUSED = ("wrong", "failed", "capped")  # of whoever is not ours; their reasons stand in the table


def key(row: Mapping[str, Any]) -> Key:
    """What a row is about: op, case, mode, provider."""
    return row["op"], row["case"], row["mode"], row["provider"]


def timed(rows: Iterable[Row]) -> list[Row]:
    """The rows with times, those of the limits left out."""
    return [r for r in rows if r["status"] == "timed" and r["provider"] != r["limit"]]


def expected(points: Iterable[Point], options: Options) -> dict[Key, Provider]:
    """The rows there must be: each installed provider, in each mode in which it compares."""
    out = {}
    for point in points:
        for provider in providers(point, options):
            for mode in point.moved:
                if mode in provider.modes:
                    out[point.op.name, point.case, mode, provider.name] = provider
    return out


def unserved(wanted: Iterable[Key], options: Options) -> list[str]:
    """The ops, modes and providers that were named by hand and will have no row."""
    keys = list(wanted)
    named = {
        "op": (options.ops, {op for op, _, _, _ in keys}),
        "mode": (() if options.modes == MODES else options.modes, {mode for _, _, mode, _ in keys}),
        "provider": (options.providers, {provider.partition("/")[0] for _, _, _, provider in keys}),
    }
    return [f"{kind} {name}" for kind, (names, served) in named.items() for name in names if name not in served]


def failures(rows: Sequence[Row], wanted: Mapping[Key, Provider]) -> list[str]:
    """Why a run has failed, one line each; nothing if it has not."""
    if not wanted:
        return ["nothing to time: none of the chosen providers is installed and serves the chosen modes"]
    found = {key(r) for r in timed(rows)}
    out = [_reason(k, provider, rows) for k, provider in wanted.items() if k not in found]
    for op, case in dict.fromkeys(k[:2] for k in wanted):
        if not any(k[:2] == (op, case) for k in found) and not _excuse(rows, op, case, None, EVERYONE):
            out.append(f"{op} {case}: no provider was verified")
    for kernel in {p.kernel.id for p in wanted.values() if p.kernel} - {r["kernel"] for r in timed(rows)}:
        out.append(f"{kernel}: not timed at all")
    return [line for line in dict.fromkeys(out) if line]


def _reason(wanted: Key, provider: Provider, rows: Sequence[Row]) -> str:
    """Why a row that is not there makes the run fail, or "" if another row explains it."""
    op, case, mode, name = wanted
    row = _excuse(rows, op, case, mode, name)
    if row is None:
        return f"{op} {case} {mode}: no row of {name}"
    if row["status"] == "capped" or (row["status"] in EXCUSED and provider.kernel is None):
        return ""
    if row["status"] == "no time" and provider.compiled and row["provider"] == name:
        return ""
    return f"{op} {case}: {name}: {row['problem']}"


def _excuse(rows: Sequence[Row], op: str, case: str, mode: str | None, provider: str) -> Row | None:
    for r in rows:
        about = (r["op"], r["case"]) == (op, case) and r["provider"] in (provider, EVERYONE)
        if about and r["status"] != "timed" and r["mode"] in (None, mode):
            return r
    return None


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One file per op in these rows, overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for op in dict.fromkeys(r["op"] for r in rows):
        files.append(folder / f"{op}.json")
        data = {"format": FORMAT, "rows": [r for r in rows if r["op"] == op]}
        files[-1].write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return files


def read(path: Path) -> list[Row]:
    """The rows of a file, or of every result in a folder.

    Raises:
        ValueError: there is no such file, it or one named after an op is no result, or a row is damaged or there twice.
    """
    if path.is_dir():
        ops = OPS.keys() | registry().ops.keys()
        found = {f: _rows(f, needed=f.stem in ops) for f in sorted(path.glob("*.json"))}  # others may lie there too
    elif path.is_file():
        found = {path: _rows(path, needed=True)}
    else:
        raise ValueError(f"{path} does not exist; expected a result of `liger bench` or a folder of them")
    for file, rows in found.items():
        for row in rows:
            if problem := _problem(row):
                raise ValueError(f"{file}: {problem}: {str(row)[:200]}")
    out = [row for rows in found.values() for row in rows]
    if twice := [k for k, count in Counter(map(key, timed(out))).items() if count > 1]:
        raise ValueError(f"{path} has two rows of {' '.join(twice[0])}")
    return out


def _rows(file: Path, needed: bool) -> list[Any]:
    """What a file has as rows; nothing if it is no result and none is needed."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        data = None
    rows = data.get("rows") if isinstance(data, dict) and data.get("format") == FORMAT else None
    if isinstance(rows, list):
        return rows
    if needed:
        raise ValueError(f"{file} is no result of `liger bench` in format {FORMAT}: measure again, or delete it")
    return []


def _problem(row: Any) -> str:
    """What is wrong with a row, or ""."""
    if not isinstance(row, dict):
        return "a row is no table"
    lacking = [name for name in (*ALWAYS, *(TIMED if row.get("status") == "timed" else ())) if name not in row]
    if lacking:
        return f"a row lacks {', '.join(lacking)}"
    if row["status"] != "timed":
        return ""
    time, peak = row["p50"], row["peak_mib"]
    if not (_number(time) and time > 0):
        return f"p50 is {time}, expected a positive number of ms"
    return "" if peak is None or (_number(peak) and peak >= 0) else f"peak_mib is {peak}, expected a number or null"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
