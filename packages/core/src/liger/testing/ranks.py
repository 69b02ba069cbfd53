"""Processes that talk to each other: they are started once, run many cases, and tests look at what each has found.

A file of tests names its cases, which all processes run in this order, and starts the processes in a fixture:

    CASES = {"the sum": add_up}  # functions of a Rank

    @pytest.fixture(scope="module")
    def found(tmp_path_factory):
        return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))

    @pytest.mark.parametrize("name", CASES)
    def test_ranks(name, found):
        found.of(name)

The processes import the file by itself, so it must not import its neighbours. A case that one process fails and another
does not leaves them at different places, so it is the last one.
"""

from __future__ import annotations

import datetime
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from liger.errors import ContractViolation


class Rank(NamedTuple):
    """What a case is told: its process, the number of processes, and the device that this one has."""

    rank: int
    ranks: int
    device: str


class Outcome(NamedTuple):
    """What a case gave on one process; ``error`` is its traceback, empty if it ended."""

    value: Any
    error: str


class Found(NamedTuple):
    """The outcomes of each process by the name of the case, in the order of the ranks, and what all wrote as errors."""

    ranks: list[dict[str, Outcome]]
    written: str

    def of(self, name: str) -> list[Any]:
        """What a case returned on each process.

        Raises:
            ContractViolation: it failed on a process, or did not end on all of them.
        """
        outcomes = [found.get(name) for found in self.ranks]
        if None in outcomes:
            ended = [list(found)[-1:] for found in self.ranks]
            raise ContractViolation(
                f"{name!r} did not end on all processes; the last that did on each: {ended}\n{self.written[-4000:]}"
            )
        errors = [f"rank {rank}: {o.error}" for rank, o in enumerate(outcomes) if o and o.error]
        if errors:
            raise ContractViolation("\n".join(errors))
        return [o.value for o in outcomes if o]


def run_ranks(file: str | Path, folder: Path, *, ranks: int = 2, device: str = "cpu", patience: float = 60.0) -> Found:
    """Run ``CASES`` of a Python file, a mapping of names to functions of a ``Rank``, in processes of one group.

    Args:
        file: usually that of the test, ``__file__``.
        folder: an empty one, through which they meet.
        device: ``cpu``, with gloo and Triton's interpreter, or ``cuda``, with NCCL and one GPU for each process.
        patience: seconds that a process waits for the others.
    """
    on_cpu = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    start = "import sys; from liger.testing.ranks import main; main(*sys.argv[1:])"
    words = [sys.executable, "-c", start, str(file), str(folder), str(ranks), device, str(patience)]
    done = subprocess.run(words, env={**os.environ, **on_cpu}, capture_output=True, text=True, check=False)
    kept = [folder / f"{rank}.pt" for rank in range(ranks)]
    return Found([torch.load(k, weights_only=False) if k.exists() else {} for k in kept], done.stderr)


def main(file: str, folder: str, ranks: str, device: str, patience: str) -> None:
    """Start the processes and wait for them."""
    if device == "cpu" and importlib.util.find_spec("triton"):
        from liger.testing.interpreter import fix

        fix()
    cases, wait = load_cases(file), datetime.timedelta(seconds=float(patience))
    context = multiprocessing.get_context("fork")  # what the file imports is imported once
    everyone = [Rank(rank, int(ranks), device) for rank in range(int(ranks))]
    started = [context.Process(target=work, args=(cases, folder, rank, wait)) for rank in everyone]
    for process in started:
        process.start()
    for process in started:
        process.join()


def load_cases(file: str) -> Mapping[str, Callable[[Rank], Any]]:
    """``CASES`` of a file."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None  # our own bug: pytest has imported it
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.CASES  # type: ignore[no-any-return]


def work(cases: Mapping[str, Callable[[Rank], Any]], folder: str, rank: Rank, patience: datetime.timedelta) -> None:
    """All that one process does."""
    me, ranks, device = rank
    os.environ.update(RANK=str(me), LOCAL_RANK=str(me), WORLD_SIZE=str(ranks))  # as torchrun does
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # read by accelerate; nothing listens there
    if device == "cuda":
        torch.cuda.set_device(me)
        rank = rank._replace(device=f"cuda:{me}")
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, f"file://{folder}/store", timeout=patience, rank=me, world_size=ranks)
    store = dist.FileStore(f"{folder}/outcomes", ranks)  # type: ignore[attr-defined]
    store.set_timeout(patience)
    found: dict[str, Outcome] = {}
    for name, case in cases.items():
        found[name] = run(case, rank)
        torch.save(found, f"{folder}/{me}.pt")  # the next one may take the process down
        store.set(f"{name} {me}", "failed" if found[name].error else "ended")
        if len({store.get(f"{name} {other}") for other in range(ranks)}) > 1:
            break
    dist.destroy_process_group()


def run(case: Callable[[Rank], Any], rank: Rank) -> Outcome:
    """One case in this process."""
    torch.manual_seed(0)
    try:
        return Outcome(case(rank), "")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # what pytest.raises fails with is no Exception
        return Outcome(None, traceback.format_exc())
