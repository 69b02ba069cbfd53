"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Op
from liger_kernels_norm.declare import dyt, gated_rms_norm, group_norm, modulated_rms_norm, poly_norm, row_norms

PARTS = (row_norms, gated_rms_norm, modulated_rms_norm, group_norm, dyt, poly_norm)
DECLARED: list[Op | Kernel] = [declared for part in PARTS for declared in part.DECLARED]


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the norms."""
    return [*DECLARED]
