"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Mapping, Sequence

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep

LOSS: Mapping[str, Option] = {
    "ignore_index": Option(default=-100, values=(0,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "label_smoothing": Option(default=0.0, values=(0.1,)),
    "softcap": Option(default=None, values=(5.0,)),
    "logit_scale": Option(default=1.0, values=(0.5,)),
    "z_loss": Option(default=0.0, values=(0.01,)),
    "num_items": Option(default=None, values=(7,)),
    "check_labels": Option(default=False, values=(True,), silent=True, waits=True),
}

# Of Llama 3, Llama 2, Qwen 3 and Gemma 3, and two with one token added, as users do: rows that are not aligned.
VOCABULARIES = (128256, 32000, 151936, 262144, 128257, 262145)
VARIANTS = ("ignored rows", "all ignored", "class weights")
TRITON = Needs(devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), interpreter=True)

ROWS = "one row of logits, read once for the statistics and again for the gradient; N programs, persistent if very wide"
DLOGITS = "p * ((1 - s) * w_y + s / V * sum(w) + 2 * z_loss * lse) - s / V * w - [c = y] * (1 - s) * w_y"
STATISTICS = (
    "logits are transformed in float32; the largest one is kept apart from the sum of exponentials",
    "lse - z_y as (top - z_y) + log(total), so that a log-prob is never above 0",
)


def linear_profile(grid: Mapping[str, str]) -> Profile:
    """The chunk loop is one for all backends, which differ in what they launch."""
    return Profile(
        tier="fused",
        saved=("hidden", "weight", "target", "dhidden like hidden", "dweight like weight"),
        recomputed=("with reduction='none' everything: only hidden, weight and target are saved then",),
        gradients={
            "hidden": "dlogits @ weight",
            "weight": "dlogits^T @ hidden, summed over chunks of rows",
            "bias": "sum over rows of dlogits",
        },
        grid=grid,
        precision=(
            *STATISTICS,
            "logits and dlogits are rounded to hidden's dtype, once each",
            "dweight over chunks: float32, or at most 4 roundings in the weight's dtype (accum_dtype)",
        ),
    )


CROSS_ENTROPY = Op(
    name="cross_entropy",
    public="liger_kernels_loss.cross_entropy:cross_entropy",
    reference="liger_kernels_loss.cross_entropy:cross_entropy_reference",
    options=LOSS,
    inputs="liger_kernels_loss.cross_entropy:cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "V": (1, 97, 1025, 4097, 40961)},
    production=tuple({"N": 16384, "V": v} for v in VOCABULARIES),
    sweeps=(Sweep(variable="V", values=(32000, 128256, 262144), fixed={"N": 4096}),),
    model={"V": "vocab_size"},
    peers={
        "liger-kernel": "liger_kernels_loss._peers:liger_cross_entropy",
        "quack": "liger_kernels_loss._peers:quack_cross_entropy",
    },
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
    profile=Profile(
        tier="reduction",
        saved=("logits", "target", "top (N,) float32", "total (N,) float32"),
        recomputed=("p = exp(z - top) / total",),
        gradients={"logits": f"dy * dz/dlogits * ({DLOGITS})"},
        grid={"_losses": ROWS, "_backward": "up to 8192 columns of one row; N x ceil(V / 8192) programs"},
        precision=(*STATISTICS, "the gradient is rounded once, to the logits' dtype"),
    ),
    measured=("sm90",),
)

LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    public="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy",
    reference="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_reference",
    options={
        **LOSS,
        "accum_dtype": Option(default=None, values=("float32",), silent=True),  # matters with many chunks
        "workspace_mb": Option(default=None, values=(0.0045,)),
    },
    inputs="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 1025, 4097, 40961)},
    production=tuple({"N": 16384, "H": 4096, "V": v} for v in VOCABULARIES),
    sweeps=(Sweep(variable="N", values=(4096, 8192, 16384), fixed={"H": 4096, "V": 128256}),),
    model={"N": "tokens", "H": "hidden_size", "V": "vocab_size"},
    peers={
        "liger-kernel": "liger_kernels_loss._peers:liger_linear_cross_entropy",
        "quack": "liger_kernels_loss._peers:quack_linear_cross_entropy",
        "cut-cross-entropy": "liger_kernels_loss._peers:cut_cross_entropy",
    },
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
    profile=linear_profile({}),
)

LINEAR_CROSS_ENTROPY_TRITON = Kernel(
    op="linear_cross_entropy",
    name="triton",
    fn="liger_kernels_loss._linear_cross_entropy_triton:linear_cross_entropy_triton",
    rank=10,
    needs=TRITON,
    bytes="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_bytes",
    flops="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_flops",
    profile=linear_profile({"_losses": ROWS, "_scale": "4096 elements of a gradient; ceil(n / 4096) programs"}),
    measured=("sm90",),
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
