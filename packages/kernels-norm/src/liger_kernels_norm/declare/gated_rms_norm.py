"""gated_rms_norm."""

from liger import Kernel, Needs, Op, Option, Profile, Sweep

OP = Op(
    name="gated_rms_norm",
    public="liger_kernels_norm.gated_rms_norm:gated_rms_norm",
    reference="liger_kernels_norm.gated_rms_norm:gated_rms_norm_reference",
    options={
        "eps": Option(default=1e-6, values=(0.1,)),
        "activation": Option(default="silu", values=("sigmoid",)),
        "norm_before_gate": Option(default=True, values=(False,)),
        "groups": Option(default=1),  # other values need columns that they divide: a variant has three
        "cast": Option(default="llama", values=("fp32-weight",)),
    },
    inputs="liger_kernels_norm.gated_rms_norm:gated_rms_norm_inputs",
    sizes={"R": (1, 3, 7), "H": (96, 511, 8200)},  # H: columns of a group; other kernels beyond 8192
    production=tuple({"R": 16384, "H": h} for h in (128, 8192, 16384)),
    sweeps=(
        Sweep(variable="H", values=(2048, 4096, 8192), fixed={"R": 16384}),
        Sweep(variable="R", values=(131072, 524288), fixed={"H": 128}),  # heads of a linear attention
    ),
    model={"R": "tokens", "H": "hidden_size"},
    variants=("weightless", "mamba2", "kimi"),
    mixed=("x", "weight"),
    reduction="H",
    module="liger_kernels_norm.modules:GatedRMSNorm",
)

TRITON = Kernel(
    op="gated_rms_norm",
    name="triton",
    fn="liger_kernels_norm._gated_rms_norm_triton:gated_rms_norm_triton",
    rank=10,
    needs=Needs(
        devices=("cuda", "xpu"),
        dtypes=("float32", "float16", "bfloat16"),
        max_size={"H": 65536},  # tested up to here
        interpreter=True,
    ),
    bytes="liger_kernels_norm.gated_rms_norm:gated_rms_norm_bytes",
    profile=Profile(
        tier="reduction",
        saved=("x", "gate", "weight", "rstd (R,) float32"),
        recomputed=("act(gate) and its derivative", "xhat = x * rstd, or x * act(gate) * rstd"),
        gradients={
            "x": "(z * weight - xhat * mean(z * weight * xhat)) * rstd, z = dy * act(gate); norm last: act last",
            "gate": "dy * weight * xhat * act'(gate); norm last: what comes out of the norm * x * act'(gate)",
            "weight": "sum over rows of z * xhat",
        },
        grid={
            "_forward": "whole rows, 2048 elements or one row of a group; ceil(R * groups / rows) programs",
            "_forward_wide": "one row of more than 8192 columns, read twice; R * groups programs",
            "_backward": "rows of one group in turn, dweight summed in registers; 2 programs a multiprocessor",
            "_row_means": "one row of more than 8192 columns; R * groups programs",
            "_backward_wide": "256 columns of every 16th block of 8 rows; ceil(H / 256) * groups x at most 16 programs",
            "_add_partials": "32 columns of dweight; ceil(H * groups / 32) programs",
        },
        precision=(
            "statistics, activation and products in float32; roundings on the way only in the forward, as cast says",
            "dweight: partial sums in float32, one per program, added in a fixed order and rounded once",
        ),
    ),
)

DECLARED = (OP, TRITON)
