"""gated_rms_norm."""

from liger import Option, Sweep
from liger_kernels_norm.declare.common import PARTIALS, kernel, op

OP = op(
    "gated_rms_norm",
    options={
        "eps": Option(default=1e-6, values=(0.1,)),
        "activation": Option(default="silu", values=("sigmoid",)),
        "norm_before_gate": Option(default=True, values=(False,)),
        "groups": Option(default=1),  # other values need columns that they divide: a variant has three
        "cast": Option(default="llama", values=("fp32-weight",)),
    },
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

TRITON = kernel(
    "gated_rms_norm",
    widest=131072,
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
        "_backward": "rows of one group in turn, dweight summed in registers; 1 or 2 programs a multiprocessor",
        "_row_means": "one row of more than 8192 columns; R * groups programs",
        "_backward_wide": "256 columns of every 16th block of 8 rows; ceil(H / 256) * groups x at most 16 programs",
        "_add_partials": "32 columns of dweight; ceil(H * groups / 32) programs",
    },
    precision=(
        "statistics, activation and products in float32; roundings on the way only in the forward, as cast says",
        f"dweight: {PARTIALS}",
    ),
)

DECLARED = (OP, TRITON)
