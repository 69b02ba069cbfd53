"""Declares linear_cross_entropy."""

from collections.abc import Mapping

from liger import Kernel, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import LOSS, ROWS, SCALE, SOFT, STATISTICS, TRITON, VARIANTS, VOCABULARIES


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


LLAMA_3_8B = {"H": 4096, "V": 128256}

LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    public="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy",
    reference="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_reference",
    options={
        **LOSS,
        "accum_dtype": Option(default=None, values=("float32",), silent=True),  # matters with many chunks
        "workspace_mb": Option(default=None, values=(0.0045,)),
        "compact": Option(default=False, values=(True,), silent=True, waits=True),
    },
    inputs="liger_kernels_loss.linear_cross_entropy:linear_cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 1025, 4097, 40961)},
    production=tuple({"N": 16384, "H": 4096, "V": v} for v in VOCABULARIES),
    sweeps=(
        Sweep(variable="N", values=(1024, 2048, 4096, 8192, 16384, 32768), fixed=LLAMA_3_8B),
        Sweep(variable="N", values=(16384,), fixed=LLAMA_3_8B, variant="frozen head"),
        Sweep(variable="V", values=(32000, 151936, 262144), fixed={"N": 8192, "H": 2048}),
        Sweep(variable="N", values=(16384,), fixed={"H": 896, "V": 151936}),  # Qwen 2 0.5B
        Sweep(variable="N", values=(8192,), fixed={"H": 2304, "V": 256000}, variant="softcap"),  # Gemma 2 2B
    ),
    model={"N": "tokens", "H": "hidden_size", "V": "vocab_size"},
    peers={
        "liger-kernel": "liger_kernels_loss._peers:liger_linear_cross_entropy",
        "liger-kernel x8": "liger_kernels_loss._peers:liger_linear_cross_entropy_x8",
        "quack": "liger_kernels_loss._peers:quack_linear_cross_entropy",
        "cut-cross-entropy": "liger_kernels_loss._peers:cut_cross_entropy",
    },
    variants=(*VARIANTS, "bias", "softcap", "frozen head"),
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
    profile=linear_profile({"_losses": ROWS, "_soft_losses": SOFT, "_scale": SCALE}),
    measured=("sm90",),
)

DECLARED: list[Op | Kernel] = [LINEAR_CROSS_ENTROPY, LINEAR_CROSS_ENTROPY_TORCH, LINEAR_CROSS_ENTROPY_TRITON]
