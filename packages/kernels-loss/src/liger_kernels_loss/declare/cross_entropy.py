"""Declares cross_entropy."""

from liger import Kernel, Op, Option, Profile, Sweep
from liger_kernels_loss.declare.common import DLOGITS, LOSS, ROWS, SOFT, STATISTICS, TRITON, VARIANTS, VOCABULARIES

CROSS_ENTROPY = Op(
    name="cross_entropy",
    public="liger_kernels_loss.cross_entropy:cross_entropy",
    reference="liger_kernels_loss.cross_entropy:cross_entropy_reference",
    options={**LOSS, "inplace_backward": Option(default=False, overwrites=True)},
    inputs="liger_kernels_loss.cross_entropy:cross_entropy_inputs",
    sizes={"N": (1, 3, 7), "V": (1, 97, 1025, 4097, 40961)},
    production=tuple({"N": 16384, "V": v} for v in VOCABULARIES),
    sweeps=(Sweep(variable="V", values=(32000, 128256, 151936, 262144), fixed={"N": 8192}),),
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
        saved=("logits", "target", "dlogits like logits", "top (N,) float32", "total (N,) float32"),
        recomputed=("everything from the logits, unless the upstream gradient of a reduced loss is 1",),
        gradients={"logits": f"dy * dz/dlogits * ({DLOGITS})"},
        grid={
            "_losses": ROWS,
            "_soft_losses": SOFT,
            "_backward": "up to 8192 columns of one row; at most 8 programs a multiprocessor if all may be done",
        },
        precision=(*STATISTICS, "the gradient is rounded once, to the logits' dtype"),
    ),
    measured=("sm90",),
)

DECLARED: list[Op | Kernel] = [CROSS_ENTROPY, CROSS_ENTROPY_TRITON]
