"""Declares the distillation losses with heads: linear_jsd, linear_kl and linear_topk_kl."""

from collections.abc import Mapping

from liger import Kernel, Needs, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import ROWS, SCALE, STATISTICS, TRITON
from liger_kernels_loss.declare.divergences import DIVERGENCES, LOGS

OPS = "liger_kernels_loss."
SHARED = {
    "temperature": Option(default=1.0, values=(2.0,)),
    "ignore_index": Option(default=-100, values=(0,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "num_items": Option(default=None, values=(7,)),
    "accum_dtype": Option(default=None, values=("float32",), silent=True),  # matters with many chunks
    "workspace_mb": Option(default=None, values=(0.0004,)),
}
HARD = Option(default=0.0, values=(0.3,))
SWEEPS = (Sweep(variable="N", values=(4096, 8192, 16384), fixed={"H": 4096, "T": 4096, "V": 128256}),)
MODEL = {"N": "tokens", "H": "hidden_size", "T": "hidden_size", "V": "vocab_size"}
STUDENT = {
    "student_hidden": "dlogits @ student_weight, dlogits = those of jsd; with hard_weight h (1 - h) times those, "
    "plus h * (softmax(z) - [c = y])",
    "student_weight": "dlogits^T @ student_hidden, summed over chunks of rows",
    "student_bias": "sum over rows of dlogits",
}
PRODUCTS = (
    "logits are rounded to their head's dtype, dlogits to the student's; with hard_weight both parts and their sum",
    "dweight over chunks: float32, or at most 4 roundings in the weight's dtype (accum_dtype)",
)

LINEAR_JSD = Op(
    name="linear_jsd",
    public=OPS + "linear_jsd:linear_jsd",
    reference=OPS + "linear_jsd:linear_jsd_reference",
    options={"beta": Option(default=0.5, values=(0.0, 1.0, 0.1)), **SHARED, "hard_weight": HARD},
    inputs=OPS + "linear_jsd:linear_jsd_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "T": (16,), "V": (1, 97, 4098)},
    production=tuple({"N": 16384, "H": 4096, "T": 4096, "V": v} for v in (128256, 151936, 128257)),
    sweeps=SWEEPS,
    model=MODEL,
    peers={"liger-kernel": "liger_kernels_loss._peers:liger_linear_jsd"},
    variants=("ignored rows", "all ignored", "no target", "bias"),
    reduction="V",
    module="liger_kernels_loss.modules:LinearJSDLoss",
)

LINEAR_KL = Op(  # linear_jsd under another name: sizes and variants that show that its arguments arrive
    name="linear_kl",
    public=OPS + "linear_kl:linear_kl",
    reference=OPS + "linear_kl:linear_kl_reference",
    options={"reverse": Option(default=False, values=(True,)), **SHARED, "hard_weight": HARD},
    inputs=OPS + "linear_jsd:linear_jsd_inputs",
    sizes={"N": (1, 3, 7), "H": (8,), "T": (16,), "V": (97,)},
    production=({"N": 16384, "H": 4096, "T": 4096, "V": 128256},),
    sweeps=SWEEPS,
    model=MODEL,
    variants=("bias",),
    reduction="V",
)

LINEAR_TOPK_KL = Op(
    name="linear_topk_kl",
    public=OPS + "linear_topk_kl:linear_topk_kl",
    reference=OPS + "linear_topk_kl:linear_topk_kl_reference",
    options={"tail": Option(default="ignore", values=("lump",)), **SHARED},
    inputs=OPS + "linear_topk_kl:linear_topk_kl_inputs",
    sizes={"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 4097), "k": (1, 8, 20)},
    production=tuple({"N": 16384, "H": 4096, "V": v, "k": 64} for v in (128256, 128257)),
    sweeps=(Sweep(variable="N", values=(4096, 8192, 16384), fixed={"H": 4096, "V": 128256, "k": 64}),),
    model=MODEL,
    variants=("ignored rows", "all ignored", "no target", "bias"),
    reduction="V",
)


def kernels(op: Op, maths: str, profiles: Mapping[str, Profile]) -> list[Kernel]:
    """Its torch and Triton kernels; bytes and flops are those of the op ``maths``."""
    return [
        Kernel(
            op=op.name,
            name=name,
            fn=f"{OPS}_linear_cross_entropy_{name}:{op.name}_{name}",
            rank=rank,
            needs=TRITON if name == "triton" else Needs(),
            bytes=f"{OPS}{maths}:{maths}_bytes",
            flops=f"{OPS}{maths}:{maths}_flops",
            profile=profiles[name],
            measured=("sm90",) if name == "triton" and op is not LINEAR_TOPK_KL else (),
        )
        for name, rank in (("torch", 5), ("triton", 10))
    ]


def pair_profile(grid: Mapping[str, str], precision: str) -> Profile:
    """The chunk loop is one for all backends, which differ in what they launch."""
    return Profile(
        tier="fused",
        saved=(
            *("student_hidden", "student_weight", "teacher_hidden", "teacher_weight", "target"),
            *("dstudent_hidden like student_hidden", "dstudent_weight like student_weight"),
        ),
        recomputed=("with reduction='none' everything: only the arguments are saved then",),
        gradients=STUDENT,
        grid=grid,
        precision=(precision, *PRODUCTS),
    )


PAIRS = {
    "torch": pair_profile({}, "log-probs and their differences in float32"),
    "triton": pair_profile(
        {"divergences": DIVERGENCES, "_losses": "with hard_weight: as in linear_cross_entropy", "_scale": SCALE}, LOGS
    ),
}


def topk_profile(grid: Mapping[str, str]) -> Profile:
    """As ``pair_profile``."""
    return Profile(
        tier="fused",
        saved=(
            *("hidden", "weight", "topk_logprobs", "topk_indices", "target"),
            *("dhidden like hidden", "dweight like weight"),
        ),
        recomputed=("with reduction='none' everything: only the arguments are saved then",),
        gradients={
            "hidden": "dlogits @ weight, dlogits = (q * sum(p) - p) / T; tail='lump': (q - p) / T in the k classes, "
            "q * (1 - P / Q) / T outside",
            "weight": "dlogits^T @ hidden, summed over chunks of rows",
            "bias": "sum over rows of dlogits",
        },
        grid=grid,
        precision=(
            STATISTICS[0],
            "in the k classes log q, loss and gradient in float32; outside, with tail='lump', dlogits is rounded twice",
            "logits and dlogits are rounded to hidden's dtype",
            PRODUCTS[1],
        ),
    )


TOPK = {"torch": topk_profile({}), "triton": topk_profile({"_losses": ROWS, "_scale": SCALE})}
DECLARED: list[Op | Kernel] = [
    LINEAR_JSD,
    *kernels(LINEAR_JSD, "linear_jsd", PAIRS),
    LINEAR_KL,
    *kernels(LINEAR_KL, "linear_jsd", PAIRS),
    LINEAR_TOPK_KL,
    *kernels(LINEAR_TOPK_KL, "linear_topk_kl", TOPK),
]
