"""Declares the losses between a student and a teacher."""

from liger import Kernel, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import SCALE, TRITON

ROWS = {
    "ignore_index": Option(default=-100, values=(1,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "num_items": Option(default=None, values=(7,)),
}
SIZES = {"N": (1, 3, 7), "V": (1, 97, 1025, 4098)}  # the last two take two blocks, odd and even
PRODUCTION = tuple({"N": 4096, "V": v} for v in (128256, 32000, 262144, 129919))
SWEEPS = (Sweep(variable="V", values=(32000, 128256, 151936, 262144), fixed={"N": 4096}),)
VARIANTS = ("ignored rows", "no target", "masked")
PAIR = ("student", "teacher", "target", "dstudent like student")
AGAIN = ("all of it in float16, with reduction='none', and for a second backward",)
DIVERGENCES = (
    "two rows of logits, read for their statistics, for the loss and the gradient's sum, and for the gradient (forward "
    "KL: for both at once); 1 to 4 persistent programs a multiprocessor, as many as keep their rows in the cache"
)
EARLY = (
    "the gradient is made in the forward, 6 bytes a logit in 16 bit with all reads but the first from the cache, and "
    "scaled in place where dy is not 1 (10 bytes, what computing it in the backward always takes). In float16 and with "
    "reduction='none' it is computed in the backward, as is any further one"
)
LOGS = "log2 p = (z - top) * scale - log2(total) in float32, and differences of those, whatever the size of the logits"
ROUND = "the gradient is rounded to the student's dtype: once, or twice if dy is no power of two"

JSD = Op(
    name="jsd",
    public="liger_kernels_loss.jsd:jsd",
    reference="liger_kernels_loss.jsd:jsd_reference",
    options={
        "beta": Option(default=0.5, values=(0.0, 1.0, 0.1)),
        "temperature": Option(default=1.0, values=(2.0,)),
        **ROWS,
    },
    inputs="liger_kernels_loss._pairs:pair_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model={"V": "vocab_size"},
    peers={"liger-kernel": "liger_kernels_loss._peers:liger_jsd"},
    mixed=("teacher",),
    variants=VARIANTS,
    reduction="V",
    module="liger_kernels_loss.modules:JSDLoss",
)

JSD_TRITON = Kernel(
    op="jsd",
    name="triton",
    fn="liger_kernels_loss._pairs_triton:jsd_triton",
    rank=10,
    measured=("sm90",),
    needs=TRITON,
    bytes="liger_kernels_loss._pairs:pair_bytes",
    profile=Profile(
        tier="reduction",
        saved=PAIR,
        recomputed=AGAIN,
        gradients={
            "student": "dy * q / T * (g - sum(q * g)), g = (1 - beta) * (log q - log m); beta=0: dy * (q - p) / T; "
            "beta=1: g = log q - log p"
        },
        grid={"divergences": DIVERGENCES, "_scale": SCALE},
        precision=(
            LOGS,
            "log q - log m from the difference log p - log q, whose exponential is at most 1",
            EARLY,
            ROUND,
        ),
    ),
)

TVD = Op(
    name="tvd",
    public="liger_kernels_loss.tvd:tvd",
    reference="liger_kernels_loss.tvd:tvd_reference",
    options={"temperature": Option(default=1.0, values=(2.0,)), **ROWS},
    inputs="liger_kernels_loss.tvd:tvd_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model={"V": "vocab_size"},
    peers={"liger-kernel": "liger_kernels_loss._peers:liger_tvd"},
    mixed=("teacher",),
    variants=VARIANTS,
    reduction="V",
    module="liger_kernels_loss.modules:TVDLoss",
)

TVD_TRITON = Kernel(
    op="tvd",
    name="triton",
    fn="liger_kernels_loss._pairs_triton:tvd_triton",
    rank=10,
    measured=("sm90",),
    needs=TRITON,
    bytes="liger_kernels_loss._pairs:pair_bytes",
    profile=Profile(
        tier="reduction",
        saved=PAIR,
        recomputed=AGAIN,
        gradients={"student": "dy * q / T * (g - sum(q * g)), g = sign(q - p) / 2"},
        grid={"divergences": DIVERGENCES, "_scale": SCALE},
        precision=(LOGS, "the sign of q - p is that of log q - log p", EARLY, ROUND),
    ),
)

COSINE_DISTANCE = Op(
    name="cosine_distance",
    public="liger_kernels_loss.cosine_distance:cosine_distance",
    reference="liger_kernels_loss.cosine_distance:cosine_distance_reference",
    options=ROWS,
    inputs="liger_kernels_loss._pairs:pair_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model={"V": "vocab_size"},
    mixed=("teacher",),
    variants=VARIANTS[:2],
    reduction="V",
    module="liger_kernels_loss.modules:CosineDistanceLoss",
)

COSINE_DISTANCE_TRITON = Kernel(
    op="cosine_distance",
    name="triton",
    fn="liger_kernels_loss._pairs_triton:cosine_distance_triton",
    rank=10,
    measured=("sm90",),
    needs=TRITON,
    bytes="liger_kernels_loss._pairs:pair_bytes",
    profile=Profile(
        tier="reduction",
        saved=PAIR,
        recomputed=AGAIN,
        gradients={"student": "dy * (cos * s / |s| - t / |t|) / |s|"},
        grid={
            "cosines": "two rows, read for three sums and again for the gradient; programs as those of jsd",
            "_scale": SCALE,
        },
        precision=("sums of products in float32; norms are divided by one after the other", EARLY, ROUND),
    ),
)

KL_DIV = Op(
    name="kl_div",
    public="liger_kernels_loss.kl_div:kl_div",
    reference="liger_kernels_loss.kl_div:kl_div_reference",
    options={
        "reduction": Option(default="mean", values=("batchmean", "sum", "none")),
        "log_target": Option(default=False, values=(True,)),
        "reverse": Option(default=False, values=(True,)),
    },
    inputs="liger_kernels_loss.kl_div:kl_div_inputs",
    sizes={"N": (1, 3, 7), "V": (1, 97, 1025, 4098)},
    production=PRODUCTION[:1],
    sweeps=SWEEPS,
    model={"V": "vocab_size"},
    peers={
        "liger-kernel": "liger_kernels_loss._peers:liger_kl_div",
        "torch": "liger_kernels_loss._peers:torch_kl_div",
    },
    mixed=("target",),
    variants=("log target", "zeros"),
    reduction="V",
    module="liger_kernels_loss.modules:KLDivLoss",
)

KL_DIV_TRITON = Kernel(
    op="kl_div",
    name="triton",
    fn="liger_kernels_loss._kl_div_triton:kl_div_triton",
    rank=10,
    measured=("sm90",),
    needs=TRITON,
    bytes="liger_kernels_loss._pairs:pair_bytes",
    profile=Profile(
        tier="reduction",
        saved=("input", "target", "dinput like input"),
        recomputed=AGAIN,
        gradients={"input": "-dy * target, or -dy * exp(target); reverse: dy * exp(input) * (input - log(target) + 1)"},
        grid={
            "_elements": "4096 elements in 16 bit after another, losses are summed; up to 4 programs a multiprocessor",
            "_scale": SCALE,
        },
        precision=(
            "losses in float32, summed by program and then over programs",
            "the gradient is made in the forward, 6 bytes an element in 16 bit, and scaled in place where dy is not 1 "
            "(10 bytes; computed in the backward 8, with reverse 10, as in float16 and with reduction='none')",
            ROUND,
        ),
    ),
)

DECLARED: list[Op | Kernel] = [
    *(JSD, JSD_TRITON),
    *(TVD, TVD_TRITON),
    *(COSINE_DISTANCE, COSINE_DISTANCE_TRITON),
    *(KL_DIV, KL_DIV_TRITON),
]
