"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Mapping, Sequence

import liger
from liger import Kernel, Needs, Op, Option

LOSS: Mapping[str, Option] = {
    "ignore_index": Option(default=-100, values=(0,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "label_smoothing": Option(default=0.0, values=(0.1,)),
    "softcap": Option(default=None, values=(5.0,)),
    "logit_scale": Option(default=1.0, values=(0.5,)),
    "z_loss": Option(default=0.0, values=(0.01,)),
    "num_items": Option(default=None, values=(7,)),
    "check_labels": Option(default=False, values=(True,)),
}

LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    public="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy",
    reference="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_reference",
    options={
        **LOSS,
        "accum_dtype": Option(default=None),
        "workspace_mb": Option(default=None, values=(0.02,)),
    },
    inputs="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 1025, 4097)},
    reduction="V",
)

LINEAR_CROSS_ENTROPY_TORCH = Kernel(
    op="linear_cross_entropy",
    name="torch",
    fn="liger_kernels_loss._linear_cross_entropy_chunked:linear_cross_entropy_torch",
    rank=5,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the losses."""
    return [LINEAR_CROSS_ENTROPY, LINEAR_CROSS_ENTROPY_TORCH]
