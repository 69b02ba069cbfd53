"""Everything a kernel must do beside being accurate, as one list of checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from liger.declare import Kernel, load
from liger.errors import ContractViolation, KernelUnavailable
from liger.registry import registry
from liger.testing.cases import Case, dtypes, find, make_cases, option_values, parameter, typical

if TYPE_CHECKING:
    import torch
    from _pytest.mark import ParameterSet


@dataclass(frozen=True, slots=True)
class Check:
    """A named check of one kernel; call it with a device."""

    name: str
    run: Callable[[str], None]

    def __call__(self, device: str = "cpu") -> None:
        """Run it; raises ContractViolation or what the kernel raises."""
        self.run(str(device))


def checks(*kernels: str | Kernel) -> list[ParameterSet]:
    """All checks of these kernels, for ``pytest.mark.parametrize("check", checks("silu_mul/triton"))``."""
    found = [find(kernel) for kernel in kernels]
    prefix = "{.id}-" if len(found) > 1 else ""
    return [parameter(c, prefix.format(kernel) + c.name, kernel) for kernel in found for c in _checks(kernel)]


def check_kernel(kernel: str | Kernel, device: str = "cpu") -> None:
    """Run all checks of a kernel and report every one that fails.

    Raises:
        ContractViolation: with the name and the message of each failed check.
    """
    failures = []
    for check in _checks(find(kernel)):
        try:
            check(device)
        except Exception as error:
            failures.append(f"{check.name}: {type(error).__name__}: {error}")
    if failures:
        raise ContractViolation("\n".join(failures))


def _checks(kernel: Kernel) -> list[Check]:
    accuracy = [Check(f"contract-{case.id}", case.check) for case in make_cases(kernel)]
    return accuracy + [Check(name, _bind(fn, kernel)) for name, fn in BEHAVIOUR.items()]


def _bind(fn: Callable[[Kernel, str], None], kernel: Kernel) -> Callable[[str], None]:
    return lambda device: fn(kernel, device)


def _fail(message: str) -> None:
    raise ContractViolation(message)


def _leaves(case: Case, device: str) -> tuple[list[torch.Tensor | None], Any]:
    """Inputs, and the call that maps them to the list of outputs."""
    import torch

    tensors, options = case.make(device)
    fn = case.public()

    def forward() -> list[torch.Tensor]:
        made = fn(*tensors, **options)
        outputs = [made] if isinstance(made, torch.Tensor) else list(made)
        return [o for o in outputs if o is not None]

    return tensors, forward


def _gradients(
    outputs: list[torch.Tensor], tensors: list[torch.Tensor | None], seeds: list[torch.Tensor], **kwargs: Any
) -> list[torch.Tensor | None]:
    import torch

    wanted = [t for t in tensors if t is not None and t.requires_grad]
    roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    return list(torch.autograd.grad([o for o, _ in roots], wanted, [s for _, s in roots], allow_unused=True, **kwargs))


def _equal(a: list[torch.Tensor | None], b: list[torch.Tensor | None], what: str) -> None:
    from liger.testing.compiled import same_bits

    for position, (left, right) in enumerate(zip(a, b, strict=True)):
        if (left is None) != (right is None) or (left is not None and right is not None and not same_bits(left, right)):
            _fail(f"{what}: gradient or output {position} differs")


def _launched(kernel: Kernel, device: str) -> None:
    """The kernel that was asked for served the call, and if it is a Triton kernel something was launched."""
    from liger.testing.observe import count_ops, launches

    _, forward = _leaves(typical(kernel), device)
    with count_ops() as counts:
        forward()
    if counts[kernel.op, kernel.name] != 1:
        _fail(f"one call was expected to be served by {kernel.id}, counted: {dict(counts)}")
    if kernel.needs.interpreter:
        with launches() as launched:
            forward()
        if not launched:
            _fail(f"{kernel.id} launched nothing")


def _chosen(kernel: Kernel, device: str) -> None:
    """On a device that it names the kernel is chosen without being asked for."""
    from liger.testing.observe import count_ops

    case = typical(kernel)
    if device.partition(":")[0] not in kernel.needs.devices:
        return
    tensors, options = case.make(device)
    with count_ops() as counts:
        load(case.op.public)(*tensors, **options)
    if not counts[kernel.op, kernel.name]:
        _fail(f"{kernel.id} was not chosen on {device}: {dict(counts)}")


def _input_gradients(kernel: Kernel, device: str) -> None:
    """Freezing an input gives no gradient for it, changes no other, and allocates less in the backward."""
    from liger.testing.contract import random_like
    from liger.testing.memory import allocated

    tensors, forward = _leaves(typical(kernel), device)
    outputs = forward()
    seeds = random_like(outputs)
    wanted = [i for i, t in enumerate(tensors) if t is not None and t.requires_grad]
    full = dict(zip(wanted, _gradients(outputs, tensors, seeds), strict=True))
    cost = allocated(lambda: _gradients(forward(), tensors, seeds))
    for frozen in wanted if len(wanted) > 1 else ():
        tensors[frozen].requires_grad_(False)  # type: ignore[union-attr]
        left = [full[i] for i in wanted if i != frozen]
        _equal(_gradients(forward(), tensors, seeds), left, f"with input {frozen} frozen")
        less = allocated(lambda: _gradients(forward(), tensors, seeds))
        if less >= cost:
            _fail(f"with input {frozen} frozen the step allocates {less} bytes of {cost}: something is computed for it")
        tensors[frozen].requires_grad_(True)  # type: ignore[union-attr]
    for i in wanted:
        tensors[i].requires_grad_(False)  # type: ignore[union-attr]
    if any(o.requires_grad for o in forward()):
        _fail("an output requires a gradient though no input does")


def _untouched(kernel: Kernel, device: str) -> None:
    """Neither inputs nor output gradients are written, and no output is a view of an input."""
    from liger.testing.contract import random_like
    from liger.testing.memory import no_writes

    tensors, forward = _leaves(typical(kernel), device)
    seeds = random_like(forward())
    with no_writes(*tensors, *seeds):
        outputs = forward()
        _gradients(outputs, tensors, seeds)
    places = {t.untyped_storage().data_ptr() for t in tensors if t is not None and t.numel()}
    if any(o.untyped_storage().data_ptr() in places for o in outputs):
        _fail("an output shares memory with an input")


def _stride_0(kernel: Kernel, device: str) -> None:
    """An expanded gradient, as ``sum().backward()`` makes it, gives what its contiguous copy gives."""
    import torch

    tensors, forward = _leaves(typical(kernel), device)
    outputs = forward()
    expanded = [torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape) for o in outputs]
    got = _gradients(outputs, tensors, expanded)
    _equal(got, _gradients(forward(), tensors, [s.contiguous() for s in expanded]), "stride-0 output gradient")


def _second_backward(kernel: Kernel, device: str) -> None:
    """A second backward through one graph gives the same gradients: nothing saved was overwritten."""
    from liger.testing.contract import random_like

    tensors, forward = _leaves(typical(kernel), device)
    outputs = forward()
    seeds = random_like(outputs)
    # cloned at once: what was handed out may be the very memory that a second backward must not change
    first = [None if g is None else g.clone() for g in _gradients(outputs, tensors, seeds, retain_graph=True)]
    _equal(_gradients(outputs, tensors, seeds), first, "second backward")


def _deterministic(kernel: Kernel, device: str) -> None:
    """Two runs give the same bits."""
    from liger.testing.contract import random_like

    for dtype in dtypes(kernel):
        case = typical(kernel, dtype)
        # on a GPU as many rows as many programs share: the few of a typical case have no order
        rows = {next(iter(case.sizes)): 4096} if device.startswith("cuda") else {}
        tensors, forward = _leaves(case.replace(sizes={**case.sizes, **rows}), device)
        first, second = forward(), forward()
        seeds = random_like(first)
        _equal(list(first), list(second), "two forwards")
        _equal(_gradients(first, tensors, seeds), _gradients(second, tensors, seeds), "two backwards")


def _no_host_sync(kernel: Kernel, device: str) -> None:
    """Forward and backward never make the host wait."""
    from liger.testing.contract import random_like
    from liger.testing.observe import no_sync

    tensors, forward = _leaves(typical(kernel), device)
    seeds = random_like(forward())
    with no_sync():
        _gradients(forward(), tensors, seeds)


def _options_matter(kernel: Kernel, device: str) -> None:
    """Each option changes an output or a gradient in at least one dtype: none is accepted and ignored."""
    from liger.testing.compiled import run, same_bits

    ignored = []
    for name, value in option_values(kernel):
        for dtype in dtypes(kernel):
            case = typical(kernel, dtype)
            tensors, options = case.make(device)
            plain, other = (run(case.public(), tensors, o) for o in (options, {**options, name: value}))
            if len(plain) != len(other) or not all(map(same_bits, plain, other)):
                break
        else:
            ignored.append(f"{name}={value!r}")
    if ignored:
        _fail(f"accepted and ignored: {', '.join(ignored)}")


def _limits(kernel: Kernel, device: str) -> None:
    """The last accepted size works; the next is refused with both numbers and served by another kernel."""
    for name, limit in kernel.needs.max_size.items():
        smallest = {n: min(v) for n, v in registry().op(kernel.op).sizes.items()}
        if name not in smallest:
            _fail(f"max_size names {name!r}, which the op does not list among its sizes")
        inside = typical(kernel).replace(sizes={**smallest, name: limit})
        inside.check(device)
        tensors, options = inside.replace(sizes={**smallest, name: limit + 1}).make(device)
        try:
            inside.public()(*tensors, **options)
        except KernelUnavailable as error:
            if str(limit) not in str(error) or str(limit + 1) not in str(error):
                _fail(f"the refusal of {name}={limit + 1} does not name both numbers: {error}")
        else:
            _fail(f"{name}={limit + 1} is served though max_size says {limit}")
        load(inside.op.public)(*tensors, **options)


def _compile(kernel: Kernel, device: str, backend: str = "aot_eager") -> None:
    """Compiled with fullgraph it equals eager bit for bit over four lengths, in no more graphs than the reference."""
    from liger.testing.compiled import check_compile

    case = typical(kernel)
    rows = next(iter(case.sizes))
    lengths = [case.replace(sizes={**case.sizes, rows: n}).make(device) for n in (5, 5, 8, 11)]
    check_compile(case.public(), lengths, upstream=load(case.op.reference), backend=backend)


def _inductor(kernel: Kernel, device: str) -> None:
    if device.startswith("cuda"):
        _compile(kernel, device, "inductor")


def _opcheck(kernel: Kernel, device: str) -> None:
    """``torch.library.opcheck`` passes on the library ops called while compiling, with an input frozen as well."""
    from liger.testing.compiled import opcheck

    for dtype in dict.fromkeys((dtypes(kernel)[0], dtypes(kernel)[-1])):
        case = typical(kernel, dtype)
        tensors, options = case.make(device)
        opcheck(case.public(), tensors, options)
        next(t for t in tensors if t is not None and t.requires_grad).requires_grad_(False)
        opcheck(case.public(), tensors, options)


def _cuda_graph(kernel: Kernel, device: str) -> None:
    """Forward and backward can be captured in a CUDA graph, and its replay gives eager's bits."""
    if not device.startswith("cuda"):
        return
    import torch

    from liger.testing.compiled import run

    case = typical(kernel, dtypes(kernel)[-1])
    tensors, options = case.make(device)
    fn = case.public()
    expected = run(fn, tensors, options)
    # seeds come from the host, so the capture gets its own from outside
    leaves = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in tensors]
    from liger.testing.contract import random_like

    seeds = random_like(expected)

    def step() -> list[torch.Tensor | None]:
        made = fn(*leaves, **options)
        outputs = [made] if isinstance(made, torch.Tensor) else [o for o in made if o is not None]
        return [*outputs, *_gradients(outputs, leaves, seeds[: len(outputs)])]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    _equal([c for c in captured if c is not None], list(expected), "CUDA graph replay")


BEHAVIOUR: dict[str, Callable[[Kernel, str], None]] = {
    "launched": _launched,
    "chosen_by_rank": _chosen,
    "needs_input_grad": _input_gradients,
    "caller_memory_untouched": _untouched,
    "stride_0_gradient": _stride_0,
    "second_backward": _second_backward,
    "deterministic": _deterministic,
    "no_host_sync": _no_host_sync,
    "options_matter": _options_matter,
    "size_limits": _limits,
    "compile": _compile,
    "inductor": _inductor,
    "opcheck": _opcheck,
    "cuda_graph": _cuda_graph,
}
