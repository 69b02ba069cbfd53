"""What kernel and model packages test with, inside and outside this repository.

    @pytest.mark.parametrize("check", checks("silu_mul/triton"))
    def test_kernel(check, device):
        check(device)

Importing this package loads no torch; each name loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liger.numerics import acc
    from liger.testing.cases import Case, cases
    from liger.testing.compiled import check_compile, opcheck
    from liger.testing.contract import assert_contract
    from liger.testing.kernels import Check, check_kernel, checks
    from liger.testing.memory import no_writes, poisoned
    from liger.testing.models import check_model, model_checks
    from liger.testing.observe import count_ops, launches, no_sync, strict
    from liger.testing.ranks import Found, Rank, run_ranks
    from liger.testing.recipe import check_recipe

_HOMES = {
    "acc": "liger.numerics",
    "assert_contract": "liger.testing.contract",
    "Case": "liger.testing.cases",
    "cases": "liger.testing.cases",
    "Check": "liger.testing.kernels",
    "check_compile": "liger.testing.compiled",
    "check_kernel": "liger.testing.kernels",
    "check_model": "liger.testing.models",
    "check_recipe": "liger.testing.recipe",
    "checks": "liger.testing.kernels",
    "count_ops": "liger.testing.observe",
    "Found": "liger.testing.ranks",
    "launches": "liger.testing.observe",
    "model_checks": "liger.testing.models",
    "no_sync": "liger.testing.observe",
    "no_writes": "liger.testing.memory",
    "opcheck": "liger.testing.compiled",
    "poisoned": "liger.testing.memory",
    "Rank": "liger.testing.ranks",
    "run_ranks": "liger.testing.ranks",
    "strict": "liger.testing.observe",
}

__all__ = [
    "Case",
    "Check",
    "Found",
    "Rank",
    "acc",
    "assert_contract",
    "cases",
    "check_compile",
    "check_kernel",
    "check_model",
    "check_recipe",
    "checks",
    "count_ops",
    "launches",
    "model_checks",
    "no_sync",
    "no_writes",
    "opcheck",
    "poisoned",
    "run_ranks",
    "strict",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'liger.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
