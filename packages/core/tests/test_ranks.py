"""Processes for tests: what they find comes back, also when one fails, dies or leaves the others behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from liger.errors import ContractViolation  # noqa: E402
from liger.testing.ranks import Found, Rank, run_ranks  # noqa: E402

pytestmark = pytest.mark.xdist_group("ranks")


def add_up(rank: Rank) -> tuple[float, str]:
    """The sum over all ranks."""
    mine = torch.tensor(float(rank.rank + 1), device=rank.device)
    torch.distributed.all_reduce(mine)
    return float(mine), os.environ["WORLD_SIZE"]


def fail(rank: Rank) -> None:
    """On every rank."""
    raise ValueError(f"rank {rank.rank} cannot")


def fail_alone(rank: Rank) -> None:
    """On one rank."""
    if rank.rank == 1:
        raise ValueError("only here")


def die(rank: Rank) -> None:
    """One rank is gone."""
    if rank.rank == 1:
        os._exit(3)


CASES: dict[str, Callable[[Rank], Any]] = {
    "sum": add_up,
    "all fail": fail,
    "sum again": add_up,
    "one fails": fail_alone,
    "never": add_up,
}


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"), ranks=3)


def test_values_come_back_in_the_order_of_the_ranks(found: Found) -> None:
    assert found.of("sum") == [(6.0, "3")] * 3


def test_what_all_fail_is_reported_and_the_next_runs(found: Found) -> None:
    with pytest.raises(ContractViolation, match=r"rank 0: Traceback[\s\S]*rank 0 cannot[\s\S]*rank 2 cannot"):
        found.of("all fail")
    assert found.of("sum again") == found.of("sum")


def test_what_one_fails_is_the_last(found: Found) -> None:
    with pytest.raises(ContractViolation, match=r"rank 1: Traceback[\s\S]*only here"):
        found.of("one fails")
    with pytest.raises(ContractViolation, match=r"'never' did not end on all processes; .*\['one fails'\]"):
        found.of("never")


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        f"import importlib.util\nspec = importlib.util.spec_from_file_location('ranks', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "CASES = {'sum': module.add_up, 'die': module.die}\n"
    )
    found = run_ranks(tmp_path / "dies.py", tmp_path, patience=2)
    assert found.of("sum") == [(3.0, "2")] * 2
    with pytest.raises(ContractViolation, match=r"'die' did not end on all processes; .*\[\['die'\], \['sum'\]\]"):
        found.of("die")
