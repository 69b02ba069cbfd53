"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep
from liger_kernels_norm.declare import dyt, gated_rms_norm, group_norm, modulated_rms_norm, poly_norm

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
    sizes={"R": (1, 3, 7, 11), "H": (1, 96, 511, 9001, 1000, 4097, 40961)},  # other kernels beyond 8192 and 32768
    production=tuple({"R": 16384, "H": h} for h in (4096, 128, 576, 1024, 5376, 8192, 16384, 65536)),
    sweeps=(
        Sweep(variable="H", values=(1024, 2048, 4096, 5120, 8192, 16384), fixed={"R": 16384}),
        Sweep(variable="R", values=(131072, 524288), fixed={"H": 128}),  # q and k of an attention
    ),
    model={"R": "tokens", "H": "hidden_size"},
    peers={
        "F.rms_norm": "liger_kernels_norm._peers:torch_rms_norm",
        "liger-kernel": "liger_kernels_norm._peers:liger_rms_norm",
        "quack": "liger_kernels_norm._peers:quack_rms_norm",
    },
    variants=("weightless", "gemma", "three dimensions"),
    mixed=("x", "weight"),
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
    profile=Profile(
        tier="reduction",
        saved=("x", "weight", "rstd (R,) float32"),
        recomputed=("xhat = x * rstd",),
        gradients={
            "x": "(g - xhat * mean(g * xhat)) * rstd, g = dy * (offset + weight)",
            "weight": "sum over rows of dy * xhat, xhat rounded as in the forward",
        },
        grid={
            "_forward": "whole rows, 2048 elements or one row; ceil(R / rows) programs",
            "_forward_wide": "one row of more than 32768 columns, read twice; R programs",
            "_backward": "rows in turn, dweight summed in registers; at most 4 programs a multiprocessor",
            "_backward_dx_wide": "one row of more than 8192 columns, read twice; R programs",
            "_backward_dw_wide": "256 columns of every 16th block of 8 rows; ceil(H / 256) x at most 16 programs",
        },
        precision=(
            "the mean of squares and rstd in float32; with cast='none' each step is rounded to x's dtype",
            "xhat is rounded to x's dtype before the weight with cast='llama' and 'none', and nowhere else",
            "the offset is added to the weight in float32",
            "dweight: partial sums in float32, one per program, added in a fixed order and rounded once",
        ),
    ),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the norms."""
    more = (gated_rms_norm, modulated_rms_norm, group_norm, dyt, poly_norm)
    return [RMS_NORM, RMS_NORM_TRITON, *(declared for op in more for declared in op.DECLARED)]
