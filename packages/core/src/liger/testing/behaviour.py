"""What a kernel must do beside being accurate: each check takes the kernel's declaration and a device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from liger import launch
from liger.declare import Kernel, load
from liger.errors import ContractViolation
from liger.registry import registry
from liger.testing.cases import Case, any_case, dtypes, largest, make_cases, option_values, typical
from liger.testing.compiled import check_compile, run, same_bits
from liger.testing.compiled import opcheck as check_library_ops
from liger.testing.contract import Inputs, flat, random_like
from liger.testing.fixtures import session_seed
from liger.testing.memory import alive, no_writes
from liger.testing.observe import count_ops, launches, no_sync

Tensors = list[torch.Tensor | None]


# -- What checks are made of -------------------------------------------------------------------------------------------
def named(*checks: Callable[[Kernel, str], None]) -> dict[str, Callable[[Kernel, str], None]]:
    """Checks by name, for a module's ``CHECKS``."""
    return {check.__name__: check for check in checks}


def fail(message: str) -> NoReturn:
    """Raise ContractViolation."""
    raise ContractViolation(message)


def prepare(case: Case, device: str) -> tuple[Tensors, Callable[[], list[torch.Tensor]]]:
    """Inputs, and the call that maps them to the list of outputs."""
    tensors, options = case.make(device)
    fn = case.public()
    return tensors, lambda: flat(fn(*tensors, **options))


def gradients(outputs: list[torch.Tensor], tensors: Tensors, seeds: list[torch.Tensor], **kwargs: Any) -> Tensors:
    """Gradients of the tensors that require one."""
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    roots = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    return list(torch.autograd.grad([o for o, _ in roots], wanted, [s for _, s in roots], allow_unused=True, **kwargs))


def differentiable(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs that a backward can start from."""
    return [o for o in outputs if o.requires_grad]


def backward(outputs: list[torch.Tensor]) -> None:
    """Backward from all of them."""
    roots = differentiable(outputs)
    torch.autograd.backward(roots, random_like(roots))


def equal(a: Inputs, b: Inputs, what: str) -> None:
    """Raise unless both lists hold the same bits."""
    for position, (left, right) in enumerate(zip(a, b, strict=True)):
        if (left is None) != (right is None) or (left is not None and right is not None and not same_bits(left, right)):
            fail(f"{what}: gradient or output {position} differs")


# -- Who served, and how -----------------------------------------------------------------------------------------------
def launched(kernel: Kernel, device: str) -> None:
    """In each dtype the kernel that was asked for serves, and a Triton kernel launches what its profile names."""
    for dtype in dtypes(kernel):
        _, forward = prepare(typical(kernel, dtype), device)
        with count_ops() as counts:
            forward()
        if counts[kernel.op, kernel.name] != 1:
            fail(f"{dtype}: one call was expected to be served by {kernel.id}, counted: {dict(counts)}")
        if kernel.needs.interpreter:
            _check_launches(kernel, dtype, forward)


def _check_launches(kernel: Kernel, dtype: str, forward: Callable[[], list[torch.Tensor]]) -> None:
    with launches() as forwards:
        outputs = forward()
    with launches() as backwards:
        backward(outputs)
    for direction, names in (("forward", forwards), ("backward", backwards)):
        if not names and (direction == "forward" or differentiable(outputs)):
            fail(f"{dtype}: the {direction} of {kernel.id} launched nothing")
        if kernel.profile and (unknown := set(names) - set(kernel.profile.grid)):
            fail(f"launched {', '.join(sorted(unknown))}, which the profile's grid does not name")


def chosen_by_rank(kernel: Kernel, device: str) -> None:
    """On a device that it names the kernel is chosen without being asked for; its rank is its own and above 0."""
    others = [k for k in registry().kernels(kernel.op) if k.name != kernel.name and k.rank == kernel.rank]
    if kernel.rank <= 0 or others:
        fail(f"rank {kernel.rank} is not above 0, the reference's, or also that of {[k.id for k in others]}")
    case = typical(kernel)
    if device.partition(":")[0] not in kernel.needs.devices:
        return
    tensors, options = case.make(device)
    with count_ops() as counts:
        load(case.op.public)(*tensors, **options)
    if not counts[kernel.op, kernel.name]:
        fail(f"{kernel.id} was not chosen on {device}: {dict(counts)}")


# -- Memory ------------------------------------------------------------------------------------------------------------
def caller_memory_untouched(kernel: Kernel, device: str) -> None:
    """Neither inputs nor output gradients are written, and no output is a view of an input."""
    tensors, forward = prepare(typical(kernel), device)
    seeds = random_like(forward())
    with no_writes(*tensors, *seeds):
        outputs = forward()
        gradients(outputs, tensors, seeds)
    places = {t.untyped_storage().data_ptr() for t in tensors if t is not None and t.numel()}
    if any(o.untyped_storage().data_ptr() in places for o in outputs):
        fail("an output shares memory with an input")


def memory_leak(kernel: Kernel, device: str) -> None:
    """After many steps no more memory is in use than after a few; without waiting for Python to collect cycles."""
    tensors, forward = prepare(typical(kernel), device)
    seeds = random_like(forward())
    used = []
    gc.collect()
    gc.disable()
    try:
        for steps in (3, 10):
            for _ in range(steps):
                gradients(forward(), tensors, seeds)
            used.append(_in_use(device))
        until = time.monotonic() + 2.0  # on a GPU backwards run in a thread that lets go of the last tensors on its own
        while used[1] > used[0] and time.monotonic() < until:
            time.sleep(0.01)
            used[1] = _in_use(device)
    finally:
        gc.enable()
    if used[1] > used[0]:
        fail(f"{used[1] - used[0]} bytes more are in use after 10 further steps")


def _in_use(device: str) -> int:
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else sum(t.nbytes for t in alive())


# -- Order -------------------------------------------------------------------------------------------------------------
def deterministic(kernel: Kernel, device: str) -> None:
    """Two runs give the same bits."""
    for dtype in dtypes(kernel):
        case = typical(kernel, dtype)
        # on a GPU as many rows as many programs share: the few of a typical case have no order
        rows = {next(iter(case.sizes)): 4096} if device.startswith("cuda") else {}
        tensors, forward = prepare(case.replace(sizes={**case.sizes, **rows}), device)
        first, second = forward(), forward()
        seeds = random_like(first)
        equal(first, second, "two forwards")
        equal(gradients(first, tensors, seeds), gradients(second, tensors, seeds), "two backwards")


def few_programs(kernel: Kernel, device: str) -> None:
    """The contract where a persistent kernel has less programs than work: one multiprocessor, the most rows."""
    with launch.assume(launch.ASSUMED._replace(processors=1)):
        for case in (largest(kernel), typical(kernel).replace(sizes=_most_rows(kernel))):
            case.check(device)


def _most_rows(kernel: Kernel) -> dict[str, int]:
    rows = next(iter(registry().op(kernel.op).sizes))
    return {**typical(kernel).sizes, rows: 8 * largest(kernel).sizes[rows]}


def no_host_sync(kernel: Kernel, device: str) -> None:
    """Forward and backward never make the host wait."""
    tensors, forward = prepare(typical(kernel), device)
    seeds = random_like(forward())
    with no_sync():
        gradients(forward(), tensors, seeds)


# -- Options, shapes, compilers ----------------------------------------------------------------------------------------
def options_matter(kernel: Kernel, device: str) -> None:
    """Each option changes an output or a gradient in at least one dtype: none is accepted and ignored."""
    ignored = []
    for name, value in option_values(kernel):
        if registry().op(kernel.op).options[name].silent:
            continue
        for dtype in dtypes(kernel):
            case = typical(kernel, dtype)
            tensors, options = case.make(device)
            plain, other = (run(case.public(), tensors, o) for o in (options, {**options, name: value}))
            if len(plain) != len(other) or not all(map(same_bits, plain, other)):
                break
        else:
            ignored.append(f"{name}={value!r}")
    if ignored:
        fail(f"accepted and ignored: {', '.join(ignored)}")


def every_option(kernel: Kernel, device: str) -> None:
    """Each option of the op stands at a value other than its default in some case, by itself or in a variant."""
    served, options = kernel.needs.options, registry().op(kernel.op).options
    left = {n: o.default for n, o in options.items() if len(served.get(n, "ab")) > 1 and not o.overwrites}
    for case in make_cases(kernel):
        _, given = case.make("cpu")
        left = {name: default for name, default in left.items() if given.get(name, default) == default}
    if left:
        fail(f"no case has another value than the default for {', '.join(left)}: declare Option(values=...)")


def any_shape(kernel: Kernel, device: str) -> None:
    """The contract at shapes, dtypes, options, variants and layouts that hypothesis draws from LIGER_TEST_SEED."""
    from hypothesis import HealthCheck, given, seed, settings

    @seed(session_seed())
    @settings(deadline=None, max_examples=25, print_blob=True, suppress_health_check=list(HealthCheck))
    @given(case=any_case(kernel))
    def check(case: Case) -> None:
        case.check(device)

    check()


def compile_fullgraph(kernel: Kernel, device: str, backend: str = "aot_eager") -> None:
    """Compiled with fullgraph it equals eager bit for bit over four lengths, in no more graphs than the reference."""
    case = typical(kernel)
    rows = next(iter(case.sizes))
    lengths = [case.replace(sizes={**case.sizes, rows: n}).make(device) for n in (5, 5, 8, 11)]
    check_compile(case.public(), lengths, upstream=load(case.op.reference), backend=backend)


def opcheck(kernel: Kernel, device: str) -> None:
    """``torch.library.opcheck`` passes on the library ops called while compiling, with an input frozen as well."""
    for dtype in dict.fromkeys((dtypes(kernel)[0], dtypes(kernel)[-1])):
        case = typical(kernel, dtype)
        tensors, options = case.make(device)
        found = check_library_ops(case.public(), tensors, options)
        if kernel.needs.interpreter and not found:
            fail(f"{kernel.id} launches Triton kernels, but calls no library op while compiling: see launch.private_op")
        next(t for t in tensors if t is not None and t.requires_grad).requires_grad_(False)
        check_library_ops(case.public(), tensors, options)


CHECKS = named(
    launched,
    chosen_by_rank,
    caller_memory_untouched,
    memory_leak,
    few_programs,
    deterministic,
    no_host_sync,
    options_matter,
    every_option,
    any_shape,
    compile_fullgraph,
    opcheck,
)
