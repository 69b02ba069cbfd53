"""What a compiled launch may use: the limits of each target, and the exceptions in tools/compile_budget.toml."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUDGET = Path(__file__).with_name("compile_budget.toml")
THREADS_LIMIT = 1024  # of one program, everywhere


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to compile for.

    Attributes:
        backend, arch, warp_size: arguments of triton's ``GPUTarget``.
        shared: bytes of shared memory that one program may use.
    """

    backend: str
    arch: int | str
    warp_size: int
    shared: int


TARGETS = {
    "sm80": Target("cuda", 80, 32, 166_912),
    "sm90": Target("cuda", 90, 32, 232_448),
    "sm100": Target("cuda", 100, 32, 232_448),
    "gfx942": Target("hip", "gfx942", 64, 65_536),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One compiled launch and what it uses; None is what could not be read.

    Attributes:
        kernel: id of the kernel, ``rms_norm/triton``.
        function: name of the ``@triton.jit`` function.
        target: one of ``TARGETS``.
        constants: constants and dtypes it was compiled for.
        case: the first case that launched it.
        registers: of one thread.
        spilled: bytes, stores and loads.
        stack: bytes of one thread's stack frame.
        shared: bytes of one program.
        threads: of one program.
        seconds: time it took to compile.
    """

    kernel: str
    function: str
    target: str
    constants: str
    case: str
    registers: int | None
    spilled: int | None
    stack: int | None
    shared: int | None
    threads: int
    seconds: float

    def faults(self, budgets: Sequence[Budget] = ()) -> list[str]:
        """Why it must not be used, if anything."""
        allowed = [b for b in budgets if b.concerns(self)]
        limits = {
            "spilled": max((b.spilled for b in allowed), default=0),
            "stack": max((b.stack for b in allowed), default=0),
            "shared": max((b.shared for b in allowed), default=0) or TARGETS[self.target].shared,
            "threads": THREADS_LIMIT,
        }
        out = [f"{name} was not measured" for name in ("registers", *limits) if getattr(self, name) is None]
        for name, limit in limits.items():
            used = getattr(self, name)
            if used is not None and used > limit:
                out.append(f"{name} {used} exceeds {limit}")
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Launches that may use more than others, and why. The fields of an entry of compile_budget.toml.

    Attributes:
        kernel, function: as in ``Launch``.
        reason: why this is better than what would stay within the limits; where that was measured.
        targets: empty for all.
        constants: regular expression, searched for in ``Launch.constants``.
        spilled, stack, shared: what is allowed; 0 is the common limit.
    """

    kernel: str
    function: str
    reason: str
    targets: Sequence[str] = ()
    constants: str = ""
    spilled: int = 0
    stack: int = 0
    shared: int = 0

    def concerns(self, launch: Launch) -> bool:
        """Whether this entry is about that launch."""
        return (
            (self.kernel, self.function) == (launch.kernel, launch.function)
            and (not self.targets or launch.target in self.targets)
            and re.search(self.constants, launch.constants) is not None
        )


def read_budgets(file: Path = BUDGET) -> list[Budget]:
    """The entries of a budget file.

    Raises:
        ValueError: an entry has a field that does not exist, lacks one, or gives no reason.
    """
    fields = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(Budget)}
    out = []
    for number, entry in enumerate(tomllib.loads(file.read_text(encoding="utf-8")).get("budget", []), start=1):
        unknown = entry.keys() - fields
        missing = [name for name, needed in fields.items() if needed and not str(entry.get(name, "")).strip()]
        if unknown or missing:
            raise ValueError(
                f"{file.name}, entry {number}: unknown {sorted(unknown)}, missing {missing}; "
                f"the fields are {', '.join(fields)}"
            )
        out.append(Budget(**entry))
    return out


def unneeded(budgets: Sequence[Budget], launches: Sequence[Launch]) -> list[str]:
    """A line for each entry without which no launch would have a fault."""
    out = []
    for budget in budgets:
        rest = [b for b in budgets if b is not budget]
        concerned = [launch for launch in launches if budget.concerns(launch)]
        if all(launch.faults(rest) == launch.faults(budgets) for launch in concerned):
            what = f"{budget.kernel} {budget.function} {budget.constants}".rstrip()
            out.append(f"{BUDGET.name}: no launch needs the entry of {what}; delete it")
    return out
