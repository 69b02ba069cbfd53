"""The command: what was asked in words, and a table of what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from liger import settings

if TYPE_CHECKING:
    from liger.tune.search import Found


def main(ops: Sequence[str], sizes: str, dtype: str, seconds: float, out: Path | None, console: Console) -> None:
    """Tune, print, and say where the table is.

    Raises:
        ValueError: an option makes no sense, there is no GPU, or no place for the table.
    """
    file = out or settings.user_table()
    if file is None:
        raise ValueError(f"{settings.VARIABLE} is empty, so there is no table to write: unset it, or give --out")
    if not seconds > 0:  # nan is not
        raise ValueError(f"--seconds {seconds}: expected more than 0")
    from liger.bench.options import set_environment

    set_environment(smoke=False)  # before anything imports triton
    from liger.tune.search import tune

    wanted = parse(sizes)
    with console.status("tuning"):
        found = tune(ops, file, sizes=wanted, dtype=dtype, seconds=seconds, say=console.print)
    show(found, console)
    kept = sum(one.better for one in found)
    where = "later processes use it" if file == settings.user_table() else f"{settings.VARIABLE}={file} uses it"
    console.print(f"{kept} of {len(found)} written to {file}; {where}", markup=False, highlight=False)


def parse(text: str) -> dict[str, int] | None:
    """``R=16384,H=5120`` as numbers by name; None for nothing.

    Raises:
        ValueError: it is something else.
    """
    if not text:
        return None
    try:
        return {name.strip(): int(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ValueError(f"--sizes {text}: expected names with whole numbers, as R=16384,H=5120") from None


def show(found: Sequence[Found], console: Console) -> None:
    """A row for each function and size, and below what was tried there."""
    table = Table("function", "arguments", "timed", "before", "after", "ms", "new ms", "new / old (95 %)", box=None)
    for one in found:
        arguments = ", ".join(f"{name}={value}" for name, value in one.request.named.items())
        head = one.request.function.rpartition(".")[2], arguments, f"{one.mode} {one.case}"
        changed = {name: (value, one.best[name]) for name, value in one.start.items() if one.best[name] != value}
        before, after = (", ".join(f"{name}={pair[i]}" for name, pair in changed.items()) or "-" for i in (0, 1))
        times = [f"{statistics.median(values):.4g}" for values in one.times or ()] or ["-", "-"]
        table.add_row(
            *head, before, after, *times, f"{one.gain}{'' if one.better else ': not kept'}" if changed else "-"
        )
    console.print(table)
    for one in found:
        for line in one.tried:
            console.print(f"  {one.request.function.rpartition('.')[2]} {line}", markup=False, highlight=False)
