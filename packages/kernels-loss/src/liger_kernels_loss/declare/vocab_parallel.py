"""Declares vocab_parallel_cross_entropy and vocab_parallel_linear_cross_entropy."""

from collections.abc import Mapping

from liger import Kernel, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import DLOGITS, LOSS, SCALE, STATISTICS, TRITON, VARIANTS

OPTIONS: Mapping[str, Option] = {
    "group": Option(default=None, values=("self",), silent=True),
    "shards": Option(default=None),  # values depend on V: a variant has them
    **LOSS,
}
SHARDS = (16032, 32064, 18992, 18991)  # columns of a rank: of 128256 on 8 and 4, of 151936 on 8; and an odd number
GRID = {
    "_statistics": "one row of this rank's columns, read once; N programs",
    "_gradient": "4096 columns of a row, with probabilities or an odd V 2048; N x ceil(V / 4096) programs",
}
PRECISION = (
    *STATISTICS,
    "sums of a shard are relative to its own maximum, and brought to that of all ranks in float32",
)

CROSS_ENTROPY = Op(
    name="vocab_parallel_cross_entropy",
    public="liger_kernels_loss.vocab_parallel_cross_entropy:vocab_parallel_cross_entropy",
    reference="liger_kernels_loss.vocab_parallel_cross_entropy:vocab_parallel_cross_entropy_reference",
    options=OPTIONS,
    inputs="liger_kernels_loss.vocab_parallel_cross_entropy:vocab_parallel_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "V": (1, 97, 8194)},
    production=tuple({"N": 16384, "V": v} for v in SHARDS),
    sweeps=(Sweep(variable="V", values=(16032, 32064, 64128), fixed={"N": 8192}),),
    variants=(*VARIANTS, "shards"),
    reduction="V",
)


def _cross_entropy_profile(grid: Mapping[str, str]) -> Profile:
    return Profile(
        tier="reduction",
        saved=("logits", "target", "pull (N,) float32", "top (N,) float32", "total (N,) float32"),
        recomputed=("exp(z - top) from the logits",),
        gradients={"logits": f"dy * dz/dlogits * ({DLOGITS}), for this rank's columns"},
        grid=grid,
        precision=(*PRECISION, "the gradient is rounded once, to the logits' dtype"),
    )


CROSS_ENTROPY_TORCH = Kernel(
    op="vocab_parallel_cross_entropy",
    name="torch",
    fn="liger_kernels_loss._vocab_parallel_torch:vocab_parallel_cross_entropy_torch",
    rank=5,
    bytes="liger_kernels_loss.vocab_parallel_cross_entropy:vocab_parallel_cross_entropy_bytes",
    profile=_cross_entropy_profile({}),
)

CROSS_ENTROPY_TRITON = Kernel(
    op="vocab_parallel_cross_entropy",
    name="triton",
    fn="liger_kernels_loss._vocab_parallel_triton:vocab_parallel_cross_entropy_triton",
    rank=10,
    needs=TRITON,
    bytes="liger_kernels_loss.vocab_parallel_cross_entropy:vocab_parallel_cross_entropy_bytes",
    profile=_cross_entropy_profile(GRID),
)

LINEAR = Op(
    name="vocab_parallel_linear_cross_entropy",
    public="liger_kernels_loss.vocab_parallel_linear_cross_entropy:vocab_parallel_linear_cross_entropy",
    reference="liger_kernels_loss.vocab_parallel_linear_cross_entropy:vocab_parallel_linear_cross_entropy_reference",
    options={
        **OPTIONS,
        "reduce_hidden_gradient": Option(default=True, values=(False,), silent=True),
        "accum_dtype": Option(default=None, values=("float32",), silent=True),  # matters with many chunks
        "workspace_mb": Option(default=None, values=(0.0045,), silent=True),
        "compact": Option(default=False, values=(True,), silent=True, waits=True),
    },
    inputs="liger_kernels_loss.vocab_parallel_linear_cross_entropy:vocab_parallel_linear_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 8194)},
    production=tuple({"N": 16384, "H": 4096, "V": v} for v in SHARDS),
    sweeps=(Sweep(variable="N", values=(4096, 8192, 16384), fixed={"H": 4096, "V": 16032}),),
    model={"N": "tokens", "H": "hidden_size"},
    variants=(*VARIANTS, "bias", "shards"),
    reduction="V",
)


def _linear_profile(grid: Mapping[str, str]) -> Profile:
    return Profile(
        tier="fused",
        saved=("hidden", "weight", "target", "dhidden like hidden", "dweight like weight"),
        recomputed=("with reduction='none' everything: only hidden, weight and target are saved then",),
        gradients={
            "hidden": "dlogits @ weight, summed over the ranks",
            "weight": "dlogits^T @ hidden, summed over chunks of rows",
            "bias": "sum over rows of dlogits",
        },
        grid=grid,
        precision=(
            *PRECISION,
            "logits, dlogits and a rank's part of dhidden are rounded to hidden's dtype, once each",
            "dweight over chunks: float32, or at most 4 roundings in the weight's dtype (accum_dtype)",
        ),
    )


LINEAR_TORCH = Kernel(
    op="vocab_parallel_linear_cross_entropy",
    name="torch",
    fn="liger_kernels_loss._vocab_parallel_torch:vocab_parallel_linear_cross_entropy_torch",
    rank=5,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
    profile=_linear_profile({}),
)

LINEAR_TRITON = Kernel(
    op="vocab_parallel_linear_cross_entropy",
    name="triton",
    fn="liger_kernels_loss._vocab_parallel_triton:vocab_parallel_linear_cross_entropy_triton",
    rank=10,
    needs=TRITON,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
    profile=_linear_profile({**GRID, "_scale": SCALE}),
)

DECLARED: list[Op | Kernel] = [
    CROSS_ENTROPY,
    CROSS_ENTROPY_TORCH,
    CROSS_ENTROPY_TRITON,
    LINEAR,
    LINEAR_TORCH,
    LINEAR_TRITON,
]
