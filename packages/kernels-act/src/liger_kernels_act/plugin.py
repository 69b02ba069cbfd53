"""What this package registers. Data only: importing it loads no torch and no triton."""

from collections.abc import Sequence

import liger
from liger import Kernel, Needs, Op, Option, Profile, Sweep

SIZES = {"R": (1, 3, 7), "H": (1, 96, 511, 1025, 4097)}
PRODUCTION = tuple({"R": 16384, "H": h} for h in (14336, 1024, 9216, 28672))
SWEEPS = (Sweep(variable="H", values=(4096, 8192, 14336, 28672), fixed={"R": 16384}),)
MODEL = {"R": "tokens", "H": "intermediate_size"}
VARIANTS = ("packed", "three dimensions")
MIXED = ("gate", "up")
NEEDS = Needs(devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), interpreter=True)
TILES = "1024 elements, of one wide row or several narrow ones; ceil(R / rows) * ceil(H / columns) programs"


def profile(slope: str) -> Profile:
    """Both activations differ in the derivative alone."""
    return Profile(
        tier="elementwise",
        saved=("gate", "up"),
        recomputed=("act(gate)", "act'(gate)"),
        gradients={"gate": f"dy * up * {slope}", "up": "dy * act(gate)"},
        grid={"_forward": TILES, "_backward": TILES},
        precision=(
            "everything in float32",
            "act(gate) is rounded to gate's dtype before the product, as upstream does; the backward does not round it",
            "sigmoid and 1 - sigmoid from exp(-|x|), so that neither cancels",
        ),
    )


SILU_MUL = Op(
    name="silu_mul",
    public="liger_kernels_act.silu_mul:silu_mul",
    reference="liger_kernels_act.silu_mul:silu_mul_reference",
    inputs="liger_kernels_act._pair:pair_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model=MODEL,
    peers={"liger-kernel": "liger_kernels_act._peers:liger_silu_mul"},
    variants=VARIANTS,
    mixed=MIXED,
    module="liger_kernels_act.modules:SiLUMul",
)

GELU_MUL = Op(
    name="gelu_mul",
    public="liger_kernels_act.gelu_mul:gelu_mul",
    reference="liger_kernels_act.gelu_mul:gelu_mul_reference",
    options={"approximate": Option(default="tanh", values=("none",))},
    inputs="liger_kernels_act._pair:pair_inputs",
    sizes=SIZES,
    production=PRODUCTION,
    sweeps=SWEEPS,
    model=MODEL,
    peers={"liger-kernel": "liger_kernels_act._peers:liger_gelu_mul"},
    variants=VARIANTS,
    mixed=MIXED,
    module="liger_kernels_act.modules:GELUMul",
)

SILU_MUL_TRITON = Kernel(
    op="silu_mul",
    name="triton",
    fn="liger_kernels_act._gated_triton:silu_mul_triton",
    rank=10,
    needs=NEEDS,
    bytes="liger_kernels_act._pair:pair_bytes",
    profile=profile("s * (1 + gate * (1 - s)), s = sigmoid(gate)"),
)

GELU_MUL_TRITON = Kernel(
    op="gelu_mul",
    name="triton",
    fn="liger_kernels_act._gated_triton:gelu_mul_triton",
    rank=10,
    needs=NEEDS,
    bytes="liger_kernels_act._pair:pair_bytes",
    profile=profile("gelu'(gate), of the tanh form or of the exact one"),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """Register the gated activations."""
    return [SILU_MUL, GELU_MUL, SILU_MUL_TRITON, GELU_MUL_TRITON]
