"""Time and memory against the variable of a sweep, one line per provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from liger.bench import MODES
from liger.bench.rows import Row

Rows = list[Row]
WIDE = 8.0  # the ratio of largest to smallest value from which on an axis is logarithmic


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One PNG per sweep, ``<op>.png`` or ``<op>-<variable>-<fixed>.png``; nothing, and a word, without matplotlib."""
    if find_spec("matplotlib") is None:
        print("No plots: pip install 'liger-core[bench]' brings matplotlib.")
        return []
    files = []
    for name, mine in sweeps(rows):
        files.append(folder / f"{name}.png")
        picture(name, mine, files[-1])
    return files


def sweeps(rows: Sequence[Row]) -> Iterator[tuple[str, Rows]]:
    """The timed rows of each sweep with a name for it."""
    found: dict[str, dict[str, Rows]] = {}
    for r in rows:
        if r["status"] == "timed":
            fixed = " ".join(f"{k}={v}" for k, v in r["sizes"].items() if k != r["variable"])
            found.setdefault(r["op"], {}).setdefault(f"{r['variable']} {fixed}", []).append(r)
    for op, mine in found.items():
        for label, some in mine.items():
            yield (op if len(mine) == 1 else f"{op}-{label.replace(' ', '-')}"), some


def picture(name: str, rows: Rows, file: Path) -> None:
    """Time above, memory below, a column for each mode."""
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    modes = [mode for mode in MODES if any(r["mode"] == mode for r in rows)]
    variable = rows[0]["variable"]
    fixed = ", ".join(f"{k}={v}" for k, v in rows[0]["sizes"].items() if k != variable)
    figure = Figure(figsize=(4.2 * len(modes) + 1, 7), layout="constrained")
    axes = figure.subplots(2, len(modes), squeeze=False)
    for column, mode in enumerate(modes):
        mine = [r for r in rows if r["mode"] == mode]
        curves(axes[0][column], mine, lambda r: r["p50"])
        curves(axes[1][column], [r for r in mine if r["provider"] != r["limit"]], lambda r: r["peak_mib"])
        axes[0][column].set(title=mode, ylabel="ms" if not column else "")
        axes[1][column].set(xlabel=variable, ylabel="peak MiB above the inputs" if not column else "")
    axes[0][0].legend(fontsize="small")
    figure.suptitle(f"{name.partition('-')[0]}, {fixed}, bf16, {rows[0]['device']}", fontsize="medium")
    figure.savefig(file, dpi=110)


def curves(axes: Any, rows: Rows, value: Callable[[Row], float | None]) -> None:
    """One line per provider; ours in front and the limit dotted."""
    seen: list[float] = []
    for who in dict.fromkeys(r["provider"] for r in rows):
        points = sorted((r["sizes"][r["variable"]], value(r)) for r in rows if r["provider"] == who)
        known = [(x, y) for x, y in points if y is not None]
        seen += [y for _, y in known]
        style: dict[str, Any] = {"linewidth": 1.2, "marker": "o", "markersize": 3}
        if who == "ours":
            style |= {"linewidth": 2.4, "color": "black", "zorder": 3}
        elif any(r["limit"] == who for r in rows):
            style |= {"linestyle": ":", "color": "gray", "marker": ""}
        axes.plot([x for x, _ in known], [y for _, y in known], label=who, **style)
    axes.set_xscale("log", base=2)
    if seen and min(seen) > 0 and max(seen) / min(seen) >= WIDE:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
