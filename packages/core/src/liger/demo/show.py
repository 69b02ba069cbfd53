"""What the demo prints, draws and writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from liger.demo.offer import SMOLLM2
from liger.demo.spec import Outcome, Side, Spec

if TYPE_CHECKING:
    from rich.console import Console

EQUAL = 1e-4
"""Largest relative difference of a step's losses that counts as equal: fp32, sums taken in another order."""
SMALLER = 0.8
"""Largest patched peak, as a part of the unpatched one, that counts as less memory."""
MIB = 2**20


def opening(console: Console, spec: Spec) -> None:
    """Say what is going to happen."""
    name = "SmolLM2-135M, pretrained" if spec.subject == SMOLLM2 else f"a random little {spec.subject} model"
    console.print(
        f"[bold]{name}[/bold], fp32, on the text of Python's help().\n"
        f"(a) every parameter trained, {spec.steps} x {spec.tokens} tokens: the losses.\n"
        f"(b) the head alone trained, {spec.memory_steps} x {spec.memory_tokens} tokens with gradient "
        "checkpointing: the memory.\nBoth are done twice from one seed, each side in a fresh process.\n",
        highlight=False,
        soft_wrap=True,
    )


def closing(console: Console, spec: Spec, sides: Mapping[Side, Outcome], folder: Path) -> int:
    """Print the comparison, write the files and return the exit code."""
    found = summary(spec, sides)
    patched = sides["patched"]
    console.print(losses(sides), memory(sides, found), sep="\n")
    console.print(legend(spec, patched), highlight=False, soft_wrap=True)
    speeds = ", ".join(f"{side} {outcome.tokens_per_second:.0f}" for side, outcome in sides.items())
    console.print(f"Tokens per second in (a): {speeds} ({patched.device}).", highlight=False)
    console.print("\nWhat was patched:\n", markup=False)
    console.print(patched.report_text or "", markup=False, highlight=False, soft_wrap=True)
    files = [write(spec, sides, found, folder), *draw(sides, folder, console)]
    console.print("\nWritten:", ", ".join(str(file) for file in files), highlight=False, soft_wrap=True)
    return verdict(console, found)


def summary(spec: Spec, sides: Mapping[Side, Outcome]) -> dict[str, Any]:
    """The numbers the verdict rests on; memory in bytes."""
    unpatched, patched = sides["unpatched"], sides["patched"]
    difference = max(relative(a, b) for a, b in _pairs(sides, "losses") + _pairs(sides, "memory_losses"))
    before, after = unpatched.memory, patched.memory
    measured = before is not None and after is not None
    return {
        "largest_relative_difference": difference,
        "memory_ratio": after / max(before, 1) if measured else None,  # type: ignore[operator, type-var]
        "measured_saving": before - after if measured else None,  # type: ignore[operator]
        "expected_saving": unpatched.logits_bytes(spec),
    }


def relative(a: float, b: float) -> float:
    """Difference of two losses relative to the first; infinite if either is nan, which no comparison would notice."""
    difference = abs(a - b) / max(abs(a), 1e-12)
    return math.inf if math.isnan(difference) else difference


def _pairs(sides: Mapping[Side, Outcome], field: str) -> list[tuple[float, float]]:
    return list(zip(getattr(sides["unpatched"], field), getattr(sides["patched"], field), strict=True))


def losses(sides: Mapping[Side, Outcome]) -> Table:
    """Loss per step of (a), side by side."""
    table = Table(title="(a) loss per step, every parameter trained", title_justify="left")
    for name in ("step", "unpatched", "patched", "relative difference"):
        table.add_column(name, justify="right")
    for step, (a, b) in enumerate(_pairs(sides, "losses"), 1):
        table.add_row(str(step), f"{a:.6f}", f"{b:.6f}", f"{relative(a, b):.1e}")
    return table


def memory(sides: Mapping[Side, Outcome], found: Mapping[str, Any]) -> Table:
    """Peaks of (a) and (b), side by side, with the saving that arithmetic predicts."""
    unpatched, patched = sides["unpatched"], sides["patched"]
    table = Table(title="peak memory above model and optimiser, MiB", title_justify="left")
    for name in ("run", "unpatched", "patched", "saved", "expected"):
        table.add_column(name, justify="left" if name == "run" else "right")
    rows = (
        ("(b) head trained", unpatched.memory, patched.memory, found["expected_saving"]),
        ("(a) all trained", unpatched.full_memory, patched.full_memory, None),
    )
    for name, before, after, expected in rows:
        saved = before - after if before is not None and after is not None else None
        table.add_row(name, *map(mib, (before, after, saved, expected)))
    return table


def legend(spec: Spec, patched: Outcome) -> str:
    """What the numbers of the memory table mean."""
    size = f"{spec.memory_tokens} tokens x {patched.vocabulary} words"
    return (
        f"Expected: the {patched.logit_copies} fp32 tensors of {size} that the unfused loss holds at its peak.\n"
        "The fused loss needs a part of that for the rows it is at, so somewhat less is saved.\n"
        "In (a) gradients and optimiser state are most of the peak, which no kernel changes.\n"
        f"Measured as: {patched.memory_how}.\n"
    )


def mib(size: int | None) -> str:
    """A number of bytes in MiB, or a dash if it is not known."""
    return "-" if size is None else f"{size / MIB:.0f}"


def write(spec: Spec, sides: Mapping[Side, Outcome], found: Mapping[str, Any], folder: Path) -> Path:
    """Everything measured, as JSON."""
    file = folder / "demo.json"
    data = {"spec": asdict(spec), "summary": found, "sides": {side: asdict(outcome) for side, outcome in sides.items()}}
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return file


def draw(sides: Mapping[Side, Outcome], folder: Path, console: Console) -> list[Path]:
    """Loss curves over each other and memory bars; nothing, and a word about it, without matplotlib."""
    if find_spec("matplotlib") is None:
        console.print("\nNo pictures: pip install 'liger-core[demo]' brings matplotlib.", highlight=False, markup=False)
        return []
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    styles: dict[Side, dict[str, Any]] = {
        "unpatched": {"color": "#9aa5b1", "linewidth": 5},
        "patched": {"color": "#0b7285", "linewidth": 1.5},
    }
    curves, bars = Figure(figsize=(7, 4), layout="constrained"), Figure(figsize=(5, 4), layout="constrained")
    axes = curves.subplots()
    for side, outcome in sides.items():
        axes.plot(range(1, len(outcome.losses) + 1), outcome.losses, label=side, **styles[side])
    axes.set(xlabel="step", ylabel="loss", title="Every parameter trained: loss")
    axes.legend()
    axes = bars.subplots()
    peaks = [(outcome.memory or 0) / MIB for outcome in sides.values()]
    axes.bar_label(axes.bar(list(sides), peaks, color=[styles[side]["color"] for side in sides]), fmt="%.0f")
    axes.set(ylabel="MiB above model and optimiser", title="Head trained: peak memory")
    files = [folder / "losses.png", folder / "memory.png"]
    for figure, file in zip((curves, bars), files, strict=True):
        figure.savefig(file, dpi=150)
    return files


def verdict(console: Console, found: Mapping[str, Any]) -> int:
    """Two sentences: are the losses equal, is the memory smaller; 0 if both."""
    difference, ratio = found["largest_relative_difference"], found["memory_ratio"]
    equal = difference <= EQUAL
    console.print(
        f"{_mark(equal)} Losses {'are equal' if equal else 'differ'}: "
        f"largest relative difference {difference:.1e}, limit {EQUAL:.0e}.",
        highlight=False,
    )
    if ratio is None:
        console.print("Memory could not be measured on this platform.")
        return 0 if equal else 1
    smaller = ratio <= SMALLER
    console.print(
        f"{_mark(smaller)} Peak memory of (b) is {ratio:.2f} of the unpatched one, limit {SMALLER}: "
        f"{mib(found['measured_saving'])} MiB saved.",
        highlight=False,
    )
    return 0 if equal and smaller else 1


def _mark(good: bool) -> str:
    return "[green]PASS[/green]" if good else "[red]FAIL[/red]"
