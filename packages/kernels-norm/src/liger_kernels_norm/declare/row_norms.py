"""The norms that share one kernel each way: rms_norm, fused_add_rms_norm, layer_norm, cohere_norm, l2norm."""

from collections.abc import Mapping

from liger import Kernel, Op, Option, Sweep
from liger_kernels_norm.declare.common import PARTIALS, kernel, op

EPS = Option(default=1e-5, values=(1e-3, 0.1))
CAST = Option(default="llama", values=("fp32-weight", "gemma", "none"))
OFFSET = Option(default=0.0, values=(1.0,))
ROWS = {"R": 16384}
WIDTHS = Sweep(variable="H", values=(1024, 2048, 4096, 5120, 8192, 16384), fixed=ROWS)
HEADS = Sweep(variable="R", values=(131072, 524288), fixed={"H": 128})  # q and k of an attention
MODEL = {"R": "tokens", "H": "hidden_size"}
GRID = {
    "_forward": "whole rows, 2048 elements or one row; ceil(R / rows) x rows of the weight programs",
    "_forward_wide": "one row of more than 32768 columns, read twice, for a mean three times; R programs",
    "_backward": "rows in turn, the next on their way through shared memory, sums for the parameters in registers; "
    "1 to 4 programs a multiprocessor. Rows of more than 8192 columns are read twice, the second time from L1",
    "_backward_dx_wide": "one row of more than 8192 or 16384 columns, read twice; R programs",
    "_backward_dw_wide": "512 columns of every 16th block of 8 rows; ceil(H / 512) x at most 16 programs",
    "_add_partials": "16 to 128 columns of the partial sums of dweight or dbias; about 256 programs for each",
}
PARTS = {"_backward_parts": "with a bias, rows of 8193 to 16384 columns in turn, in parts; 1 program a multiprocessor"}
WIDE = (1, 96, 511, 9001, 1000, 16385, 33001)  # other kernels beyond 8192, 16384 and 32768
DW_DB = f"dweight and dbias: {PARTIALS}"


def row_kernel(op: str, bytes_: str = "rms_norm:norm_bytes", **profile: object) -> Kernel:
    """The Triton kernel of an op of this family."""
    return kernel(
        op,
        fn=f"_norm_triton:{op}_triton",
        bytes_=bytes_,
        widest=131072,
        recomputed=("xhat = x * rstd",),
        **profile,  # type: ignore[arg-type]
    )


def row_op(name: str, **fields: object) -> Op:
    """An op of this family, on rows of width H."""
    common: Mapping[str, object] = {
        "sizes": {"R": (1, 3, 7), "H": (96, 511, 9001)},
        "production": tuple({**ROWS, "H": h} for h in (4096, 128, 5120, 16384)),
        "sweeps": (WIDTHS,),
        "model": MODEL,
        "reduction": "H",
        "traced_on": ("cuda",),
    }
    return op(name, **{**common, **fields})


RMS_CASTS = (
    "the mean of squares and rstd in float32; with cast='none' each step is rounded to x's dtype",
    "xhat is rounded to x's dtype before the weight with cast='llama' and 'none', and nowhere else",
    "the offset is added to the weight in float32",
)
RMS_DX = "(g - xhat * mean(g * xhat)) * rstd, g = dy * (offset + weight)"
RMS_DW = "sum over rows of dy * xhat, xhat rounded as in the forward"
LAYER_DX = "(g - mean(g) - xhat * mean(g * xhat)) * rstd, g = dy * weight"

RMS_NORM = row_op(
    "rms_norm",
    options={"eps": Option(default=1e-6, values=(1e-5, 0.1)), "cast": CAST, "offset": OFFSET},
    sizes={"R": (1, 3, 7, 11), "H": WIDE},
    production=tuple({**ROWS, "H": h} for h in (4096, 128, 576, 1024, 5376, 8192, 16384, 65536)),
    sweeps=(WIDTHS, HEADS),
    peers={
        "F.rms_norm": "liger_kernels_norm._peers:torch_rms_norm",
        "liger-kernel": "liger_kernels_norm._peers:liger_rms_norm",
        "quack": "liger_kernels_norm._peers:quack_rms_norm",
    },
    variants=("weightless", "gemma", "bias", "three dimensions"),
    mixed=("x", "weight"),
    module="liger_kernels_norm.modules:RMSNorm",
)
FUSED_ADD_RMS_NORM = row_op(
    "fused_add_rms_norm",
    options={"eps": Option(default=1e-6, values=(0.1,)), "cast": CAST, "offset": OFFSET},
    sweeps=(Sweep(variable="H", values=(1024, 2048, 4096, 5120, 8192), fixed=ROWS),),
    peers={
        "liger-kernel": "liger_kernels_norm._peers:liger_fused_add_rms_norm",
        "quack": "liger_kernels_norm._peers:quack_fused_add_rms_norm",
    },
    variants=("weightless",),
    mixed=("x", "residual", "weight"),
    module="liger_kernels_norm.modules:FusedAddRMSNorm",
)
LAYER_NORM = row_op(
    "layer_norm",
    options={"eps": EPS},
    sizes={"R": (1, 3, 7), "H": (96, 9001, 511, 16385, 33001)},
    sweeps=(WIDTHS, HEADS),
    peers={
        "F.layer_norm": "liger_kernels_norm._peers:torch_layer_norm",
        "liger-kernel": "liger_kernels_norm._peers:liger_layer_norm",
        "quack": "liger_kernels_norm._peers:quack_layer_norm",
    },
    variants=("weightless", "no bias", "mean"),
    mixed=("x", "weight", "bias"),
    module="liger_kernels_norm.modules:LayerNorm",
)
COHERE_NORM = row_op(
    "cohere_norm",
    options={"eps": EPS},
    variants=("heads",),
    mixed=("x", "weight"),
    module="liger_kernels_norm.modules:CohereNorm",
)
L2NORM = row_op(
    "l2norm",
    options={"eps": Option(default=1e-6, values=(0.1,)), "cast": Option(default="fp32", values=("none",))},
    production=tuple({**ROWS, "H": h} for h in (128, 4096, 16384)),
    sweeps=(HEADS,),
    module="liger_kernels_norm.modules:L2Norm",
)

DECLARED: list[Op | Kernel] = [
    RMS_NORM,
    FUSED_ADD_RMS_NORM,
    LAYER_NORM,
    COHERE_NORM,
    L2NORM,
    row_kernel(
        "rms_norm",
        saved=("x", "weight", "rstd (R,) float32"),
        gradients={"x": RMS_DX, "weight": RMS_DW, "bias": "sum over rows of dy"},
        grid=GRID,
        precision=(*RMS_CASTS, DW_DB),
    ),
    row_kernel(
        "fused_add_rms_norm",
        bytes_="fused_add_rms_norm:fused_add_rms_norm_bytes",
        saved=("weight", "rstd (R,) float32"),
        gradients={"x": f"{RMS_DX}, + ds", "residual": "the same", "weight": RMS_DW},
        grid=GRID,
        precision=("s is rounded before it is normalised", *RMS_CASTS, DW_DB),
    ),
    row_kernel(
        "layer_norm",
        saved=("x", "weight", "bias", "mean (R,) float32", "rstd (R,) float32"),
        gradients={"x": LAYER_DX, "weight": "sum over rows of dy * xhat", "bias": "sum over rows of dy"},
        grid={**GRID, **PARTS},
        precision=("everything in float32, rounded once", "the variance is that of x - mean", DW_DB),
    ),
    row_kernel(
        "cohere_norm",
        saved=("x", "weight", "mean (R,) float32", "rstd (R,) float32"),
        gradients={"x": LAYER_DX, "weight": "sum over rows of dy * xhat, for each head"},
        grid=GRID,
        precision=("everything in float32, rounded once", "the variance is that of x - mean", DW_DB),
    ),
    row_kernel(
        "l2norm",
        saved=("x", "rstd (R,) float32"),
        gradients={"x": "(dy - xhat * sum(dy * xhat)) * rstd"},
        grid={name: text for name, text in GRID.items() if name not in ("_backward_dw_wide", "_add_partials")},
        precision=("in float32, rounded once; with cast='none' each step is rounded to x's dtype",),
    ),
]
