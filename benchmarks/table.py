"""The rows of a run as a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
ORDER = ("forward", "backward", "both")
HEADS = ("op", "shape", "ours ms", "best other", "ratio", "% of limit", "peak MiB", "host us")


def table(rows: Sequence[Row]) -> str:
    """One line per op and shape; forward / backward / both in each cell. A ratio below 1 means that ours is faster."""
    host = {r["op"]: r for r in rows if r["direction"] == "host" and r["provider"] == "ours"}
    lines: list[tuple[str, ...]] = [HEADS]
    shown = set()
    for op, case in dict.fromkeys((r["op"], r["case"]) for r in rows if r["direction"] in ORDER):
        mine = [r for r in rows if (r["op"], r["case"]) == (op, case)]
        us = "" if op in shown or op not in host else f"+{host[op]['above_empty_us']:.0f}"
        lines.append((*_line(op, case, mine), us))
        shown.add(op)
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
    body = "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    problems = [f"{r['op']} {r['case']}: {r['provider']}: {r['problem']}" for r in rows if r.get("problem")]
    legend = "Cells are forward / backward / both, or both alone. The limit is a copy of the same bytes, or cuBLAS."
    return "\n".join([body, legend, *problems])


def _line(op: str, case: str, rows: Sequence[Row]) -> tuple[str, ...]:
    ours, best, ratios, shares, peaks = [], [], [], [], []
    for direction in ORDER:
        timed = {r["provider"]: r for r in rows if r["direction"] == direction and r["provider"] != r["limit"]}
        mine = timed.pop("ours", None)
        if mine is None:
            continue
        ours.append(_ms(mine["p50"]))
        shares.append(f"{mine['share']:.0f}")
        peaks.append("-" if mine["peak_mib"] is None else f"{mine['peak_mib']:.0f}")
        if not timed:
            best.append("-")
            ratios.append("-")
            continue
        other = min(timed.values(), key=lambda r: r["p50"])
        best.append(f"{_ms(other['p50'])} {other['provider']}")
        ratios.append(f"{mine['p50'] / other['p50']:.2f}")
    return (op, case, *(" / ".join(cells) for cells in (ours, best, ratios, shares, peaks)))


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
