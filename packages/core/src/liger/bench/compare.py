"""The regression check: what became slower or larger between two results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from liger.bench.report import show
from liger.bench.rows import Key, Row, key, read, timed


@dataclass(frozen=True, slots=True)
class Change:
    """One of our rows in both results; ``new`` is None if it is missing."""

    key: Key
    old: Row
    new: Row | None

    def worse(self, percent: float) -> list[str]:
        """What is worse by more than ``percent``, time or memory, or is missing."""
        if self.new is None:
            return ["missing"]
        if self.old["peak_mib"] is not None and self.new["peak_mib"] is None:
            return ["memory is missing"]
        return [name for name, field in (("time", "p50"), ("memory", "peak_mib")) if (self.grown(field) or 0) > percent]

    def grown(self, field: str) -> float | None:
        """By how many percent; None if one of the two was not measured."""
        old, new = self.old[field], self.new[field] if self.new else None
        if old is None or new is None:
            return None
        if not old:
            return 100.0 if new else 0.0
        return float(100 * (new / old - 1))


def changes(old: Sequence[Row], new: Sequence[Row]) -> Iterator[Change]:
    """Each of our rows that was timed in ``old``."""
    there = {key(r): r for r in timed(new)}
    for r in timed(old):
        if r["kernel"]:
            yield Change(key(r), r, there.get(key(r)))


def others(old: Sequence[Row], new: Sequence[Row]) -> Iterator[str]:
    """A warning for each library that matters and is of another version."""
    for name in ("torch", "triton"):
        before, after = ({str(r["versions"].get(name)) for r in rows} for rows in (old, new))
        if before != after:
            yield f"warning: {name} {', '.join(sorted(before))} in OLD, {', '.join(sorted(after))} in NEW"


def table(found: Sequence[Change], percent: float) -> Table:
    """All of them, and at the end of a line what is worse."""
    out = Table("op", "case", "mode", "provider", "ms", "", "%", "MiB", "", "%", "worse", box=None, pad_edge=False)
    for change in found:
        op, case, mode, who = change.key
        cells = [op, case, mode, who]
        for field in ("p50", "peak_mib"):
            pair = (change.old[field], change.new[field] if change.new else None)
            grown = change.grown(field)
            cells += [*("-" if x is None else f"{x:.4g}" for x in pair), "-" if grown is None else f"{grown:+.1f}"]
        out.add_row(*cells, ", ".join(change.worse(percent)))
    return out


def main(arguments: Sequence[str]) -> int:
    """Compare two results; 1 if one of our rows is worse or missing.

    Raises:
        ValueError: one of the two is no result or damaged, they are of different GPUs, there is nothing to compare, or
            the percentage makes no sense.
    """
    parser = argparse.ArgumentParser(prog="liger bench compare", description=__doc__)
    parser.add_argument("old", type=Path, help="a JSON of `liger bench`, or a folder of them")
    parser.add_argument("new", type=Path, help="the same, later")
    parser.add_argument("--percent", type=float, default=5.0, help="how much time and memory may grow; default 5")
    options = parser.parse_args(arguments)
    if not 0 <= options.percent < math.inf:
        raise ValueError(f"--percent must be a number from 0, got {options.percent}")
    old, new = read(options.old), read(options.new)
    devices = {r["device"] for r in (*old, *new)}
    if len(devices) > 1:
        raise ValueError(f"results of different devices cannot be compared: {', '.join(sorted(devices))}")
    found = list(changes(old, new))
    if not found:
        raise ValueError(f"{options.old} holds no timed row of ours, so there is nothing to compare")
    bad = [change for change in found if change.worse(options.percent)]
    show(table(found, options.percent))
    for line in others(old, new):
        print(line)
    print(f"{len(bad)} of {len(found)} rows are worse by more than {options.percent:g} %, or missing")
    return 1 if bad else 0
