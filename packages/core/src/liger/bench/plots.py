"""Time and memory against the variable of a sweep, one line per provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        picture(mine, files[-1])
    return files


def sweeps(rows: Sequence[Row]) -> Iterator[tuple[str, Rows]]:
    """The timed rows of each sweep of more than one point, with a name for its file."""
    found: dict[str, dict[str, Rows]] = {}
    for r in rows:
        if r["status"] == "timed":
            label = "-".join([r["variable"], *(f"{k}{v}" for k, v in fixed(r).items()), *variant(r).split()])
            found.setdefault(r["op"], {}).setdefault(label, []).append(r)
    for op, every in found.items():
        mine = {label: some for label, some in every.items() if len({r["case"] for r in some}) > 1}
        for label, some in mine.items():
            yield (op if len(mine) == 1 else f"{op}-{label}"), some


def fixed(row: Row) -> dict[str, int]:
    """The dimensions that do not vary."""
    return {k: v for k, v in row["sizes"].items() if k != row["variable"]}


def variant(row: Row) -> str:
    """The kind of input, which stands behind the sizes."""
    return str(row["case"]).removeprefix(" ".join(f"{k}={v}" for k, v in row["sizes"].items())).strip()


def picture(rows: Rows, file: Path) -> None:
    """Time above, memory below if it was measured, a column for each mode."""
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    modes = [mode for mode in MODES if any(r["mode"] == mode for r in rows)]
    peaks = [r for r in rows if r["peak_mib"] is not None]
    panels = [("ms", "p50", rows), ("peak MiB above the inputs", "peak_mib", peaks)][: 2 if peaks else 1]
    figure = Figure(figsize=(4.2 * len(modes) + 1, 3.4 * len(panels) + 0.8), layout="constrained")
    axes = figure.subplots(len(panels), len(modes), squeeze=False)
    styles = looks(rows)
    for i, (label, field, some) in enumerate(panels):
        for j, mode in enumerate(modes):
            curves(axes[i][j], [r for r in some if r["mode"] == mode], field, styles)
            axes[i][j].set(title="" if i else mode, ylabel="" if j else label, xlabel=rows[0]["variable"])
    known = {
        label: line for row in axes for a in row for line, label in zip(*a.get_legend_handles_labels(), strict=True)
    }
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=len(known), fontsize="small")
    sizes = ", ".join(f"{k}={v}" for k, v in fixed(rows[0]).items())
    figure.suptitle(f"{rows[0]['op']}, {sizes}, bf16, {rows[0]['device']}", fontsize="medium")
    figure.savefig(file, dpi=110)


def looks(rows: Rows) -> dict[str, dict[str, Any]]:
    """How the line of each provider looks, the same in each panel: ours in front, limits dotted."""
    out: dict[str, dict[str, Any]] = {}
    for r in rows:
        out.setdefault(r["provider"], {"color": f"C{len(out)}", "linewidth": 1.2, "marker": "o", "markersize": 3})
        if r["provider"] == r["limit"]:
            out[r["provider"]] = {"color": "gray", "linestyle": ":"}
    return {**out, "ours": {"color": "black", "linewidth": 2.4, "marker": "o", "markersize": 3, "zorder": 3}}


def curves(axes: Any, rows: Rows, field: str, styles: Mapping[str, dict[str, Any]]) -> None:
    """One line per provider."""
    for who in dict.fromkeys(r["provider"] for r in rows if r[field] is not None):
        points = sorted((r["sizes"][r["variable"]], r[field]) for r in rows if r["provider"] == who)
        axes.plot(*zip(*points, strict=True), label=who, **styles[who])
    values = [r[field] for r in rows]
    axes.set_xscale("log", base=2)
    ticks = sorted({r["sizes"][r["variable"]] for r in rows})
    axes.set_xticks(ticks, labels=[str(x) for x in ticks], fontsize="small")
    axes.minorticks_off()
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
