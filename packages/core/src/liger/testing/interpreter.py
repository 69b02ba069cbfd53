"""Make Triton's interpreter right for bfloat16 and ``tl.fma``, and loud where it cannot be; and faster.

It keeps bfloat16 as uint16 and, as it comes (seen in triton 3.6, 3.7 and 3.9): truncates when it rounds float32 to
bfloat16, converts integers and float16 to it by their bit patterns, and adds, compares and sums the bit patterns as
integers. Here casts go through float32 and round to nearest even, ``tl.dot`` upcasts its operands, and arithmetic,
reductions and scans on bfloat16 raise: a kernel has to cast to float32 first, which it should on a GPU too. And it
rounds the product inside ``tl.fma``, of which kernels then see nothing but noise where they want what was lost.

It also spends most of its time on what is not the kernel: at each call of a device function it replaces the functions
of ``triton.language``, though the launch has done so, and for each sum of integers it computes in ten operations
whether it overflows, which it reports only when debugging. Here it replaces once per launch and module, and leaves
that out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

TESTED = ((3, 6), (3, 9))


def fix() -> None:
    """Patch the interpreter of this process; calling it twice changes nothing.

    Raises:
        RuntimeError: this version of triton was never tried with the patch.
    """
    import triton
    from triton.runtime import interpreter

    if not TESTED[0] <= tuple(int(n) for n in triton.__version__.split(".")[:2]) <= TESTED[1]:
        raise RuntimeError(
            f"triton {triton.__version__}: its interpreter was not checked for bfloat16 (known: "
            f"{TESTED[0][0]}.{TESTED[0][1]} to {TESTED[1][0]}.{TESTED[1][1]}); run core's tests/test_testing.py "
            "with it and extend liger.testing.interpreter.TESTED"
        )
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, "_liger"):
        return
    builder._liger = True
    _fix_casts(builder, interpreter)
    _fix_arithmetic(builder, interpreter)
    _fix_calls(interpreter)
    interpreter.TritonSemantic.binary_op_sanitize_overflow_impl = lambda self, lhs, rhs, operation: None


def round_to_bfloat16(x: Any) -> Any:
    """float32 array -> uint16 array of bfloat16 bit patterns, to nearest even; NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded.astype(np.uint16))


def _widen(x: Any) -> Any:
    import numpy as np

    return (np.ascontiguousarray(x).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _fix_casts(builder: Any, interpreter: Any) -> None:
    import numpy as np
    import triton.language as tl

    cast, fp_to_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return cast(self, src, dst_type)
        if source == tl.bfloat16:
            wide = interpreter.TensorHandle(_widen(src.data), tl.float32)
            return wide if target == tl.float32 else cast(self, wide, dst_type)
        with np.errstate(over="ignore"):
            return interpreter.TensorHandle(round_to_bfloat16(src.data.astype(np.float32)), target)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        to_bfloat16 = src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16
        if to_bfloat16 and rounding_mode != interpreter._ir.ROUNDING_MODE.RTZ:
            return cast_impl(self, src, dst_type)
        return fp_to_fp(self, src, dst_type, rounding_mode)

    builder.cast_impl, builder.create_fp_to_fp = cast_impl, create_fp_to_fp


def _fix_arithmetic(builder: Any, interpreter: Any) -> None:
    import numpy as np
    import triton.language as tl

    dot = builder.create_dot

    def widen(self: Any, x: Any) -> Any:
        return self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, widen(self, a), widen(self, b), d, *rest)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if x.dtype.scalar != tl.float32:
            raise TypeError("tl.fma in the interpreter is for float32")
        exact = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(exact.astype(np.float32), tl.float32)

    def refuse(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            flat = [t for a in args for t in (a if isinstance(a, tuple) else (a,))]
            if any(getattr(getattr(t, "dtype", None), "scalar", None) == tl.bfloat16 for t in flat):
                raise TypeError("bfloat16 arithmetic in a kernel: cast to tl.float32 first")
            return method(self, *args, **kwargs)

        return checked

    def get_bf16(self: Any, value: float) -> Any:
        return interpreter.TensorHandle(round_to_bfloat16(np.array([value], np.float32)), tl.bfloat16)

    builder.create_dot, builder.get_bf16, builder.create_fma = create_dot, get_bf16, create_fma
    for name in ("binary_op", "unary_op"):
        setattr(builder, name, refuse(getattr(builder, name)))
    interpreter.ReduceScanOpInterface.apply = refuse(interpreter.ReduceScanOpInterface.apply)


def _fix_calls(interpreter: Any) -> None:
    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    restore = scope.restore
    done: set[int] = set()  # the namespaces whose functions find a patched language, until the launch ends

    def patch_once(fn: Any) -> Any:
        namespace = id(fn.__globals__)
        if namespace in done:
            return scope()
        done.add(namespace)
        return patch(fn)

    def restore_all(self: Any) -> None:
        done.clear()
        restore(self)

    interpreter._patch_lang, scope.restore = patch_once, restore_all
