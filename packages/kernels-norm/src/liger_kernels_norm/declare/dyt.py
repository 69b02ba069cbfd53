"""dyt."""

from liger import Sweep
from liger_kernels_norm.declare.common import PARTIALS, kernel, op

OP = op(
    "dyt",
    sizes={"R": (1, 3, 7), "H": (1, 96, 511, 1030)},  # blocks of up to 1024 and 512 columns
    production=tuple({"R": 16384, "H": h} for h in (4096, 100)),
    sweeps=(Sweep(variable="H", values=(1024, 4096, 8192), fixed={"R": 16384}),),
    model={"R": "tokens", "H": "hidden_size"},
    peers={"liger-kernel": "liger_kernels_norm._peers:liger_dyt"},
    variants=("no bias", "three dimensions"),
    mixed=("x", "alpha", "weight", "bias"),
    reduction="R",
    module="liger_kernels_norm.modules:DyT",
)

TRITON = kernel(
    "dyt",
    tier="elementwise",
    saved=("x", "weight", "bias"),
    recomputed=("t = tanh(alpha * x)",),
    gradients={
        "x": "alpha * d, d = dy * weight * (1 - t^2)",
        "alpha": "sum of x * d",
        "weight": "sum over rows of dy * t",
        "bias": "sum over rows of dy",
    },
    grid={
        "_forward": "2048 elements, at most 1024 columns wide",
        "_backward": "2048 elements of the same columns in turn, sums in registers; 4 programs a multiprocessor",
        "_add_partials": "32 columns of a parameter's gradient",
    },
    precision=(
        "everything in float32, rounded once",
        "tanh by a polynomial below 0.6 and by exp above, there 1 - t^2 by exp too: nothing cancels",
        f"sums over rows: {PARTIALS}",
    ),
)

DECLARED = (OP, TRITON)
