"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep


def _needs(**max_size: int) -> Needs:
    """What all kernels of this package can do; one program holds a head."""
    return Needs(
        devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), max_size=max_size, interpreter=True
    )


GRID = {
    "_rope": "a token with all its heads of q and k, or several if that is less than 8192 elements; "
    "ceil(B * T / tokens) x blocks of heads programs"
}
TRANSPOSED = {
    "q": "the transposed rotation of dq: dx1 = dy1 * c1 + dy2 * s2, dx2 = dy2 * c2 - dy1 * s1",
    "k": "the same",
}

ROPE = Op(
    name="rope",
    public="liger_kernels_rope.rope:rope",
    reference="liger_kernels_rope.rope:rope_reference",
    traced_on=("cuda",),
    module="liger_kernels_rope.modules:RoPE",
    options={
        "unsqueeze_dim": Option(default=1),  # 2 needs other shapes: the variant "heads last"
        "layout": Option(default="half", values=("interleaved", "deinterleave")),
        "tables": Option(default="column"),  # "pair" too: the variants "gpt_oss", "glm", "deepseek"
        "cast": Option(default="none", values=("fp32",)),  # "output" differs with fp32 cos: the variant "olmo2"
    },
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
        "gpt_oss",
        "glm",
        "cohere",
        "deepseek",
        "olmo2",
        "vision",
    ),
)

ROPE_TRITON = Kernel(
    op="rope",
    name="triton",
    fn="liger_kernels_rope._rope_triton:rope_triton",
    rank=10,
    needs=_needs(D=2048),
    bytes="liger_kernels_rope.rope:rope_bytes",
    profile=Profile(
        tier="elementwise",
        saved=("cos", "sin"),
        recomputed=(),
        gradients={
            **TRANSPOSED,
            "cos": "sum of dy * x over heads, over what shares an angle; in torch, and saves q and k",
            "sin": "sum of dy * rotate_half(x), likewise",
        },
        grid=GRID,
        precision=(
            "each product and their sum are rounded to the output's dtype, as upstream does: no fused multiply-add",
            "with cast='fp32' in float32, the sum rounded once",
        ),
    ),
    measured=("sm90",),
)


MROPE = Op(
    name="mrope",
    public="liger_kernels_rope.mrope:mrope",
    reference="liger_kernels_rope.mrope:mrope_reference",
    module="liger_kernels_rope.modules:MRoPE",
    options={
        "sections": Option(default=(16, 24, 24)),  # what fits P pairs: in all inputs
        "interleaved": Option(default=False, values=(True,)),
        "unsqueeze_dim": Option(default=1),  # 2 needs other shapes: the variant "heads last"
    },
    inputs="liger_kernels_rope.mrope:mrope_inputs",
    sizes={"T": (1, 3, 7), "B": (1, 2), "NQ": (1, 6, 4), "NK": (1, 2), "P": (64, 5, 80)},
    production=({"T": 8192, "B": 1, "NQ": 28, "NK": 4, "P": 64},),
    sweeps=(Sweep(variable="T", values=(1024, 2048, 4096), fixed={"B": 4, "NQ": 32, "NK": 8, "P": 64}),),
    model={"NQ": "num_attention_heads", "NK": "num_key_value_heads"},
    mixed=("q",),
    variants=("heads last", "in turns", "partial"),
)

MROPE_TRITON = Kernel(
    op="mrope",
    name="triton",
    fn="liger_kernels_rope._rope_triton:mrope_triton",
    rank=10,
    measured=("sm90",),
    needs=_needs(P=1024),
    bytes="liger_kernels_rope.mrope:mrope_bytes",
    profile=Profile(
        tier="elementwise",
        saved=("cos", "sin"),
        gradients=TRANSPOSED,
        grid=GRID,
        precision=("each product and their sum are rounded to the output's dtype: no fused multiply-add",),
    ),
)

ROPE_COMPLEX = Op(
    name="rope_complex",
    public="liger_kernels_rope.rope_complex:rope_complex",
    reference="liger_kernels_rope.rope_complex:rope_complex_reference",
    module="liger_kernels_rope.modules:ComplexRoPE",
    options={"unsqueeze_dim": Option(default=1)},  # 2 needs other shapes: the variant "heads last"
    inputs="liger_kernels_rope.rope_complex:rope_complex_inputs",
    sizes={"T": (1, 3, 7), "B": (1, 2), "NQ": (1, 6, 4), "NK": (1, 2), "P": (64, 5, 80)},
    production=({"T": 8192, "B": 1, "NQ": 40, "NK": 8, "P": 64},),
    sweeps=(Sweep(variable="T", values=(1024, 2048, 4096), fixed={"B": 4, "NQ": 32, "NK": 8, "P": 64}),),
    model={"NQ": "num_attention_heads", "NK": "num_key_value_heads"},
    mixed=("q",),
    variants=("heads last", "no batch"),
)

ROPE_COMPLEX_TRITON = Kernel(
    op="rope_complex",
    name="triton",
    fn="liger_kernels_rope._rope_triton:rope_complex_triton",
    rank=10,
    measured=("sm90",),
    needs=_needs(P=1024),
    bytes="liger_kernels_rope.rope_complex:rope_complex_bytes",
    profile=Profile(
        tier="elementwise",
        saved=("freqs",),
        gradients=dict.fromkeys(("q", "k"), "dy times the conjugate of freqs"),
        grid=GRID,
        precision=("in float32, each product rounded to it, the result rounded once",),
    ),
)


QK_NORM_ROPE = Op(
    name="qk_norm_rope",
    public="liger_kernels_rope.qk_norm_rope:qk_norm_rope",
    reference="liger_kernels_rope.qk_norm_rope:qk_norm_rope_reference",
    options={
        "eps": Option(default=1e-6, values=(0.1,)),
        "cast": Option(default="llama", values=("fp32-weight", "gemma")),
        "offset": Option(default=0.0, values=(1.0,)),
        "unsqueeze_dim": Option(default=1),  # 2 needs other shapes: the variant "heads last"
    },
    inputs="liger_kernels_rope.qk_norm_rope:qk_norm_rope_inputs",
    sizes={"T": (1, 3, 7), "B": (1, 2), "NQ": (1, 6, 4), "NK": (1, 2, 3), "D": (128, 6, 80)},
    production=(
        {"T": 8192, "B": 2, "NQ": 32, "NK": 8, "D": 128},
        {"T": 8192, "B": 1, "NQ": 8, "NK": 1, "D": 256},
        {"T": 8192, "B": 1, "NQ": 64, "NK": 4, "D": 128},
    ),
    sweeps=(Sweep(variable="T", values=(1024, 2048, 4096), fixed={"B": 4, "NQ": 32, "NK": 8, "D": 128}),),
    model={"NQ": "num_attention_heads", "NK": "num_key_value_heads", "D": "head_dim"},
    mixed=("q", "q_weight"),
    variants=("heads last", "partial", "gemma"),
    reduction="D",
    module="liger_kernels_rope.modules:QKNormRope",
)

QK_NORM_ROPE_TRITON = Kernel(
    op="qk_norm_rope",
    name="triton",
    fn="liger_kernels_rope._qk_norm_rope_triton:qk_norm_rope_triton",
    rank=10,
    measured=("sm90",),
    needs=_needs(D=2048),
    bytes="liger_kernels_rope.qk_norm_rope:qk_norm_rope_bytes",
    profile=Profile(
        tier="fused",
        saved=("q", "k", "q_weight", "k_weight", "cos", "sin"),
        recomputed=("rms of each head", "xhat = x / rms"),
        gradients={
            "q": "(h - xhat * mean(h * xhat)) / rms, h = g * (offset + weight), g = the transposed rotation of dy",
            "k": "the same",
            "q_weight": "sum over tokens and heads of g * xhat, xhat rounded as in the forward",
            "k_weight": "the same",
        },
        grid={
            "qk_norm_rope_forward": "as _rope of the op rope",
            "qk_norm_rope_backward": "a token with all its heads, or several, one tile after another; weight "
            "gradients summed in registers; at most 2 programs a multiprocessor",
            "_add_partials": "16 columns of the partial sums of a weight's gradient",
        },
        precision=(
            "mean of squares and rms in float32; roundings of the norm as in rms_norm, then those of rope",
            "the backward in float32, each gradient rounded once",
            "weight gradients: partial sums in float32, one per program, added in a fixed order",
        ),
    ),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the ropes."""
    ropes: list[Op | Kernel] = [ROPE, ROPE_TRITON, MROPE, MROPE_TRITON, ROPE_COMPLEX, ROPE_COMPLEX_TRITON]
    return [*ropes, QK_NORM_ROPE, QK_NORM_ROPE_TRITON]
