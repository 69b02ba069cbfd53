"""``--base SHA``: our kernels of a commit and of this checkout, timed in turn in one process pair."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from liger.bench.options import OUT, Options
from liger.bench.plan import Point, plan
from liger.bench.report import show
from liger.bench.source import definitions
from liger.bench.stats import ratio
from liger.bench.worker import command

JUDGES = (
    *(":(glob)tests/**", ":(glob)packages/**/tests/**"),
    *("packages/core/src/liger/testing", "packages/core/src/liger/bench"),
)
WORKER = Path("packages/core/src/liger/bench/worker.py")
Row = dict[str, Any]


def git(folder: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        ValueError: git fails; the message is git's.
    """
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(root: Path, sha: str) -> Iterator[Path]:
    """A checkout of the commit in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="liger-base-") as folder:
        tree = Path(folder, "tree")
        git(root, "worktree", "add", "--quiet", "--detach", str(tree), sha)
        try:
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))


def refuse(root: Path, tree: Path, sha: str, points: Sequence[Point]) -> None:
    """Raise unless both revisions are judged in the same way.

    Raises:
        ValueError: the commit has no worker or lacks an op, or tests, tolerances, timer, references or inputs differ.
    """
    if not (tree / WORKER).is_file():
        raise ValueError(f"{sha} has no {WORKER}, so it cannot be timed: choose a later commit")
    changed = git(root, "diff", "--name-only", sha, "--", *JUDGES).splitlines()
    changed += git(root, "ls-files", "--others", "--exclude-standard", "--", *JUDGES).splitlines()
    for op in {point.op.name: point.op for point in points}.values():
        for target in (op.reference, op.inputs or ""):
            mine, theirs = definitions(root, target), definitions(tree, target)
            if not theirs:
                raise ValueError(f"{sha} has no {target} of the op {op.name}: name other ops")
            changed += sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    if changed:
        raise ValueError(
            f"tests, tolerances, the timer, references or inputs differ from {sha}: times would not be of equal work. "
            f"Commit these first, apart, and take that commit as the base: {', '.join(dict.fromkeys(changed))}"
        )


class Worker:
    """A process that times the kernels of one tree, driven over pipes."""

    def __init__(self, tree: Path, name: str, folder: Path, smoke: bool) -> None:
        self.name = name
        metadata = [sys.executable, str(tree / "tools" / "gpu_metadata.py"), str(folder / name)]
        path = subprocess.run(metadata, capture_output=True, text=True, check=True).stdout.strip()
        before = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([path, *([before] if before else [])])}
        self.process = subprocess.Popen(
            command(smoke), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Let it do one thing and wait for the reply.

        Raises:
            ValueError: the kernel is wrong or fails, or the process has ended.
        """
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(asked), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        reply = json.loads(line) if line else {"error": f"the process ended with {self.process.wait()}"}
        if "error" in reply:
            raise ValueError(f"{self.name}: {asked.get('load', '')}: {reply['error']}")
        return dict(reply)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def same_declarations(pair: Sequence[Worker], ops: Iterable[str]) -> None:
    """Raise unless both trees declare the same about how an op is tested.

    Raises:
        ValueError: they do not.
    """
    for op in ops:
        base, new = (worker.ask(declared=op) for worker in pair)
        if differing := [name for name in new if new[name] != base[name]]:
            said = "; ".join(f"{name} is {base[name]} there and {new[name]} here" for name in differing)
            raise ValueError(f"the op {op} is declared otherwise, so it would be judged otherwise: {said}")


def time_point(point: Point, pair: Sequence[Worker], repetitions: int) -> Iterator[Row]:
    """One row for each kernel and mode."""
    for kernel in point.kernels:
        peaks = [worker.ask(load=point.spec(kernel))["peaks"] for worker in pair]
        for mode in point.moved:
            for worker in pair:
                worker.ask(mode=mode)
            times: list[list[float]] = [[], []]
            for _ in range(repetitions):
                for worker, values in zip(pair, times, strict=True):
                    values.append(worker.ask(sample=1)["ms"])
            row: Row = {"op": point.op.name, "kernel": kernel.id, "case": point.case, "mode": mode}
            for name, values, peak in zip(("base", "new"), times, peaks, strict=True):
                row |= {f"{name}_ms": values, f"{name}_mib": peak[mode]}
            yield row | {"ratio": ratio(times[1], times[0])}
        for worker in pair:
            worker.ask(free=1)


def table(rows: Sequence[Row], sha: str) -> Table:
    """New time over the base's, with the 95 % interval, and both peaks."""
    heads = ("kernel", "case", "mode", f"{sha} ms", "new ms", "new / base (95 %)", "base MiB", "new MiB")
    out = Table(*heads, box=None, pad_edge=False)
    for r in rows:
        times = (f"{statistics.median(r[name]):.4g}" for name in ("base_ms", "new_ms"))
        peaks = ("-" if r[name] is None else f"{r[name]:.0f}" for name in ("base_mib", "new_mib"))
        value, low, high = r["ratio"]
        out.add_row(r["kernel"], r["case"], r["mode"], *times, f"{value:.3f} ({low:.3f}-{high:.3f})", *peaks)
    return out


def run(options: Options) -> int:
    """Time both, print the ratios, write ``base.json``.

    Raises:
        ValueError: this is no checkout, the commit is unknown, the two cannot be compared, or a kernel is wrong.
    """
    assert options.base
    root = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    sha = git(root, "rev-parse", "--verify", "--short=12", f"{options.base}^{{commit}}")
    points = [point for found in plan(options).values() for series in found for point in series]
    rows: list[Row] = []
    with worktree(root, sha) as tree, tempfile.TemporaryDirectory() as scratch:
        refuse(root, tree, sha, points)
        sides = ((tree, "base"), (root, "new"))
        with contextlib.ExitStack() as stack:
            pair = [stack.enter_context(Worker(at, name, Path(scratch), options.smoke)) for at, name in sides]
            same_declarations(pair, dict.fromkeys(point.op.name for point in points))
            for point in points:
                rows += time_point(point, pair, options.repetitions)
                print(f"{point.op.name} {point.case}", file=sys.stderr)
    show(table(rows, sha))
    folder = options.out or OUT
    folder.mkdir(parents=True, exist_ok=True)
    data = {"base": sha, "rows": rows}
    (folder / "base.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0
