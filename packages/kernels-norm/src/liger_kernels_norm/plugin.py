"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Op
from liger_kernels_norm.declare import dyt, gated_rms_norm, group_norm, modulated_rms_norm, poly_norm, row_norms


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the norms."""
    parts = (row_norms, gated_rms_norm, modulated_rms_norm, group_norm, dyt, poly_norm)
    return [declared for part in parts for declared in part.DECLARED]
