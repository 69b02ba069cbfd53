"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Sweep

RMS_NORM = Op(
    name="rms_norm",
    public="liger_kernels_norm.rms_norm:rms_norm",
    reference="liger_kernels_norm.rms_norm:rms_norm_reference",
    options={
        "eps": Option(default=1e-6, values=(1e-5, 0.1)),
        "cast": Option(default="llama", values=("fp32-weight", "gemma", "none")),
        "offset": Option(default=0.0, values=(1.0,)),
    },
    inputs="liger_kernels_norm.rms_norm:rms_norm_inputs",
    sizes={"R": (1, 3, 7), "H": (1, 96, 511, 1000, 4097)},
    production=tuple({"R": 16384, "H": h} for h in (4096, 128, 576, 1024, 5376, 8192, 16384, 65536)),
    sweeps=(
        Sweep(variable="H", values=(1024, 2048, 4096, 5120, 8192, 16384), fixed={"R": 16384}),
        Sweep(variable="R", values=(131072, 524288), fixed={"H": 128}),  # q and k of an attention
    ),
    model={"R": "tokens", "H": "hidden_size"},
    variants=("fp32 weight", "weightless", "three dimensions"),
    reduction="H",
    module="liger_kernels_norm.modules:RMSNorm",
)

RMS_NORM_TRITON = Kernel(
    op="rms_norm",
    name="triton",
    fn="liger_kernels_norm._rms_norm_triton:rms_norm_triton",
    rank=10,
    needs=Needs(
        devices=("cuda", "xpu"),
        dtypes=("float32", "float16", "bfloat16"),
        max_size={"H": 65536},  # tested up to here
        interpreter=True,
    ),
    bytes="liger_kernels_norm.rms_norm:rms_norm_bytes",
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the norms."""
    return [RMS_NORM, RMS_NORM_TRITON]
