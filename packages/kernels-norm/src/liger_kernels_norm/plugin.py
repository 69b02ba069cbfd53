"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Op
from liger_kernels_norm.declare import row_norms


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the norms."""
    return [*row_norms.DECLARED]
