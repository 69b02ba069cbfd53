"""group_norm."""

from liger import Option, Sweep
from liger_kernels_norm.declare.common import kernel, op

OP = op(
    "group_norm",
    options={
        "num_groups": Option(default=32, values=(1,)),
        "eps": Option(default=1e-5, values=(0.1,)),
    },
    # G groups of C channels and S positions; programs share groups of more than 4096 elements
    sizes={"N": (1, 2), "G": (2, 4), "C": (8, 20, 16), "S": (1, 36, 260)},
    production=(
        {"N": 16, "G": 32, "C": 10, "S": 4096},
        {"N": 16, "G": 32, "C": 40, "S": 64},
        {"N": 1, "G": 32, "C": 4, "S": 262144},
    ),
    sweeps=(
        Sweep(variable="S", values=(1024, 4096, 16384), fixed={"N": 16, "G": 32, "C": 10}),
        Sweep(variable="S", values=(65536, 262144), fixed={"N": 1, "G": 32, "C": 16}),  # images in a decoder
    ),
    peers={
        "F.group_norm": "liger_kernels_norm._peers:torch_group_norm",
        "liger-kernel": "liger_kernels_norm._peers:liger_group_norm",
    },
    variants=("no parameters", "no bias", "image"),
    mixed=("x", "weight", "bias"),
    reduction="S",
    module="liger_kernels_norm.modules:GroupNorm",
)

TRITON = kernel(
    "group_norm",
    saved=("x", "weight", "mean (N * G,) float32", "rstd (N * G,) float32"),
    recomputed=("xhat = (x - mean) * rstd",),
    gradients={
        "x": "(dy * weight - mean of dy * weight - xhat * mean of dy * weight * xhat) * rstd, means over the group",
        "weight": "sum over samples and positions of dy * xhat",
        "bias": "sum over samples and positions of dy",
    },
    grid={
        "_forward": "a whole group, read twice; N * G programs, if those are many or groups are small",
        "_statistics": "every P-th tile of 4096 or 8192 elements of a group; N * G x P, 1 or 4 a multiprocessor",
        "_apply": "the same",
        "_backward": "a whole group, read twice; N * G programs",
        "_channel_sums": "every P-th tile of a block of channels",
        "_dx": "every P-th tile of a group",
        "_add_partials": "32 channels, over samples or programs",
    },
    precision=(
        "statistics in float32 by Welford's method in each place of a tile, merged in a fixed order",
        "sums for dweight and dbias in float32, by sample and channel, added in a fixed order and rounded once",
    ),
)

DECLARED = (OP, TRITON)
