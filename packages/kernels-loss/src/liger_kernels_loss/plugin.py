"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Mapping, Sequence

import liger
from liger import Kernel, Needs, Op, Option, Sweep

LOSS: Mapping[str, Option] = {
    "ignore_index": Option(default=-100, values=(0,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "label_smoothing": Option(default=0.0, values=(0.1,)),
    "softcap": Option(default=None, values=(5.0,)),
    "logit_scale": Option(default=1.0, values=(0.5,)),
    "z_loss": Option(default=0.0, values=(0.01,)),
    "num_items": Option(default=None, values=(7,)),
    "check_labels": Option(default=False),  # changes no number, so its tests are by hand
}

# Of Llama 3, Llama 2, Qwen 3 and Gemma 3, and two with one token added, as users do: rows that are not aligned.
VOCABULARIES = (128256, 32000, 151936, 262144, 128257, 262145)
VARIANTS = ("ignored rows", "all ignored", "class weights")
TRITON = Needs(devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), interpreter=True)

CROSS_ENTROPY = Op(
    name="cross_entropy",
    public="liger_kernels_loss.cross_entropy:cross_entropy",
    reference="liger_kernels_loss.cross_entropy:cross_entropy_reference",
    options=LOSS,
    inputs="liger_kernels_loss.cross_entropy:cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "V": (1, 97, 1025, 4097, 32001)},
    production=tuple({"N": 16384, "V": v} for v in VOCABULARIES),
    sweeps=(Sweep(variable="V", values=(32000, 128256, 262144), fixed={"N": 4096}),),
    model={"V": "vocab_size"},
    variants=VARIANTS,
    reduction="V",
    module="liger_kernels_loss.modules:CrossEntropyLoss",
)

CROSS_ENTROPY_TRITON = Kernel(
    op="cross_entropy",
    name="triton",
    fn="liger_kernels_loss._cross_entropy_triton:cross_entropy_triton",
    rank=10,
    needs=TRITON,
    bytes="liger_kernels_loss.cross_entropy:cross_entropy_bytes",
)

LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    public="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy",
    reference="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_reference",
    options={
        **LOSS,
        "accum_dtype": Option(default=None),  # matters with many chunks only, so its tests are by hand
        "workspace_mb": Option(default=None, values=(0.0045,)),
    },
    inputs="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 1025, 4097, 32001)},
    production=tuple({"N": 16384, "H": 4096, "V": v} for v in VOCABULARIES),
    sweeps=(Sweep(variable="N", values=(4096, 8192, 16384), fixed={"H": 4096, "V": 128256}),),
    model={"N": "tokens", "H": "hidden_size", "V": "vocab_size"},
    variants=(*VARIANTS, "bias"),
    reduction="V",
    module="liger_kernels_loss.modules:LinearCrossEntropyLoss",
)

LINEAR_CROSS_ENTROPY_TORCH = Kernel(
    op="linear_cross_entropy",
    name="torch",
    fn="liger_kernels_loss._linear_cross_entropy_torch:linear_cross_entropy_torch",
    rank=5,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
)

LINEAR_CROSS_ENTROPY_TRITON = Kernel(
    op="linear_cross_entropy",
    name="triton",
    fn="liger_kernels_loss._linear_cross_entropy_triton:linear_cross_entropy_triton",
    rank=10,
    needs=TRITON,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the losses."""
    return [
        CROSS_ENTROPY,
        CROSS_ENTROPY_TRITON,
        LINEAR_CROSS_ENTROPY,
        LINEAR_CROSS_ENTROPY_TORCH,
        LINEAR_CROSS_ENTROPY_TRITON,
    ]
