"""What all norms declare alike."""

from liger import Kernel, Needs, Op, Profile

PARTIALS = "partial sums in float32, one per program, added in a fixed order and rounded once"


def op(name: str, **fields: object) -> Op:
    """An op that has the name of its file and of its functions."""
    functions = {
        "public": f"liger_kernels_norm.{name}:{name}",
        "reference": f"liger_kernels_norm.{name}:{name}_reference",
        "inputs": f"liger_kernels_norm.{name}:{name}_inputs",
    }
    return Op(name=name, **{**functions, **fields})  # type: ignore[arg-type]


def kernel(
    op: str,
    *,
    fn: str = "",
    bytes_: str = "",
    widest: int | None = None,
    tier: str = "reduction",
    **profile: object,
) -> Kernel:
    """The Triton kernel of an op; the other arguments are those of its ``Profile``.

    Args:
        op: name of the op.
        fn, bytes_: "module:function" inside this package, where it is not named as the op is.
        widest: H up to which it is tested.
        tier: of the profile.
    """
    return Kernel(
        op=op,
        name="triton",
        fn=f"liger_kernels_norm.{fn or f'_{op}_triton:{op}_triton'}",
        rank=10,
        needs=Needs(
            devices=("cuda", "xpu"),
            dtypes=("float32", "float16", "bfloat16"),
            max_size={"H": widest} if widest else {},
            interpreter=True,
        ),
        bytes=f"liger_kernels_norm.{bytes_ or f'{op}:{op}_bytes'}",
        profile=Profile(tier=tier, **profile),  # type: ignore[arg-type]
        measured=("sm90",),
    )
