"""What ``autopatch`` did, or would do: one row per module, each with its reason."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["applied", "skipped", "refused", "deferred"]
IDLE = "its forward does not call "
"""How ``Fit.match`` begins the reason for a module that never comes to the op, as others of its class may."""
UNNAMED = "the declaration around it does not name it, and "
"""How the reason begins for a module inside a declared model that no fit suits either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One module and what happened to it.

    Attributes:
        path: as in ``model.named_modules()``; empty for the model itself.
        cls: name of the upstream class.
        fit, op: what it was matched with; empty if nothing.
        status: applied; skipped (left alone, for a reason outside it); refused (it does not fit); deferred (later).
        reason: why, in words a user can act on.
        owner: the distribution whose declaration decided.
    """

    path: str
    cls: str
    fit: str
    op: str
    status: Status
    reason: str = ""
    owner: str = ""

    @property
    def idle(self) -> bool:
        """Whether there was nothing to replace.

        The module never comes to the op, but others of its class do; or no declaration names it and no fit suits it.
        """
        return self.status == "skipped" and self.reason.startswith((IDLE, UNNAMED))


@dataclass(slots=True)
class Report:
    """The rows, and live information about the kernels that served them.

    ``str(report)`` is a table to read or to paste into an issue.
    """

    rows: list[Row]
    prefer: Mapping[str, str | None] = field(default_factory=dict)
    planned: bool = False
    _revert: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def applied(self) -> list[Row]:
        """Rows that were patched (in a plan: would be)."""
        return [r for r in self.rows if r.status == "applied"]

    @property
    def skipped(self) -> list[Row]:
        """Rows that were not patched, whatever the reason: skipped, refused or deferred."""
        return [r for r in self.rows if r.status != "applied"]

    @property
    def kernels(self) -> dict[str, str]:
        """Op -> the kernels that have served it under the same preference, ``"pending"`` before the first call."""
        import sys

        out = dict.fromkeys(sorted({r.op for r in self.applied}), "pending")
        if dispatch := sys.modules.get("liger.dispatch"):
            for op in out:
                served = [d for d in dispatch.LOG.decisions if d.op == op and d.prefer == self.prefer.get(op)]
                names = list(dict.fromkeys(f"{d.chosen} on {d.device}{', compiled' * d.compiled}" for d in served))
                out[op] = ", ".join(names) or "pending"
        return out

    def revert(self) -> None:
        """Undo exactly what this report says was applied; what was patched before or since stays. Then a no-op."""
        if self._revert is None:
            raise RuntimeError("a plan changed nothing, so there is nothing to revert")
        self._revert()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"planned": self.planned, "rows": [asdict(r) for r in self.rows], "kernels": self.kernels}

    def summary(self) -> str:
        """One line: ``applied rms_norm x61, silu_mul x30; skipped 1``."""
        counts = Counter(r.op for r in self.applied)
        done = ", ".join(f"{op} x{n}" for op, n in sorted(counts.items())) or "nothing"
        verb = "would apply" if self.planned else "applied"
        return f"{verb} {done}" + (f"; left {len(self.skipped)}" if self.skipped else "")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("op", "class", "", "count", "kernel / reason"):
            table.add_column(column, overflow="fold")
        groups = Counter((r.op or "-", r.cls, r.status, r.reason) for r in self.rows)
        kernels = self.kernels
        for (op, cls, status, reason), count in groups.items():
            last = (kernels[op] + (f" ({reason})" if reason else "")) if status == "applied" else reason
            table.add_row(op, cls, status, f"x{count}", last)
        console = Console(width=120, color_system=None, force_terminal=False, legacy_windows=False)
        with console.capture() as capture:
            console.print(f"liger {self.summary()}", highlight=False)
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def log(cls: type, message: str) -> None:
    """Write the one INFO line of an ``autopatch``, on rank 0 alone."""
    if os.environ.get("RANK", "0") == "0":
        logging.getLogger("liger").info("%s: %s", cls.__name__, message)
