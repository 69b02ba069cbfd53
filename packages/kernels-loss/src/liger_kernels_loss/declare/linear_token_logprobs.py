"""Declares linear_token_logprobs and linear_logits_stats."""

from collections.abc import Mapping

from liger import Kernel, Needs, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import LOSS, ROWS, STATISTICS, TRITON, VOCABULARIES

TRANSFORM = ("softcap", "logit_scale", "temperature")
SIZES = {"N": (1, 3, 7), "H": (8, 33), "V": (1, 97, 1025, 4097, 40961)}
# the launches are those of linear_cross_entropy, which is compiled for all vocabularies
PRODUCTION = tuple({"N": 16384, "H": 4096, "V": v} for v in (VOCABULARIES[0], VOCABULARIES[-1]))
SWEEPS = (Sweep(variable="N", values=(4096, 16384), fixed={"H": 4096, "V": 128256}),)
MODEL = {"N": "tokens", "H": "hidden_size", "V": "vocab_size"}
WORKSPACE = Option(default=None, values=(0.0045,))
OPS = "liger_kernels_loss."


LOGPROBS = Op(
    name="linear_token_logprobs",
    public=OPS + "linear_token_logprobs:linear_token_logprobs",
    reference=OPS + "linear_token_logprobs:linear_token_logprobs_reference",
    options={
        **{name: LOSS[name] for name in ("ignore_index", *TRANSFORM, "check_labels")},
        "accum_dtype": Option(default=None, values=("float32",), silent=True),  # matters with many chunks
        "workspace_mb": WORKSPACE,
        "compact": Option(default=False, values=(True,), silent=True, waits=True),
    },
    inputs=OPS + "linear_token_logprobs:linear_token_logprobs_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model=MODEL,
    variants=("ignored rows", "all ignored", "bias"),
    reduction="V",
)

STATS = Op(
    name="linear_logits_stats",
    public=OPS + "linear_logits_stats:linear_logits_stats",
    reference=OPS + "linear_logits_stats:linear_logits_stats_reference",
    options={**{name: LOSS[name] for name in TRANSFORM}, "workspace_mb": WORKSPACE},
    inputs=OPS + "linear_logits_stats:linear_logits_stats_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model=MODEL,
    variants=("bias",),
    reduction="V",
)


def logprobs_profile(grid: Mapping[str, str]) -> Profile:
    """The chunk loop is one for all backends, which differ in what they launch."""
    return Profile(
        tier="fused",
        saved=("hidden", "weight", "target"),
        recomputed=("everything: only the inputs are saved",),
        gradients={
            "hidden": "dlogits @ weight, dlogits = dz/dlogits * (dlogprob * ([c = y] - p) - dH * p * (log p + H))",
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


def kernels(op: Op, profile: Mapping[str, Profile]) -> list[Kernel]:
    """Its torch and Triton kernels."""
    made = []
    for name, rank in (("torch", 5), ("triton", 10)):
        made.append(
            Kernel(
                op=op.name,
                name=name,
                fn=f"{OPS}_linear_cross_entropy_{name}:{op.name}_{name}",
                rank=rank,
                needs=TRITON if name == "triton" else Needs(),
                bytes=f"{OPS}{op.name}:{op.name}_bytes",
                flops=f"{OPS}{op.name}:{op.name}_flops",
                profile=profile[name],
                measured=("sm90",) if name == "triton" else (),
            )
        )
    return made


PLAIN = Profile(tier="fused", precision=STATISTICS)
DECLARED: list[Op | Kernel] = [
    LOGPROBS,
    *kernels(LOGPROBS, {"torch": logprobs_profile({}), "triton": logprobs_profile({"_losses": ROWS})}),
    STATS,
    *kernels(STATS, {"torch": PLAIN, "triton": Profile(tier="fused", grid={"_losses": ROWS}, precision=STATISTICS)}),
]
