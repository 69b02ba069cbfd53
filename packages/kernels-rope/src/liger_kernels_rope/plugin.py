"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Sweep

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
    sweeps=(Sweep(variable="T", values=(1024, 2048, 4096), fixed={"B": 4, "NQ": 32, "NK": 8, "D": 128}),),
    model={"NQ": "num_attention_heads", "NK": "num_key_value_heads", "D": "head_dim"},
    variants=("per row", "partial", "fp32 cos", "heads last", "packed"),
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
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register rope."""
    return [ROPE, ROPE_TRITON]
