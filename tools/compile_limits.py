"""What a compiled launch may use: the limits of each target, and the exceptions in tools/compile_budget.toml."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUDGET = Path(__file__).with_name("compile_budget.toml")
THREADS_LIMIT = 1024  # of one program, everywhere
USES = ("spilled", "stack", "shared")  # what an entry may allow more of
LOOSE = 2  # times what is needed


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
            "shared": max(TARGETS[self.target].shared, *(b.shared for b in allowed), 0),
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
        ValueError: the file has something else than entries, or an entry has a field that does not exist, lacks one, or
            has one of a wrong type or value.
    """
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    entries = read.pop("budget", [])
    if read or not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise ValueError(f"{file.name} holds {sorted(read) or 'no list of tables'}, expected [[budget]] entries alone")
    fields = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(Budget)}
    out = []
    for number, entry in enumerate(entries, start=1):
        unknown, missing = (
            sorted(entry.keys() - fields),
            [n for n, needed in fields.items() if needed and n not in entry],
        )
        if unknown or missing:
            said = f"unknown {unknown}, missing {missing}; the fields are {', '.join(fields)}"
            raise ValueError(f"{file.name}, entry {number}: {said}")
        if wrong := list(_wrong(entry)):
            raise ValueError(f"{file.name}, entry {number}: {'; '.join(wrong)}")
        out.append(Budget(**entry))
    return out


def _wrong(entry: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the values of an entry."""
    for name in ("kernel", "function", "reason"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            yield f"{name} is {entry[name]!r}, expected words"
    for name in USES:
        if type(entry.get(name, 0)) is not int or entry.get(name, 0) < 0:
            yield f"{name} is {entry[name]!r}, expected a whole number of bytes, 0 or more"
    targets = entry.get("targets", [])
    if not isinstance(targets, list) or any(target not in list(TARGETS) for target in targets):
        yield f"targets is {targets!r}, expected a list of {', '.join(TARGETS)}"
    elif type(shared := entry.get("shared", 0)) is int and shared:
        limit = max(TARGETS[target].shared for target in targets or TARGETS)
        if shared <= limit:
            yield f"shared is {shared}, which {', '.join(targets or TARGETS)} allow anyway: {limit}"
    try:
        re.compile(entry.get("constants", ""))
    except (re.error, TypeError) as error:
        yield f"constants is {entry['constants']!r}, expected a regular expression: {error}"


def unneeded(budgets: Sequence[Budget], launches: Sequence[Launch]) -> list[str]:
    """A line for each entry without which no launch would have a fault, and for each that allows far too much."""
    out = []
    for budget in budgets:
        rest = [b for b in budgets if b is not budget]
        concerned = [launch for launch in launches if budget.concerns(launch)]
        what = f"{budget.kernel} {budget.function} {budget.constants}".rstrip()
        if all(launch.faults(rest) == launch.faults(budgets) for launch in concerned):
            out.append(f"{BUDGET.name}: no launch needs the entry of {what}; delete it")
            continue
        for name in ("spilled", "stack"):
            allowed, used = getattr(budget, name), max(getattr(launch, name) or 0 for launch in concerned)
            if allowed > LOOSE * used:
                out.append(f"{BUDGET.name}: the entry of {what} is too loose: {name} = {allowed}, used are {used}")
    return out
