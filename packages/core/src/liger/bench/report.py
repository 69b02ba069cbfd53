"""The rows of a run as a table to read, and what is much worse than it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console
from rich.table import Table

from liger.bench.rows import Row, timed
from liger.bench.stats import Ratio, ratio

HEADS = (
    *("op", "case", "mode", "ours ms", "speedup", "best other", "ours / best", "% of limit"),
    *("peak MiB", "saving", "host us"),
)
LEGEND = """\
speedup: eager's time over ours. best other: the fastest of the others; ours / best with its 95 % interval, below 1 if
ours is faster, "=" within 2 %. limit: a copy of the same bytes, or cuBLAS (c), in the same repetitions; above 100 % a
cache held a part. peak: above the inputs; saving: eager's peak over ours. host us: above an autograd.Function that does
nothing."""
SLOWER, SHARE, SAME, MORE = 1.05, 85.0, 0.02, 1.0  # ratio, %, part, MiB


@dataclass(frozen=True)
class Line:
    """Our row of one op, case and mode, with its company."""

    ours: Row
    others: tuple[Row, ...]

    @cached_property
    def eager(self) -> Row | None:
        """The row of the reference."""
        return next((r for r in self.others if r["provider"] == "eager"), None)

    @cached_property
    def best(self) -> Row | None:
        """The fastest of the others."""
        return min(self.others, key=lambda r: r["p50"], default=None)

    @cached_property
    def ratio(self) -> Ratio | None:
        """Our time over the best other's."""
        return ratio(self.ours["repetitions"], self.best["repetitions"]) if self.best else None

    @property
    def name(self) -> str:
        """``R=16384 H=4096 backward``."""
        return f"{self.ours['case']} {self.ours['mode']}"

    @property
    def more_memory(self) -> float:
        """MiB above eager's peak; 0 where there is nothing to compare."""
        mine, theirs = self.ours["peak_mib"], self.eager and self.eager["peak_mib"]
        return 0.0 if mine is None or theirs is None else mine - theirs

    def cells(self) -> tuple[str, ...]:
        """One cell for each of HEADS."""
        mine, eager, best = self.ours, self.eager, self.best
        who = f"{mine['op']} ({mine['kernel']})" if "/" in mine["provider"] else mine["op"]
        same = " =" if self.ratio and self.ratio.within(SAME) else ""
        above, peak = mine.get("host_above_us"), mine["peak_mib"]
        factor = eager["peak_mib"] / peak if peak and eager and eager["peak_mib"] is not None else None
        saving = "-" if factor is None else f"{factor:.2f}" if factor < 100 else ">100"
        return (
            *(who, mine["case"], mine["mode"], _ms(mine["p50"])),
            f"{eager['p50'] / mine['p50']:.2f}" if eager else "-",
            f"{_ms(best['p50'])} {best['provider']}" if best else "-",
            f"{self.ratio}{same}" if self.ratio else "-",
            f"{mine['share']:.0f}{' c' if mine['limit'] == 'cuBLAS' else ''}",
            *("-" if peak is None else f"{peak:.0f}", saving),
            "" if above is None else f"+{above:.0f}",
        )


def lines(rows: Sequence[Row]) -> Iterator[Line]:
    """One line for each of our rows with times."""
    there = timed(rows)
    for mine in there:
        if mine["kernel"]:
            about = mine["op"], mine["case"], mine["mode"]
            beside = [r for r in there if (r["op"], r["case"], r["mode"]) == about and not r["kernel"]]
            yield Line(mine, tuple(beside))


def assessment(rows: Sequence[Row]) -> list[str]:
    """One sentence per op: what is much worse than it should be."""
    found: dict[str, list[Line]] = {}
    for line in lines(rows):
        found.setdefault(line.ours["op"], []).append(line)
    return [f"{op}: {'; '.join(worse(mine)) or 'nothing is much worse'}." for op, mine in found.items()]


def worse(mine: Sequence[Line]) -> Iterator[str]:
    """What is much worse in the rows of one op, in words, each with its worst case."""
    slow = [(line.ratio.value, line) for line in mine if line.ratio and line.ratio.value > SLOWER]
    if slow:
        value, at = max(slow, key=lambda pair: pair[0])
        who = at.best["provider"] if at.best else ""
        yield f"slower than the best other in {len(slow)} of {len(mine)} rows, at worst {value:.2f}x {who} at {at.name}"
    low = [(line.ours["share"], line) for line in mine if line.ours["share"] < SHARE]
    if low:
        value, at = min(low, key=lambda pair: pair[0])
        yield f"under {SHARE:.0f} % of the limit in {len(low)} of {len(mine)} rows, at worst {value:.0f} % at {at.name}"
    large = [(line.more_memory, line) for line in mine if line.more_memory > MORE]
    if large:
        value, at = max(large, key=lambda pair: pair[0])
        yield f"more memory than eager in {len(large)} of {len(mine)} rows, at worst {value:.0f} MiB more at {at.name}"


def left_out(rows: Sequence[Row]) -> list[str]:
    """What was not timed, and why."""
    return [
        f"{r['op']} {r['case']}{' ' + r['mode'] if r['mode'] else ''}: {r['provider']}: {r['status']}: {r['problem']}"
        for r in rows
        if r["status"] != "timed"
    ]


def table(rows: Sequence[Row]) -> str:
    """Aligned text, for a terminal."""
    cells = [HEADS, *(line.cells() for line in lines(rows))]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADS))]
    body = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*body, LEGEND, "", *assessment(rows), *(["", *left_out(rows)] if left_out(rows) else [])])


def markdown(rows: Sequence[Row]) -> str:
    """The same as markdown, with device, commits and versions."""
    device = ", ".join(sorted({r["device"] for r in rows}))
    commits = ", ".join(f"{sha[:12]} ({', '.join(ops)})" for sha, ops in _by_sha(rows).items())
    versions = sorted({f"{name} {version}" for r in rows for name, version in r["versions"].items() if version})
    cells = [HEADS, tuple("---" for _ in HEADS), *(line.cells() for line in lines(rows))]
    parts = [f"# {device}", f"Commit {commits}. {', '.join(versions)}. bf16.", LEGEND]
    parts += ["\n".join(f"| {' | '.join(line)} |" for line in cells)]
    parts += ["## Assessment", "\n".join(f"- {line}" for line in assessment(rows))]
    if left_out(rows):
        parts += ["## Not timed", "\n".join(f"- {line}" for line in left_out(rows))]
    return "\n\n".join(parts) + "\n"


def show(made: Table) -> None:
    """Print a table; where there is no terminal, in lines long enough for any row."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(made, highlight=False)


def _by_sha(rows: Sequence[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for r in rows:
        ops = found.setdefault(r["sha"], [])
        if r["op"] not in ops:
            ops.append(r["op"])
    return found


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
