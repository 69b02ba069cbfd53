"""From an op and its arguments to the kernel that serves the call. Imported by op files only, so torch is loaded here.

Three states stay apart: *available* (its module imports), *enabled* (``LIGER_DISABLE_KERNELS``) and *accepts this call*
(its ``needs``). Device, dtypes and preference decide once per combination; sizes and options are compared on each call
in plain Python, which dynamo traces without a graph break.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from liger.context import CONTEXT
from liger.declare import Call, Kernel, load
from liger.dtensor import reference_only
from liger.errors import KernelUnavailable
from liger.numerics import without_autocast
from liger.registry import disabled_kernels, registry

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that serves this device and these dtypes; ``limits`` are what is left to compare on each call.

    ``arity``: how many tensors its function takes. An op may have gained an optional one since the kernel was written.
    """

    name: str
    fn: Callable[..., Any]
    arity: int
    max_size: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, tuple[Any, ...]], ...]

    def accepts(
        self, tensors: Sequence[torch.Tensor | None], sizes: Mapping[str, int], options: Mapping[str, Any]
    ) -> bool:
        """Whether the function takes all tensors that are given, and sizes and options lie inside its limits."""
        if len(tensors) > self.arity and any(extra is not None for extra in tensors[self.arity :]):
            return False
        for name, limit in self.max_size:
            if sizes[name] > limit:
                return False
        return not self.options or all(options[name] in values for name, values in self.options)


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of the process log: which kernel serves an op for one device and dtype, compiled or not, and why."""

    op: str
    device: str
    dtypes: tuple[str, ...]
    prefer: str | None
    chosen: str
    rejected: tuple[tuple[str, tuple[str, ...]], ...]
    compiled: bool = False


class _Log:
    """Decisions of this process in order, each once, and the observers that ``liger.testing.count_ops`` adds."""

    def __init__(self) -> None:
        self.decisions: dict[Decision, None] = {}
        self.observers: list[Callable[[str, str], None]] = []


class _Table:
    """One attribute per kernel. Dynamo can guard on an attribute of a global, not on a function in a constant."""


LOG = _Log()
TABLE = _Table()
Asked = tuple[str, torch.device, tuple[torch.dtype, ...], str | None, str | None, bool]
_cache: dict[tuple[Any, ...], tuple[str, ...]] = {}
_lock = threading.Lock()


def public(op: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function an op's public function: options and kernels chosen by ``with`` reach it as arguments."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if op in CONTEXT.options:
                kwargs = {**CONTEXT.options[op], **kwargs}  # type: ignore[assignment]
            return fn(*args, **kwargs)

        call.__liger_op__ = op  # type: ignore[attr-defined]
        return call

    return decorate


def bind(op: str, kernel: str | None, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The public function of ``op`` with the kernel and options that ``autopatch`` was given.

    An argument of the call wins over a ``with`` block, a ``with`` block over what is bound here.
    """
    fn = load(registry().op(op).public)
    defaults = dict(options)
    if kernel is None and not defaults:
        return fn  # type: ignore[no-any-return]

    def bound(*args: Any, **kwargs: Any) -> Any:
        if defaults:
            kwargs = {**defaults, **CONTEXT.options.get(op, {}), **kwargs}
        if op not in CONTEXT.prefer and "*" not in CONTEXT.prefer:
            kwargs.setdefault("kernel", kernel)
        return fn(*args, **kwargs)

    return bound


def check_tensor(op: str, name: str, value: object) -> None:
    """Raise TypeError that names the argument unless ``value`` is a tensor whose elements lie in memory by strides."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        found, dense = f"one with layout {value.layout}", "to_dense()"
        if value.is_quantized:
            found, dense = "a quantized one", "dequantize()"
        if value.is_nested:
            found, dense = "a nested one", "to_padded_tensor(0.0), or its values()"
        raise TypeError(f"{op}: {name} must be a dense tensor, got {found}; pass {name}.{dense}")


def check_choice(op: str, name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError that names the argument unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{op}: {name} is {value!r}, expected one of {', '.join(map(str, choices))}")


def check_flag(op: str, name: str, value: object) -> None:
    """Raise TypeError that names the argument unless ``value`` is True or False; "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be a bool, got {type(value).__name__}")


def check_number(op: str, name: str, value: Any, expected: str = "a number") -> float:
    """``value`` as a float: kernels are compiled for the type of a number, and 0 must not be another kernel than 0.0.

    Raises:
        TypeError: it is no Python or numpy number; the message names the argument.
    """
    if isinstance(value, int):
        return value * 1.0  # of an integer that dynamo does not know, float() would make a constant
    if isinstance(value, torch.Tensor) or not (isinstance(value, float) or hasattr(value, "__float__")):
        raise TypeError(f"{op}: {name} must be {expected}, got {type(value).__name__}")
    return float(value)


def check_eps(op: str, eps: object) -> float:
    """``eps`` as a float, a finite number, 0 or more.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, nan or infinite.
    """
    number = check_number(op, "eps", eps)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{op}: eps is {eps!r}, expected a finite number, 0 or more")
    return number


def run(
    op: str,
    tensors: Sequence[torch.Tensor | None],
    options: Mapping[str, Any],
    *,
    sizes: Mapping[str, int],
    kernel: str | None = None,
) -> Any:
    """Call the best kernel of ``op``: ``fn(*tensors, **options)``.

    Args:
        tensors: the tensor arguments in the reference's order; the first gives the device.
        options: every option of the op, by name.
        sizes: the named dimensions that kernels may limit.
        kernel: a kernel's name, to choose by hand; otherwise the ``with`` block's choice, then the rank decides.

    Raises:
        KernelUnavailable: the kernel chosen by hand cannot serve the call, or none can.
    """
    compiled = torch.compiler.is_compiling()
    if compiled:
        tensors = _distinct(tensors)
    else:  # kernels read the memory, where a lazy minus sign is not
        tensors = [t.resolve_neg() if t is not None and t.is_neg() else t for t in tensors]
    by_hand = reference_only(op, tensors, kernel or CONTEXT.prefer.get(op))
    anywhere = None if by_hand else CONTEXT.prefer.get("*")
    dtypes = tuple([t.dtype for t in tensors if t is not None and t.dtype.is_floating_point])
    for entry in candidates(op, tensors[0].device, dtypes, by_hand, anywhere, compiled):  # type: ignore[union-attr]
        candidate: Candidate = getattr(TABLE, entry)
        if candidate.accepts(tensors, sizes, options):
            for observer in LOG.observers:
                observer(op, candidate.name)
            return candidate.fn(*tensors[: candidate.arity], **options)
    raise KernelUnavailable(_explain(op, tensors, options, sizes, by_hand or anywhere))


def _distinct(tensors: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """The same, but a view where a tensor comes again: dynamo takes none twice into an ``autograd.Function``."""
    out: list[torch.Tensor | None] = []
    for t in tensors:
        again = t is not None and any(t is other for other in out)
        out.append(t.view_as(t) if again and t is not None else t)
    return out


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def candidates(*asked: *Asked) -> tuple[str, ...]:
    """The entries of ``TABLE`` able to serve, best first; decided once for each op, device, dtypes and preference."""
    op, device, dtypes, by_hand, anywhere, compiled = asked
    key = (op, device, dtypes, by_hand, anywhere), compiled
    found = _cache.get(key)
    if found is None:
        with _lock:
            found = _cache[key] = _decide(*asked)
    return found


def reset() -> None:
    """Forget every decision (tests; after ``LIGER_DISABLE_KERNELS`` or the registry changed)."""
    _cache.clear()
    LOG.decisions.clear()


def capability(device: torch.device) -> tuple[int, int] | None:
    """CUDA compute capability of ``device``; None for other device types."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def make_call(
    op: str,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    by_hand: str | None = None,
    sizes: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Call:
    """Describe a call to ``Needs``."""
    return Call(
        op=op,
        device=device.type,
        capability=capability(device),
        dtypes=tuple(str(d).removeprefix("torch.") for d in dtypes),
        sizes=sizes or {},
        options=options or {},
        by_hand=by_hand is not None,
    )


def reasons(kernel: Kernel, call: Call, prefer: str | None = None) -> list[str]:
    """Why ``kernel`` does not serve ``call``: its needs, a disabled name, a failing import, a preference."""
    out = list(kernel.needs.reasons(call))
    if disabled_kernels() & {kernel.name, kernel.id}:
        out.append("disabled by LIGER_DISABLE_KERNELS")
    if prefer is not None and kernel.name != prefer:
        out.append(f"prefer={prefer!r}")
    if not out:
        try:
            load(kernel.fn)
        except ImportError as error:
            out.append(f"its module does not import: {error}")
    return out


def _decide(*asked: *Asked) -> tuple[str, ...]:
    op, device, dtypes, by_hand, anywhere, compiled = asked
    call = make_call(op, device, dtypes, by_hand or anywhere)
    kernels = registry().kernels(registry().op(op).name)
    if anywhere is not None and all(k.name != anywhere for k in kernels):
        anywhere = None  # "*" counts for the ops that have such a kernel
        call = make_call(op, device, dtypes)
    prefer = by_hand or anywhere
    traced = compiled and prefer is None and device.type in registry().op(op).traced_on
    able, rejected = [], []
    for kernel in kernels:
        why = reasons(kernel, call, prefer)
        if traced and kernel.name != "reference":
            why.append("torch.compile fuses the reference with what is around it")
        if why:
            rejected.append((kernel.name, tuple(why)))
        else:
            able.append(kernel)
    for first, second in zip(able, able[1:], strict=False):
        if first.rank == second.rank:
            owners = " and ".join(f"{k.id} of {registry().owner('kernel', k.id)}" for k in (first, second))
            raise KernelUnavailable(
                f"{owners} have equal rank {first.rank} for {_where(call)}; choose one with prefer="
            )
    if able:
        LOG.decisions[Decision(op, call.device, call.dtypes, prefer, able[0].name, tuple(rejected), compiled)] = None
    return tuple(_enter(k) for k in able)


def _enter(kernel: Kernel) -> str:
    needs = kernel.needs
    entry = f"{kernel.op}__{kernel.name}"
    limits = tuple(needs.max_size.items()), tuple(needs.options.items())
    fn = load(kernel.fn)
    called = without_autocast(fn) if kernel.name == "reference" else fn
    setattr(TABLE, entry, Candidate(kernel.name, called, _arity(fn), *limits))
    return entry


def _arity(fn: Callable[..., Any]) -> int:
    """Number of positional parameters."""
    kinds = [p.kind for p in inspect.signature(fn).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return sys.maxsize
    return sum(k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)


def _why_not(kernel: Kernel, call: Call, prefer: str | None, tensors: int) -> list[str]:
    why = reasons(kernel, call, prefer)
    if not why and (arity := _arity(load(kernel.fn))) < tensors:
        why.append(f"it takes {arity} tensors, {tensors} were given")
    return why


def _where(call: Call) -> str:
    return f"device={call.device}, dtypes=({', '.join(call.dtypes)})"


def _explain(
    op: str,
    tensors: Sequence[torch.Tensor | None],
    options: Mapping[str, Any],
    sizes: Mapping[str, int],
    prefer: str | None,
) -> str:
    dtypes = [t.dtype for t in tensors if t is not None and t.dtype.is_floating_point]
    call = make_call(op, tensors[0].device, dtypes, prefer, sizes, options)  # type: ignore[union-attr]
    rows = [f"  {k.id}: {'; '.join(_why_not(k, call, prefer, len(tensors)))}" for k in registry().kernels(op)]
    asked = f"kernel {prefer!r} of {op} was asked for and" if prefer else f"no kernel of {op}"
    cannot = "cannot serve" if prefer else "can serve"
    return f"{asked} {cannot} {_where(call)}, sizes={dict(sizes)}:\n" + "\n".join(rows)
