"""Starts a worker for each side and follows it with a progress bar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from liger.demo.offer import SMOLLM2
from liger.demo.spec import SIDES, Outcome, Side, Spec

if TYPE_CHECKING:
    from rich.console import Console

ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    # glibc keeps freed blocks below a moving threshold; with a fixed one resident memory is memory in use
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    "OMP_WAIT_POLICY": "passive",  # spinning threads stand still where other work shares the cores
}


class WorkerFailed(RuntimeError):
    """A worker ended without an outcome."""


def specs(subject: str, *, quick: bool, device: str | None) -> tuple[Spec, Spec]:
    """What each side is to do. A mini learns from nothing, so its steps are larger."""
    size: dict[str, Any] = {"steps": 24, "tokens": 128, "memory_steps": 2, "memory_tokens": 2048}
    if quick:
        size = {"steps": 6, "tokens": 64, "memory_steps": 1, "memory_tokens": 1024}
    rate = 3e-5 if subject == SMOLLM2 else 1e-3
    unpatched, patched = (Spec(subject=subject, side=s, device=device, learning_rate=rate, **size) for s in SIDES)
    return unpatched, patched


def both(specs: tuple[Spec, Spec], folder: Path, console: Console) -> dict[Side, Outcome]:
    """Run one side after the other; each worker's messages go to `<folder>/<side>.log`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bars = {spec.side: progress.add_task(spec.side, total=spec.units, start=False) for spec in specs}
        for spec in specs:
            progress.start_task(bars[spec.side])
            for event in worker(spec, folder / f"{spec.side}.log"):
                if "outcome" in event:
                    outcomes[spec.side] = Outcome(**event["outcome"])
                else:
                    progress.update(bars[spec.side], completed=event["done"])
    return outcomes


def worker(spec: Spec, log: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of one worker.

    Raises:
        WorkerFailed: it ended without an outcome; the message holds the end of its log.
    """
    command = [sys.executable, "-m", "liger.demo.worker", spec.to_json()]
    event: dict[str, Any] = {}
    with (
        log.open("w", encoding="utf-8") as messages,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, text=True, env={**os.environ, **ENV}
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):  # anything else is a library that prints
                yield (event := json.loads(line))
    if process.returncode or "outcome" not in event:
        end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        raise WorkerFailed(f"the {spec.side} side ended with exit code {process.returncode}; the end of {log}:\n{end}")
