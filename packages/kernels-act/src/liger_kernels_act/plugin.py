"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Mapping, Sequence
from typing import Any

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep

NEEDS = Needs(devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), interpreter=True)

# -- Gated activations -------------------------------------------------------------------------------------------------
PAIR: Mapping[str, Any] = {
    "inputs": "liger_kernels_act._pair:pair_inputs",
    "sizes": {"R": (1, 3, 7), "H": (1, 96, 511, 1025, 4097)},
    "production": tuple({"R": 16384, "H": h} for h in (14336, 1024, 9216, 28672)),
    "sweeps": (Sweep(variable="H", values=(4096, 8192, 14336, 28672), fixed={"R": 16384}),),
    "model": {"R": "tokens", "H": "intermediate_size"},
    "variants": ("packed", "three dimensions"),
    "mixed": ("gate", "up"),
    "traced_on": ("cuda",),
}
PACKED: Mapping[str, Any] = {
    **PAIR,
    "inputs": "liger_kernels_act._pair:packed_inputs",
    "sizes": {"R": (1, 3, 7), "H": (1, 96, 511, 1025)},
    "production": tuple({"R": 16384, "H": h} for h in (14336, 2880)),
    "variants": ("three dimensions",),
    "mixed": (),
}
MULTIPLIERS = {
    "gate_multiplier": Option(default=1.0, values=(0.7,)),
    "down_multiplier": Option(default=1.0, values=(-1.3,)),
}
APPROXIMATE = {"approximate": Option(default="tanh", values=("none",))}
CLAMP = {
    "alpha": Option(default=1.702, values=(1.0,)),
    "limit": Option(default=7.0, values=(0.75,)),
    "up_offset": Option(default=1.0, values=(0.0,)),
}
SILU_SLOPE = "s * (1 + g * (1 - s)), g = gate_multiplier * gate, s = sigmoid(g)"
GELU_SLOPE = "gelu'(gate_multiplier * gate), of the tanh form or of the exact one"
CLAMPED_SLOPE = "s * (1 + alpha * g * (1 - s)) where gate <= limit, g = min(gate, limit), s = sigmoid(alpha * g)"
TILES = "1024 elements, of one wide row or several narrow ones; ceil(R / rows) * ceil(H / columns) programs"
SPLIT_LAYOUT = Option(default="gate_up", values=("up_gate", "interleaved"))
TURN_LAYOUT = Option(default="interleaved", values=("gate_up", "up_gate"))


def gated(name: str, slope: str, packed: bool = False) -> Kernel:
    """The Triton kernel of a gated activation: they differ in the derivative, and in where gate and up are."""
    pair = {"gate": f"dy * down_multiplier * up * gate_multiplier * {slope}", "up": "dy * down_multiplier * act(gate)"}
    if slope is CLAMPED_SLOPE:
        pair = {"gate": f"dy * (up + up_offset) * {slope}", "up": "dy * g * s where -limit <= up <= limit"}
    return Kernel(
        op=name,
        name="triton",
        fn=f"liger_kernels_act._gated_triton:{name}_triton",
        rank=10,
        needs=NEEDS,
        bytes=f"liger_kernels_act._pair:{'packed' if packed else 'pair'}_bytes",
        profile=Profile(
            tier="elementwise",
            saved=("x",) if packed else ("gate", "up"),
            recomputed=("act(gate)", "act'(gate)"),
            gradients={"x": f"gate: {pair['gate']}; up: {pair['up']}; in the layout of x"} if packed else pair,
            grid={"_forward": TILES, "_backward": TILES},
            precision=(
                "everything in float32",
                "gate and up, scaled or clamped, act(gate) and the product are rounded where upstream rounds them; the "
                "backward rounds gate and up alone",
                "sigmoid and 1 - sigmoid from exp(-|x|), so that neither cancels",
            ),
        ),
        measured=("sm90",),
    )


SILU_MUL = Op(
    name="silu_mul",
    public="liger_kernels_act.silu_mul:silu_mul",
    reference="liger_kernels_act.silu_mul:silu_mul_reference",
    options=MULTIPLIERS,
    peers={"liger-kernel": "liger_kernels_act._peers:liger_silu_mul"},
    module="liger_kernels_act.modules:SiLUMul",
    **PAIR,
)

GELU_MUL = Op(
    name="gelu_mul",
    public="liger_kernels_act.gelu_mul:gelu_mul",
    reference="liger_kernels_act.gelu_mul:gelu_mul_reference",
    options={**APPROXIMATE, **MULTIPLIERS},
    peers={"liger-kernel": "liger_kernels_act._peers:liger_gelu_mul"},
    module="liger_kernels_act.modules:GELUMul",
    **PAIR,
)

SILU_MUL_CLAMPED = Op(
    name="silu_mul_clamped",
    public="liger_kernels_act.silu_mul_clamped:silu_mul_clamped",
    reference="liger_kernels_act.silu_mul_clamped:silu_mul_clamped_reference",
    options=CLAMP,
    module="liger_kernels_act.modules:SiLUMulClamped",
    **PAIR,
)

SILU_MUL_PACKED = Op(
    name="silu_mul_packed",
    public="liger_kernels_act.silu_mul_packed:silu_mul_packed",
    reference="liger_kernels_act.silu_mul_packed:silu_mul_packed_reference",
    options={"layout": SPLIT_LAYOUT, **MULTIPLIERS},
    peers={"liger-kernel": "liger_kernels_act._peers:liger_silu_mul_packed"},
    module="liger_kernels_act.modules:SiLUMulPacked",
    **PACKED,
)

GELU_MUL_PACKED = Op(
    name="gelu_mul_packed",
    public="liger_kernels_act.gelu_mul_packed:gelu_mul_packed",
    reference="liger_kernels_act.gelu_mul_packed:gelu_mul_packed_reference",
    options={**APPROXIMATE, "layout": SPLIT_LAYOUT, **MULTIPLIERS},
    module="liger_kernels_act.modules:GELUMulPacked",
    **PACKED,
)

SILU_MUL_CLAMPED_PACKED = Op(
    name="silu_mul_clamped_packed",
    public="liger_kernels_act.silu_mul_clamped_packed:silu_mul_clamped_packed",
    reference="liger_kernels_act.silu_mul_clamped_packed:silu_mul_clamped_packed_reference",
    options={"layout": TURN_LAYOUT, **CLAMP},
    module="liger_kernels_act.modules:SiLUMulClampedPacked",
    **PACKED,
)

GATED_KERNELS = (
    gated("silu_mul", SILU_SLOPE),
    gated("gelu_mul", GELU_SLOPE),
    gated("silu_mul_clamped", CLAMPED_SLOPE),
    gated("silu_mul_packed", SILU_SLOPE, packed=True),
    gated("gelu_mul_packed", GELU_SLOPE, packed=True),
    gated("silu_mul_clamped_packed", CLAMPED_SLOPE, packed=True),
)


# -- One tensor --------------------------------------------------------------------------------------------------------
RELU_SQUARED = Op(
    name="relu_squared",
    public="liger_kernels_act.relu_squared:relu_squared",
    reference="liger_kernels_act.relu_squared:relu_squared_reference",
    inputs="liger_kernels_act.relu_squared:row_inputs",
    sizes={"R": (1, 3, 7), "H": (1, 96, 511, 2049)},
    production=tuple({"R": 16384, "H": h} for h in (24576, 16384)),
    sweeps=(Sweep(variable="H", values=(4096, 8192, 16384, 24576), fixed={"R": 16384}),),
    model={"R": "tokens", "H": "intermediate_size"},
    peers={"liger-kernel": "liger_kernels_act._peers:liger_relu_squared"},
    variants=("three dimensions",),
    module="liger_kernels_act.modules:ReLUSquared",
    traced_on=("cuda",),
)

RELU_SQUARED_TRITON = Kernel(
    op="relu_squared",
    name="triton",
    fn="liger_kernels_act._relu_squared_triton:relu_squared_triton",
    rank=10,
    needs=NEEDS,
    bytes="liger_kernels_act.relu_squared:row_bytes",
    profile=Profile(
        tier="elementwise",
        saved=("x",),
        gradients={"x": "2 * dy * max(x, 0)"},
        grid=dict.fromkeys(("_forward", "_backward"), "2048 elements; ceil(R * H / 2048) programs"),
        precision=("the square in float32, rounded once, as upstream's",),
    ),
    measured=("sm90",),
)

# -- Rows --------------------------------------------------------------------------------------------------------------
ROWS: Mapping[str, Any] = {
    "inputs": "liger_kernels_act.softmax:logits",
    "production": tuple({"R": 4096, "V": v} for v in (32768, 131072, 1024, 5120, 16384, 50257, 128256)),
    "sweeps": (Sweep(variable="V", values=(1024, 4096, 16384, 32768, 65536, 131072), fixed={"R": 4096}),),
    "model": {"R": "tokens", "V": "vocab_size"},
    "variants": ("three dimensions", "masked"),
    "reduction": "V",
}


def rows(name: str, module: str, fn: str, gradient: str, grid: Mapping[str, str], *precision: str) -> Kernel:
    """A Triton kernel over rows that saves its output alone."""
    return Kernel(
        op=name,
        name="triton",
        fn=f"liger_kernels_act.{module}:{fn}",
        rank=10,
        needs=NEEDS,
        bytes="liger_kernels_act.relu_squared:row_bytes",
        measured=("sm90",),
        profile=Profile(tier="reduction", gradients={"x": gradient}, grid=grid, precision=precision),
    )


HELD_ROWS = (
    "rows of up to 16384 columns, 4096 elements of narrow ones: ceil(R / rows) programs; in the forward up to 32768 "
    "columns, the next rows on their way through shared memory: a program for each multiprocessor"
)
WIDE_ROWS = "rows of more columns, each read twice; R programs, or two for each multiprocessor"
SHARED_ROWS = "16 KB of the widest rows; R * parts programs"
SOFTMAX_GRID = {
    "_forward": HELD_ROWS,
    "_forward_wide": WIDE_ROWS,
    "_backward": HELD_ROWS,
    "_backward_wide": WIDE_ROWS,
    **dict.fromkeys(("_forward_shared", "_backward_shared"), SHARED_ROWS),
}
SPARSEMAX_GRID = {
    "_forward": "rows of up to 8192 columns, 2048 elements of narrow ones: ceil(R / rows) programs",
    "_forward_wide": "one row of more columns, read once for each step of Newton's method; R programs",
    "_backward": "rows of up to 8192 columns, 2048 elements of narrow ones: ceil(R / rows) programs",
    "_backward_wide": "one row of more columns, read twice; R programs",
}

SOFTMAX = Op(
    name="softmax",
    public="liger_kernels_act.softmax:softmax",
    reference="liger_kernels_act.softmax:softmax_reference",
    sizes={"R": (1, 3, 7), "V": (1, 67, 1100, 20008, 33003, 66001, 70004)},
    peers={
        "liger-kernel": "liger_kernels_act._peers:liger_softmax",
        "quack": "liger_kernels_act._peers:quack_softmax",
    },
    module="liger_kernels_act.modules:Softmax",
    **ROWS,
)

LOG_SOFTMAX = Op(
    name="log_softmax",
    public="liger_kernels_act.log_softmax:log_softmax",
    reference="liger_kernels_act.log_softmax:log_softmax_reference",
    sizes={"R": (1, 3, 7), "V": (1, 67, 1100, 20008, 33003, 66001, 70004)},
    module="liger_kernels_act.modules:LogSoftmax",
    **{**ROWS, "variants": ("three dimensions",)},
)

SPARSEMAX = Op(
    name="sparsemax",
    public="liger_kernels_act.sparsemax:sparsemax",
    reference="liger_kernels_act.sparsemax:sparsemax_reference",
    sizes={"R": (1, 3, 7), "V": (1, 67, 1100, 8193, 20001)},
    peers={"liger-kernel": "liger_kernels_act._peers:liger_sparsemax"},
    module="liger_kernels_act.modules:Sparsemax",
    **ROWS,
)

ROW_KERNELS = (
    rows(
        "softmax",
        "_softmax_triton",
        "softmax_triton",
        "y * (dy - sum(y * dy))",
        SOFTMAX_GRID,
        "maximum, exponentials and sums in float32, rounded once; of wide rows with a running maximum",
    ),
    rows(
        "log_softmax",
        "_softmax_triton",
        "log_softmax_triton",
        "dy - exp(y) * sum(dy)",
        SOFTMAX_GRID,
        "maximum, exponentials, sums and the logarithm in float32, rounded once; of wide rows with a running maximum",
    ),
    rows(
        "sparsemax",
        "_sparsemax_triton",
        "sparsemax_triton",
        "where y > 0: dy - mean of dy there; 0 elsewhere",
        SPARSEMAX_GRID,
        "everything in float32, rounded once; the threshold is exact but for float32's rounding",
        "in float16 what is above the threshold is at least 2^-24, so that y alone tells the support",
    ),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the activations."""
    gated_pairs = (SILU_MUL, GELU_MUL, SILU_MUL_CLAMPED)
    gated_packed = (SILU_MUL_PACKED, GELU_MUL_PACKED, SILU_MUL_CLAMPED_PACKED)
    return [
        *gated_pairs,
        *gated_packed,
        RELU_SQUARED,
        SOFTMAX,
        LOG_SOFTMAX,
        SPARSEMAX,
        *GATED_KERNELS,
        RELU_SQUARED_TRITON,
        *ROW_KERNELS,
    ]
