"""Plant each fault of ``mutations.toml`` into a copy of the sources and see which gate turns red.

    python tools/mutants.py [--only NAME ...] [--kernel ID ...] [--gpu] [--jobs N]

Gates, up to the first that is red: the checks of the kernel; tests, by default those of the package whose file was
changed; where the fault asks for it, the compile gate. Without a fault all of them have to be green. On a CPU Triton's
interpreter runs the kernels; ``--gpu`` takes the faults that only a GPU can show. Nothing of ours has to be installed.

Results are merged into docs/mutants.json, from which docs/mutants.md is written. Exit status: 1 if a fault survived,
2 if there is nothing to run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from repo import ROOT, Package, packages
from source_copy import Copy

MUTATIONS = ROOT / "tools" / "mutations.toml"
RESULTS, TABLE = ROOT / "docs" / "mutants.json", ROOT / "docs" / "mutants.md"
SECONDS = 600  # of one gate; a fault may well make a loop endless
HEAD = """# Planted faults and the gates that catch them

Each row is a fault of a kind that users of such kernels have met, planted into a copy of our sources; "caught by" is
the first gate that turned red, "s" the seconds until then. `nox -s mutants`, or `python tools/mutants.py --gpu` where
there are GPUs, writes this page from `tools/mutations.toml`, which holds the faults, and `mutants.json`, the results.

{total} faults: {caught} caught, {survived} survived, {pending} not run yet.

| kernel | mutation | kind | caught by | where | s |
|---|---|---|---|---|---|
"""


# -- What is planted ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A fault.

    Attributes:
        name: unique.
        kind: what is wrong, in one sentence.
        kernel: id of the kernel whose checks have to find it.
        file: below the ``src`` of a package: ``liger_kernels_norm/rms_norm.py``.
        old: text that stands in the file exactly once.
        new: what replaces it.
        tests: below packages/: the tests that have to find it if the checks do not; those of the file's package if "".
        check: part of the name of the check that has to find it, where all would take too long. No others are run, and
            no tests unless they are named too.
        gpus: GPUs needed to see the fault; 0 if a CPU is enough.
        compile_gate: whether it shows in the compiled code only.
    """

    name: str
    kind: str
    kernel: str
    file: str
    old: str
    new: str
    tests: str = ""
    check: str = ""
    gpus: int = 0
    compile_gate: bool = False

    @property
    def package(self) -> Package:
        """The package of the file."""
        return next(p for p in packages().values() if (p.source / self.file).is_file())

    @property
    def path(self) -> Path:
        """The file, relative to the root of the repository."""
        return (self.package.source / self.file).relative_to(ROOT)

    @property
    def plant(self) -> str:
        """A short hash of what is replaced by what: a result counts as long as it is the same."""
        return hashlib.sha256(f"{self.file}\0{self.old}\0{self.new}".encode()).hexdigest()[:12]

    def applied(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            SystemExit: the old text does not stand there exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise SystemExit(
                f"{self.name}: its old text stands {count} times in {self.file}, expected once; "
                f"bring {MUTATIONS.name} in step with the source"
            )
        return text.replace(self.old, self.new)


def load() -> list[Mutation]:
    """All mutations by kernel and name."""
    entries = tomllib.loads(MUTATIONS.read_text(encoding="utf-8"))["mutation"]
    return sorted((Mutation(**entry) for entry in entries), key=lambda m: (m.kernel, m.name))


# -- Gates -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Gate:
    """A command that is red if its exit status is not 0.

    Attributes:
        name: as the table calls it.
        command: arguments of Python, run in the folder of the copy.
        found: a pattern for the line that says what failed: its name and a message.
        interpret: whether Triton's interpreter runs the kernels.
    """

    name: str
    command: tuple[str, ...]
    found: str
    interpret: bool

    def run(self, copy: Copy, gpu: bool) -> tuple[str, str] | None:
        """What failed and its message; None if the gate is green."""
        command, env = [sys.executable, *self.command], copy.environment(self.interpret, gpu)
        try:
            done = subprocess.run(
                command, cwd=copy.folder, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return "timeout", f"ran for more than {SECONDS} s"
        if done.returncode == 0:
            return None
        if match := re.search(self.found, done.stdout, re.MULTILINE):
            return match[1], match[2] or ""
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        return f"exit status {done.returncode}", "".join(last)


def gates(mutation: Mutation) -> list[Gate]:
    """Those that have to find it, in order."""
    gpu = mutation.gpus > 0
    folder = mutation.package.folder.relative_to(ROOT)
    tests = f"packages/{mutation.tests}" if mutation.tests else f"{folder}/tests"
    # the checks of all kernels of the package, which tests call test_kernel, would only repeat the first gate
    pytest = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not test_kernel", tests)
    checks = ("tools/first_failure.py", mutation.kernel, "cuda" if gpu else "cpu", mutation.check)
    found = [Gate("checks", checks, r"^failed (\S+): (.*)$", not gpu)]
    if mutation.tests or not mutation.check:
        found.append(Gate("tests", pytest, r"^(?:FAILED|ERROR) \S+?\.py(?:::)?(.*?)(?: - (.*))?$", not gpu))
    if mutation.compile_gate:
        command = ("tools/compile_gate.py", "--kernels", mutation.kernel, "--targets", "sm90")
        found.append(Gate("compile gate", command, r"^  FAULT (\S+) (.*)$", False))
    return found


# -- Results -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Result:
    """What became of a fault; ``gate``, ``check`` and ``message`` are empty if it survived."""

    plant: str
    gate: str
    check: str
    message: str
    where: str
    seconds: int


def try_out(mutation: Mutation, copy: Copy, where: str) -> Result:
    """Plant the fault and run the gates up to the first that is red."""
    start = time.perf_counter()
    gate, check, message = "", "", ""
    with copy.planted(mutation):
        for each in gates(mutation):
            if failure := each.run(copy, mutation.gpus > 0):
                gate, (check, message) = each.name, failure
                break
    seconds = round(time.perf_counter() - start)
    print(f"{seconds:4} s  {mutation.name}: {f'{gate}: {check}: {message}' if gate else 'SURVIVED'}", flush=True)
    return Result(mutation.plant, gate, check, message[:300], where, seconds)


def committed() -> dict[str, Result]:
    """The results of earlier runs by name of the mutation."""
    if not RESULTS.is_file():
        return {}
    return {name: Result(**entry) for name, entry in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def current(mutations: Sequence[Mutation], results: Mapping[str, Result]) -> dict[str, Result]:
    """The results of mutations that have not changed since."""
    return {m.name: results[m.name] for m in mutations if m.name in results and results[m.name].plant == m.plant}


def table(mutations: Sequence[Mutation], results: Mapping[str, Result]) -> str:
    """docs/mutants.md: a row for every mutation."""
    known = current(mutations, results)
    caught = sum(bool(result.gate) for result in known.values())
    counts = {"total": len(mutations), "caught": caught, "survived": len(known) - caught}
    return HEAD.format(**counts, pending=len(mutations) - len(known)) + "".join(
        f"{_row(m, known.get(m.name))}\n" for m in mutations
    )


def _row(mutation: Mutation, result: Result | None) -> str:
    outcome = ["not run yet", f"{mutation.gpus} GPU" if mutation.gpus else "CPU", ""]
    if result:
        caught = f"{result.gate}: `{result.check}`" if result.gate else "**nothing**"
        outcome = [caught, result.where, f"{result.seconds}"]
    cells = [mutation.kernel, mutation.name, mutation.kind, *outcome]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write(mutations: Sequence[Mutation], results: Mapping[str, Result]) -> None:
    """Write both files; results of mutations that are gone or have changed are dropped."""
    entries = {name: asdict(result) for name, result in current(mutations, results).items()}
    RESULTS.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(table(mutations, results), encoding="utf-8")


# -- Command line ------------------------------------------------------------------------------------------------------
def choose(mutations: Sequence[Mutation], options: argparse.Namespace, gpus: int) -> list[Mutation]:
    """Those that were asked for and can run here; prints the others that were asked for."""
    for given, known in ((options.only, {m.name for m in mutations}), (options.kernel, {m.kernel for m in mutations})):
        if unknown := set(given) - known:
            raise SystemExit(f"no mutation has {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    asked = [m for m in mutations if not options.only or m.name in options.only]
    asked = [m for m in asked if not options.kernel or m.kernel in options.kernel]
    here = [m for m in asked if m.gpus <= gpus and bool(m.gpus) == options.gpu]
    for m in asked:
        if m not in here:
            print(f"not run here: {m.name}: needs {f'--gpu, GPUs: {m.gpus}' if m.gpus else 'no GPU, so no --gpu'}")
    return here


def baseline(chosen: Sequence[Mutation], copies: SimpleQueue[Copy], pool: ThreadPoolExecutor) -> None:
    """Without a fault every gate is green, or the table would mean nothing.

    Raises:
        SystemExit: one is red.
    """
    unique = {(gate, m.gpus > 0) for m in chosen for gate in gates(m)}

    def check(case: tuple[Gate, bool]) -> str:
        copy = copies.get()
        failure = case[0].run(copy, case[1])
        copies.put(copy)
        return f"{' '.join(case[0].command)}: {': '.join(failure)}" if failure else ""

    red = [line for line in pool.map(check, sorted(unique, key=lambda case: case[0].command)) if line]
    if red:
        raise SystemExit("red without any fault:\n" + "\n".join(red))
    print(f"{len(unique)} gates are green without a fault", flush=True)


def devices() -> tuple[int, str]:
    """Number of GPUs and what to call them."""
    import torch

    count = torch.cuda.device_count()
    return count, f"{count} x {torch.cuda.get_device_name()}" if count else "CPU"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutations, write the table and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, what in (("--only", "NAME"), ("--kernel", "ID")):
        parser.add_argument(name, nargs="+", default=[], metavar=what)
    parser.add_argument("--gpu", action="store_true", help="run those that need a GPU, and no others")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time; one per core by default")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    mutations = load()
    gpus, where = devices() if options.gpu else (0, "CPU")
    chosen = choose(mutations, options, gpus)
    if not chosen:
        parser.error("nothing to run: no fault that was chosen can be shown here")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for job in range(options.jobs):
            copies.put(Copy(Path(folder) / str(job)))
        baseline(chosen, copies, pool)

        def one(mutation: Mutation) -> Result:
            copy = copies.get()
            result = try_out(mutation, copy, where)
            copies.put(copy)
            return result

        made = {}
        for mutation, result in zip(chosen, pool.map(one, chosen), strict=True):
            made[mutation.name] = result
            write(mutations, {**committed(), **made})  # each time: a run that is stopped keeps what it has
    survived = [name for name, result in made.items() if not result.gate]
    print(f"{len(made) - len(survived)} of {len(made)} faults were caught; survived: {', '.join(survived) or 'none'}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
