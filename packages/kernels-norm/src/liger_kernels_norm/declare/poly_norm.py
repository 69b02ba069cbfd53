"""poly_norm."""

from liger import Option, Sweep
from liger_kernels_norm.declare.common import PARTIALS, kernel, op

OP = op(
    "poly_norm",
    options={"eps": Option(default=1e-6, values=(0.1,))},
    sizes={"R": (1, 3, 7), "H": (96, 511, 8200)},  # wider than 8192 is read twice
    production=tuple({"R": 16384, "H": h} for h in (100, 8192, 16384)),
    sweeps=(Sweep(variable="H", values=(1024, 4096, 14336), fixed={"R": 16384}),),
    model={"R": "tokens", "H": "intermediate_size"},
    peers={"liger-kernel": "liger_kernels_norm._peers:liger_poly_norm"},
    variants=("three dimensions",),
    mixed=("x", "weight", "bias"),
    reduction="H",
    module="liger_kernels_norm.modules:PolyNorm",
)

TRITON = kernel(
    "poly_norm",
    widest=131072,
    saved=("x", "weight", "rstd (R, 3) float32"),
    recomputed=("n_k = x^k * rstd_k",),
    gradients={
        "x": "sum over k of w_k * rstd_k * k * x^(k-1) * (dy - n_k * mean(dy * n_k))",
        "weight": "sums of dy * n_k over everything",
        "bias": "sum of dy over everything",
    },
    grid={
        "_forward": "whole rows, 2048 elements or one row, read twice if wider than 8192; ceil(R / rows) programs",
        "_backward": "such rows in turn, parameters' sums in registers; at most 4 programs a multiprocessor",
        "_add_partials": "the gradient of one parameter; 1 program",
    },
    precision=(
        "everything in float32, rounded once",
        f"dweight, dbias: {PARTIALS}",
    ),
)

DECLARED = (OP, TRITON)
