"""Every kernel of the package: the contract and all behaviours."""

from __future__ import annotations

import pytest

from liger import Kernel
from liger.testing import Check, checks
from liger_kernels_loss.plugin import DECLARED

KERNELS = [declared.id for declared in DECLARED if isinstance(declared, Kernel)]


@pytest.mark.parametrize("check", checks(*KERNELS))
def test_kernel(check: Check, device: str) -> None:
    check(device)
