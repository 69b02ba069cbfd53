"""What every Triton kernel package needs around a launch. Imports torch, never triton."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[torch.Tensor | None],
    numbers: Sequence[int | float] = (),
    /,
    **how: Any,
) -> None:
    """Launch a ``@triton.jit`` kernel whose parameters are tensors, then numbers, then constexprs, in this order.

    Numbers must be listed in ``do_not_specialize``; anything the code should be specialised on is a constexpr. On CUDA
    the compiled kernel is called directly, which costs a third of ``kernel[grid](...)``; elsewhere (interpreter, meta
    tensors in the compile gate, other devices) and while a profiler has launch hooks the ordinary path is taken.
    The kernel runs on the device of the first tensor and on its current stream. A grid with a 0 launches nothing.

    Args:
        how: constexprs and settings as `prepare` takes them.
    """
    prepare(kernel, **how)(grid, tensors, numbers)


class Launch:
    """A kernel with its constexprs and settings; calling it launches, as ``launch`` says. `prepare` makes them."""

    __slots__ = ("constants", "kernel", "options", "values")

    def __init__(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any]) -> None:
        self.kernel, self.constants, self.options = kernel, constants, options
        self.values = tuple(constants.values())

    def __call__(
        self, grid: tuple[int, ...], tensors: Sequence[torch.Tensor | None], numbers: Sequence[int | float] = ()
    ) -> None:
        """Launch on the device of the first tensor and on its current stream."""
        if 0 in grid:
            return
        first = tensors[0]
        assert first is not None  # our own bug: a kernel without a tensor
        if not first.is_cuda:
            self._ordinary(grid, tensors, numbers)
            return
        pointers: list[int] = []
        dtypes: list[torch.dtype | None] = []
        bits = 0
        for t in tensors:
            if t is not None and t.is_neg():
                self(grid, _resolved(tensors), numbers)
                return
            pointer = 0 if t is None else t.data_ptr()
            bits |= pointer
            pointers.append(pointer)
            dtypes.append(None if t is None else t.dtype)
        # all that the compiled kernel depends on: triton specialises each pointer on 16-byte alignment, and types an
        # integer by its size
        index = first.get_device()
        aligned = [p & 15 == 0 for p in pointers] if bits & 15 else ()
        key = (self, index, _widths(numbers), *map(type, numbers), *dtypes, *aligned)
        compiled = _compiled.get(key)
        previous = torch._C._cuda_exchangeDevice(index)
        try:
            if compiled is None or _has_hooks():
                _compiled[key] = self._ordinary(grid, tensors, numbers)
                return
            x, y, z = (*grid, 1, 1)[:3]
            stream = torch._C._cuda_getCurrentRawStream(index)
            function, metadata = compiled.function, compiled.packed_metadata
            compiled.run(x, y, z, stream, function, metadata, None, None, None, *pointers, *numbers, *self.values)
        finally:
            torch._C._cuda_maybeExchangeDevice(previous)

    def _ordinary(
        self, grid: tuple[int, ...], tensors: Sequence[torch.Tensor | None], numbers: Sequence[int | float]
    ) -> Any:
        """Launch as triton does; the compiled kernel."""
        return self.kernel[grid](*_resolved(tensors), *numbers, **self.constants, **self.options)


@contextlib.contextmanager
def no_launches() -> Iterator[None]:
    """Leave out launches for tensors that are on no GPU, so that kernels run on the meta device and allocate alone."""
    ordinary = Launch._ordinary
    Launch._ordinary = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Launch._ordinary = ordinary  # type: ignore[method-assign]


# must never evict: compiled kernels are kept by their Launch
@functools.cache
def prepare(
    kernel: Any,
    *,
    num_warps: int | None = None,
    num_stages: int | None = None,
    fuse_multiply_add: bool = True,
    **constants: Any,
) -> Launch:
    """A kernel's launch with these settings and constexprs, in the order of the kernel's parameters; kept.

    ``fuse_multiply_add=False`` keeps each product's own rounding, where a result must have upstream's bits: LLVM
    narrows 16-bit values that were widened and rounded again, and then contracts them into one fma.

    A kernel for a device without warps leaves ``num_warps`` and ``num_stages`` out, and its backend, which refuses what
    it does not know, is not asked for any. With warps, stages are 1 by default: loops that want loads on their way say
    so themselves.
    """
    options: dict[str, Any] = {"enable_fp_fusion": fuse_multiply_add}
    if num_warps is not None:
        options["num_warps"] = num_warps
        num_stages = num_stages or 1
    if num_stages is not None:
        options["num_stages"] = num_stages
    return Launch(kernel, constants, options)


def _resolved(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Without lazy minus signs: kernels read the memory, where these are not."""
    return [t if t is None else t.resolve_neg() for t in tensors]


def _widths(numbers: Sequence[int | float]) -> tuple[bool, ...] | None:
    """None if every integer fits into 32 bits, as almost always; else which do."""
    if not numbers or (min(numbers) >= _INT32_MIN and max(numbers) <= _INT32_MAX):
        return None
    return tuple([_INT32_MIN <= n <= _INT32_MAX for n in numbers])


def _has_hooks() -> bool:
    # each is None, a function, or (triton 3.5 and later) a HookChain, which is true even when nobody hooked in
    runtime = sys.modules["triton"].knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def refuse_second_derivative(op: str) -> None:
    """Call this first in every ``autograd.Function.backward``; ``op`` is the op's name.

    Gradients are recorded inside a backward for ``create_graph=True`` alone. What a kernel writes has no graph, so what
    is made of it would silently lack terms. ``once_differentiable`` does not see it where dy requires no gradient,
    and takes longer on the host.

    Raises:
        RuntimeError: a second derivative is being prepared.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{op}: this kernel has no second derivative, which create_graph=True asks for; compute the forward with "
            f'kernel="reference" or inside `with liger.prefer("reference")`, which has one'
        )


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own ``cdiv`` is made for kernels as well, and takes 10 us on the host."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``; 1 for ``n`` < 1. As with ``ceil_div``, Triton's takes 10 us."""
    return 1 << max(0, n - 1).bit_length()


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """(..., H) -> (R, H) with dense rows, copied only if it is not so already; free of charge where it is.

    A gradient may arrive with stride 0 (``y.sum().backward()``).
    """
    if x.dim() == 2 and x.is_contiguous():
        return x
    return x.reshape(-1, x.shape[-1]).contiguous() if x.numel() else x.reshape(x.shape[:-1].numel(), x.shape[-1])


class GPU(NamedTuple):
    """What launches depend on.

    Attributes:
        name: ``"sm90"``, ``"gfx942"``: the architecture that code is compiled for; ``"xpu"`` where there is one.
        processors: number of multiprocessors, for persistent grids.
        shared: bytes of shared memory that one program may use.
    """

    name: str
    processors: int
    shared: int

    @property
    def lanes(self) -> int:
        """Threads of a warp: 64 on AMD's data centre GPUs, gfx9, and 32 on all others."""
        return 64 if self.name.startswith("gfx9") else 32

    @property
    def most_warps(self) -> int:
        """Warps that a program may have: no GPU takes more than 1024 threads, so wider warps are fewer."""
        return 1024 // self.lanes


ASSUMED = GPU("sm90", 132, 232_448)  # an H100 or H200, where nothing can be asked: interpreter, meta tensors


@functools.cache
def gpu(device: torch.device) -> GPU:
    """The GPU that ``device`` is; ``ASSUMED`` where nothing can be asked, with the name of another type of device."""
    if device.type != "cuda":
        return ASSUMED if device.type in ("cpu", "meta") else ASSUMED._replace(name=device.type)
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return GPU(found.gcnArchName.partition(":")[0], found.multi_processor_count, found.shared_memory_per_block)
    name = f"sm{found.major}{found.minor}"
    shared: int = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return GPU(name, found.multi_processor_count, shared)


@contextlib.contextmanager
def assume(found: GPU) -> Iterator[None]:
    """Inside the block devices that cannot be asked are ``found``; for tests and the compile gate."""
    global ASSUMED
    before, ASSUMED = ASSUMED, found
    gpu.cache_clear()
    try:
        yield
    finally:
        ASSUMED = before
        gpu.cache_clear()


_library = torch.library.Library("liger", "FRAGMENT")  # type: ignore[no-untyped-call]


def private_op(name: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let ``torch.compile`` see a launching function as one opaque op; in eager the function is called directly.

    The op is private (leading underscore): gradients belong to the ``autograd.Function`` around it. The decorated
    function must not change its arguments, must return fresh tensors and annotate its parameters for torch.library.
    Instead of one of several results it may return None: an op cannot, and gives an empty tensor.

    Args:
        name: op name; it is registered as ``liger::_<name>``.
        fake: same signature, returns empty outputs of the right shape, dtype and device, or None likewise.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        schema = torch.library.infer_schema(fn, mutates_args=())
        _library.define(f"_{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _library.impl(f"_{name}", _no_none(fn), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"liger::_{name}", _no_none(fake), lib=_library)
        op = getattr(torch.ops.liger, f"_{name}").default

        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            return op(*args) if torch.compiler.is_compiling() else fn(*args)

        return call

    return decorate


def _no_none(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with an empty tensor for each None among its results."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        found = fn(*args)
        if not isinstance(found, tuple) or None not in [t if t is None else 0 for t in found]:
            return found
        some = next(a for a in args if isinstance(a, torch.Tensor))
        return tuple([some.new_empty(0) if t is None else t for t in found])

    return call
