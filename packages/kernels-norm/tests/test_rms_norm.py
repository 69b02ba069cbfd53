"""rms_norm: the contract and all behaviours."""

from __future__ import annotations

import pytest

from liger.testing import Check, checks


@pytest.mark.parametrize("check", checks("rms_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)
