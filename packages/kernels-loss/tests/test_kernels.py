"""Every kernel of the package: the contract and all behaviours."""

from __future__ import annotations

import pytest

from liger.testing import Check, checks

KERNELS = (
    "cross_entropy/triton",
    "linear_cross_entropy/torch",
    "linear_cross_entropy/triton",
    "jsd/triton",
    "tvd/triton",
    "cosine_distance/triton",
    "kl_div/triton",
)


@pytest.mark.parametrize("check", checks(*KERNELS))
def test_kernel(check: Check, device: str) -> None:
    check(device)
