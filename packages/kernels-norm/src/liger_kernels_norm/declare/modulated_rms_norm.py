"""modulated_rms_norm."""

from liger import Option, Sweep
from liger_kernels_norm.declare.common import kernel, op

OP = op(
    "modulated_rms_norm",
    options={
        "eps": Option(default=1e-6, values=(0.1,)),
        "cast": Option(default="llama", values=("fp32-weight",)),
    },
    sizes={"B": (1, 2, 3), "T": (1, 5, 4), "H": (96, 511, 8200)},  # other kernels beyond 8192
    production=tuple({"B": 16, "T": 1024, "H": h} for h in (4096, 100, 8192, 16384)),
    sweeps=(
        Sweep(variable="H", values=(1152, 3072, 4096), fixed={"B": 16, "T": 1024}),
        Sweep(variable="B", values=(4, 64), fixed={"T": 1024, "H": 3072}),
    ),
    model={"T": "tokens", "H": "hidden_size"},
    peers={"liger-kernel": "liger_kernels_norm._peers:liger_modulated_rms_norm"},
    variants=("weightless", "tokens"),
    mixed=("x", "scale", "shift", "weight"),
    reduction="H",
    module="liger_kernels_norm.modules:ModulatedRMSNorm",
)

TRITON = kernel(
    "modulated_rms_norm",
    widest=131072,
    saved=("x", "scale", "weight", "rstd (B * T,) float32"),
    recomputed=("xhat = x * rstd",),
    gradients={
        "x": "(g - xhat * mean(g * xhat)) * rstd, g = dy * (1 + scale) * weight",
        "scale": "weight * P, P = sum over the sample's rows of dy * xhat",
        "shift": "sum over the sample's rows of dy",
        "weight": "sum over samples of (1 + scale) * P",
    },
    grid={
        "_forward": "two rows, 4096 elements of narrow ones, one wider than 8192 twice; ceil(B * T / rows) programs",
        "_backward": "rows of one sample in turn, sums in registers; 1 or 4 programs a multiprocessor or one a sample",
        "_row_means": "one row of more than 8192 columns; B * T programs",
        "_add_splits": "32 to 1024 columns of a sample, its partial sums to its gradients; 32 columns of dweight",
    },
    precision=(
        "statistics in float32; roundings on the way only in the forward, as cast says",
        "sums over rows: partial sums in float32, added in a fixed order and rounded once",
    ),
)

DECLARED = (OP, TRITON)
