"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep

ROPE = Op(
    name="rope",
    public="liger_kernels_rope.rope:rope",
    reference="liger_kernels_rope.rope:rope_reference",
    options={"unsqueeze_dim": Option(default=1)},  # 2 needs other shapes: the variant "heads last"
    inputs="liger_kernels_rope.rope:rope_inputs",
    sizes={"T": (1, 5, 9), "B": (1, 3, 2), "NQ": (1, 6, 4, 9), "NK": (1, 2, 3), "D": (8, 64, 10, 128, 256)},
    production=(
        {"T": 8192, "B": 2, "NQ": 32, "NK": 8, "D": 128},
        {"T": 2048, "B": 8, "NQ": 9, "NK": 3, "D": 64},
        {"T": 8192, "B": 2, "NQ": 8, "NK": 1, "D": 256},
        {"T": 4096, "B": 4, "NQ": 32, "NK": 32, "D": 96},
    ),
    sweeps=(
        Sweep(
            variable="T",
            values=(1024, 2048, 4096),
            fixed={"B": 4, "NQ": 32, "NK": 8, "D": 128},
            variant="equal halves",  # as in models; peers read only one of them
        ),
    ),
    model={"NQ": "num_attention_heads", "NK": "num_key_value_heads", "D": "head_dim"},
    mixed=("q", "k"),
    peers={"liger-kernel": "liger_kernels_rope._peers:liger_rope"},
    variants=(
        "per row",
        "partial",
        "fp32 cos",
        "heads last",
        "per row heads last",
        "partial heads last",
        "packed",
        "equal halves",
        "trained tables",
    ),
)

ROPE_TRITON = Kernel(
    op="rope",
    name="triton",
    fn="liger_kernels_rope._rope_triton:rope_triton",
    rank=10,
    needs=Needs(
        devices=("cuda", "xpu"),
        dtypes=("float32", "float16", "bfloat16"),
        max_size={"D": 2048},  # one program holds a head
        interpreter=True,
    ),
    bytes="liger_kernels_rope.rope:rope_bytes",
    profile=Profile(
        tier="elementwise",
        saved=("cos", "sin"),
        recomputed=(),
        gradients={
            "q": "the transposed rotation of dq: dx1 = dy1 * c1 + dy2 * s2, dx2 = dy2 * c2 - dy1 * s1",
            "k": "the same",
            "cos": "sum of dy * x over heads, over the batch if it shares cos; in torch, and saves q and k",
            "sin": "sum of dy * rotate_half(x), likewise",
        },
        grid={"_rope": "one token, as many heads of q or of k as fit a tile; B * T x blocks of heads programs"},
        precision=(
            "each product and their sum are rounded to the output's dtype, as upstream does: no fused multiply-add",
        ),
    ),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register rope."""
    return [ROPE, ROPE_TRITON]
