"""The vocabulary-parallel kernels where one process holds all columns: the contract and all behaviours."""

from __future__ import annotations

import pytest

from liger.testing import Check, checks

OPS = ("vocab_parallel_cross_entropy", "vocab_parallel_linear_cross_entropy")
KERNELS = [f"{op}/{kernel}" for op in OPS for kernel in ("torch", "triton")]


@pytest.mark.parametrize("check", checks(*KERNELS))
def test_kernel(check: Check, device: str) -> None:
    check(device)
