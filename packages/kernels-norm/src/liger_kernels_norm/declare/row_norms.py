"""The norms that share one kernel each way: rms_norm, fused_add_rms_norm, layer_norm, cohere_norm, l2norm."""

from collections.abc import Mapping

from liger import Kernel, Needs, Op, Option, Profile, Sweep

NEEDS = Needs(
    devices=("cuda", "xpu"),
    dtypes=("float32", "float16", "bfloat16"),
    max_size={"H": 131072},  # tested up to here
    interpreter=True,
)
TIMED = ("rms_norm", "fused_add_rms_norm", "layer_norm")  # those with results in benchmarks/results
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
WIDE = (1, 96, 511, 9001, 1000, 16385, 33001)  # other kernels beyond 8192, 16384 and 32768
PARTIALS = "dweight and dbias: partial sums in float32, one per program, added in a fixed order and rounded once"


def kernel(op: str, bytes_: str, **profile: object) -> Kernel:
    """The Triton kernel of an op."""
    return Kernel(
        op=op,
        name="triton",
        fn=f"liger_kernels_norm._norm_triton:{op}_triton",
        rank=10,
        needs=NEEDS,
        bytes=f"liger_kernels_norm.{bytes_}",
        profile=Profile(tier="reduction", recomputed=("xhat = x * rstd",), **profile),  # type: ignore[arg-type]
        measured=("sm90",) if op in TIMED else (),
    )


def op(name: str, **fields: object) -> Op:
    """An op of this family, on rows of width H."""
    common: Mapping[str, object] = {
        "public": f"liger_kernels_norm.{name}:{name}",
        "reference": f"liger_kernels_norm.{name}:{name}_reference",
        "inputs": f"liger_kernels_norm.{name}:{name}_inputs",
        "sizes": {"R": (1, 3, 7), "H": (96, 511, 9001)},
        "production": tuple({**ROWS, "H": h} for h in (4096, 128, 5120, 16384)),
        "sweeps": (WIDTHS,),
        "model": MODEL,
        "reduction": "H",
    }
    return Op(name=name, **{**common, **fields})  # type: ignore[arg-type]


RMS_CASTS = (
    "the mean of squares and rstd in float32; with cast='none' each step is rounded to x's dtype",
    "xhat is rounded to x's dtype before the weight with cast='llama' and 'none', and nowhere else",
    "the offset is added to the weight in float32",
)
RMS_DX = "(g - xhat * mean(g * xhat)) * rstd, g = dy * (offset + weight)"
RMS_DW = "sum over rows of dy * xhat, xhat rounded as in the forward"
LAYER_DX = "(g - mean(g) - xhat * mean(g * xhat)) * rstd, g = dy * weight"

RMS_NORM = op(
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
FUSED_ADD_RMS_NORM = op(
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
LAYER_NORM = op(
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
COHERE_NORM = op(
    "cohere_norm",
    options={"eps": EPS},
    variants=("heads",),
    mixed=("x", "weight"),
    module="liger_kernels_norm.modules:CohereNorm",
)
L2NORM = op(
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
    kernel(
        "rms_norm",
        "rms_norm:norm_bytes",
        saved=("x", "weight", "rstd (R,) float32"),
        gradients={"x": RMS_DX, "weight": RMS_DW, "bias": "sum over rows of dy"},
        grid=GRID,
        precision=(*RMS_CASTS, PARTIALS),
    ),
    kernel(
        "fused_add_rms_norm",
        "fused_add_rms_norm:fused_add_rms_norm_bytes",
        saved=("weight", "rstd (R,) float32"),
        gradients={"x": f"{RMS_DX}, + ds", "residual": "the same", "weight": RMS_DW},
        grid=GRID,
        precision=("s is rounded before it is normalised", *RMS_CASTS, PARTIALS),
    ),
    kernel(
        "layer_norm",
        "rms_norm:norm_bytes",
        saved=("x", "weight", "bias", "mean (R,) float32", "rstd (R,) float32"),
        gradients={"x": LAYER_DX, "weight": "sum over rows of dy * xhat", "bias": "sum over rows of dy"},
        grid=GRID,
        precision=("everything in float32, rounded once", "the variance is that of x - mean", PARTIALS),
    ),
    kernel(
        "cohere_norm",
        "rms_norm:norm_bytes",
        saved=("x", "weight", "mean (R,) float32", "rstd (R,) float32"),
        gradients={"x": LAYER_DX, "weight": "sum over rows of dy * xhat, for each head"},
        grid=GRID,
        precision=("everything in float32, rounded once", "the variance is that of x - mean", PARTIALS),
    ),
    kernel(
        "l2norm",
        "rms_norm:norm_bytes",
        saved=("x", "rstd (R,) float32"),
        gradients={"x": "(dy - xhat * sum(dy * xhat)) * rstd"},
        grid={name: text for name, text in GRID.items() if name not in ("_backward_dw_wide", "_add_partials")},
        precision=("in float32, rounded once; with cast='none' each step is rounded to x's dtype",),
    ),
]
