"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Op
from liger_kernels_loss.declare import (
    cross_entropy,
    divergences,
    linear_cross_entropy,
    linear_distillation,
    linear_token_logprobs,
    vocab_parallel,
)

PARTS = (
    cross_entropy,
    linear_cross_entropy,
    linear_token_logprobs,
    divergences,
    linear_distillation,
    vocab_parallel,
)
DECLARED: list[Op | Kernel] = [declared for part in PARTS for declared in part.DECLARED]


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the losses."""
    return [*DECLARED]
