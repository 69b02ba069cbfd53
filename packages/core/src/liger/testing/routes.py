"""All kernels of an op are one function: same signature, same defaults, same results on whatever route a call takes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any
from unittest import mock

import torch

from liger import dispatch
from liger.declare import Kernel, load
from liger.errors import KernelUnavailable
from liger.plugins import GROUP
from liger.registry import registry
from liger.testing.behaviour import equal, fail, gradients, named
from liger.testing.cases import Case, dtypes, largest, make_cases, option_values, typical
from liger.testing.compare import check_layout
from liger.testing.compiled import run
from liger.testing.contract import Inputs, Results, assert_contract, evaluate, flat, random_like
from liger.testing.observe import count_ops


def signature(kernel: Kernel, device: str) -> None:
    """Public function, reference and kernel take the same arguments; options have the declared defaults."""
    op = registry().op(kernel.op)
    declared = {name: option.default for name, option in op.options.items()}
    reference, public, fn = (inspect.signature(load(name)).parameters for name in (op.reference, op.public, kernel.fn))
    options = {n: p.default for n, p in reference.items() if p.kind is p.KEYWORD_ONLY}
    if options != declared:
        fail(f"the reference's options are {options}, declared are {declared}")
    described = [(p.name, p.kind, p.default) for p in reference.values()]
    if described != [(p.name, p.kind, p.default) for p in public.values() if p.name != "kernel"]:
        fail(f"the public function takes {list(public.values())}, the reference {list(reference.values())}")
    if "kernel" not in public or public["kernel"].default is not None:
        fail("the public function has no kernel=None")
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in fn.values()):
        return  # it hands its arguments on
    names = [(p.name, p.kind is p.KEYWORD_ONLY) for p in fn.values()]
    if names != [(p.name, p.kind is p.KEYWORD_ONLY) for p in reference.values()]:
        fail(f"the kernel takes {list(fn)}, the reference {list(reference)}; options are keyword-only in both")


def omitted_arguments(kernel: Kernel, device: str) -> None:
    """Arguments left out equal their explicit defaults, in route and result."""
    case = typical(kernel)
    tensors, _ = case.make(device)
    given = tensors[: max(i for i, t in enumerate(tensors) if t is not None) + 1]
    explicit = {name: option.default for name, option in case.op.options.items()}
    for fn in (load(case.op.public), case.public()):
        with count_ops() as short:
            left_out = run(fn, given, {})
        with count_ops() as long:
            in_full = run(fn, tensors, explicit)
        if short != long:
            fail(f"without options {dict(short)} served, with all defaults {dict(long)}")
        equal(left_out, in_full, "arguments left out against explicit defaults")


def parity(kernel: Kernel, device: str) -> None:
    """Every kernel of the op that serves the same call returns the same structure, dtypes, layouts and values."""
    sizes = typical(kernel).sizes  # how results look does not depend on them
    others = [other for other in registry().kernels(kernel.op) if other.name != kernel.name]
    for case in (case for case in make_cases(kernel) if case.sizes == sizes):
        tensors, options = case.make(device)
        mine = evaluate(case.public(), tensors, options)
        for theirs in (case.replace(kernel=other) for other in others):
            if _serves(theirs, tensors, options):
                who = f"{case.id}: {kernel.id} and {theirs.kernel.id}"
                _same_structure(mine, evaluate(theirs.public(), tensors, options), tensors, who)
    for case in _parity_cases(kernel):
        for theirs in (case.replace(kernel=other) for other in others if other.rank > 0):
            if _serves(
                theirs, *case.make(device)
            ):  # each against the truth; the reference is what both are measured by
                theirs.check(device)


def _parity_cases(kernel: Kernel) -> list[Case]:
    """The typical case in each dtype, by itself and with each option."""
    chosen = [{}, *({name: value} for name, value in option_values(kernel))]
    return [typical(kernel, dtype).replace(options=options) for dtype in dtypes(kernel) for options in chosen]


def _serves(case: Case, tensors: Inputs, options: Mapping[str, Any]) -> bool:
    made = [t for t in tensors if t is not None]
    dtypes = [t.dtype for t in made if t.is_floating_point()]
    every = {name: option.default for name, option in case.op.options.items()} | dict(options)
    call = dispatch.make_call(case.op.name, made[0].device, dtypes, case.kernel.name, case.sizes, every)
    return not dispatch.reasons(case.kernel, call)


def _every(results: Results) -> list[torch.Tensor | None]:
    return [*results.outputs, *results.gradients.values()]


def _same_structure(a: Results, b: Results, inputs: Inputs, who: str) -> None:
    kinds = [[None if t is None else (tuple(t.shape), t.dtype) for t in _every(results)] for results in (a, b)]
    if kinds[0] != kinds[1]:
        fail(f"{who} differ in shape or dtype: {kinds[0]} and {kinds[1]}")
    dense = all(t is None or t.is_contiguous() for t in inputs)  # otherwise a result may be laid out as an input is
    for mine, other in zip(_every(a), _every(b), strict=True):
        if mine is not None and other is not None:
            if dense and mine.is_contiguous() != other.is_contiguous():
                fail(f"{who} differ in strides: {mine.stride()} and {other.stride()}")
            check_layout(mine, other, inputs)


def autocast(kernel: Kernel, device: str) -> None:
    """Under autocast kernel and reference give results of the same dtypes; in bfloat16 the same bits as without it."""
    place = torch.device(device).type
    for case in (typical(kernel, dtype) for dtype in dtypes(kernel)):
        found = []
        for who in (kernel.name, "reference"):
            fn = functools.partial(load(case.op.public), kernel=who)
            tensors, options = case.make(device)
            with torch.autocast(place, torch.bfloat16):
                outputs = flat(fn(*tensors, **options))
            results = [*outputs, *gradients(outputs, tensors, random_like(outputs))]
            if case.dtype == "bfloat16":
                plain = flat(fn(*tensors, **options))
                equal(results, [*plain, *gradients(plain, tensors, random_like(plain))], f"{who} under autocast")
            found.append([None if t is None else t.dtype for t in results])
        if found[0] != found[1]:
            fail(f"{case.id} under autocast: results have dtypes {found[0]}, those of the reference {found[1]}")


def not_finite(kernel: Kernel, device: str) -> None:
    """With nan in the first row, inf in the second, results are finite exactly where the reference's are."""
    for full in (typical(kernel, "float32"), largest(kernel, "float32")):
        case = full.replace(sizes={**full.sizes, next(iter(full.sizes)): 3})
        tensors, options = case.make(device)
        _spoil(next(t for t in tensors if t is not None and t.is_floating_point()).detach())
        mine, truth = (evaluate(fn, tensors, options) for fn in (case.public(), load(case.op.reference)))
        for position, (got, expected) in enumerate(zip(_every(mine), _every(truth), strict=True)):
            if got is not None and expected is not None and not got.isfinite().equal(expected.isfinite()):
                counts = [int((~t.isfinite()).sum()) for t in (got, expected)]
                found = f"{counts[0]} values that are not finite in output or gradient {position}, expected {counts[1]}"
                fail(f"{case.id} with nan in one row and inf in another: {found}")


def _spoil(t: torch.Tensor) -> None:
    """nan at the end of the first row, inf at that of the second."""
    rows = itertools.product(*map(range, t.shape[:-1]))
    for row, value in zip(rows, (float("nan"), float("inf")), strict=False):
        t[(*row, -1)] = value


# -- Limits ------------------------------------------------------------------------------------------------------------
def size_limits(kernel: Kernel, device: str) -> None:
    """The last accepted size works; the next is refused with both numbers and served by another kernel."""
    smallest = {n: min(v) for n, v in registry().op(kernel.op).sizes.items()}
    for name, limit in kernel.needs.max_size.items():
        if name not in smallest:
            fail(f"max_size names {name!r}, which the op does not list among its sizes")
        inside = typical(kernel).replace(sizes={**smallest, name: limit})
        inside.check(device)
        _refused(inside.replace(sizes={**smallest, name: limit + 1}), device, str(limit), str(limit + 1))


def other_limits(kernel: Kernel, device: str) -> None:
    """dtypes, option values, devices and the capability: the first one outside each list is refused by name."""
    needs, case = kernel.needs, typical(kernel)
    if needs.dtypes:
        if "float64" in needs.dtypes:
            fail("needs.dtypes names float64, in which the reference is the truth and no kernel can be judged")
        _refused(case.replace(dtype="float64"), device, "float64")
    for name, served in needs.options.items():
        for value in registry().op(kernel.op).options[name].values:
            if value not in served:
                _refused(case.replace(options={name: value}), device, repr(value))
    call = dispatch.make_call(kernel.op, torch.device(device), [getattr(torch, case.dtype)])
    if needs.devices and not any("vulkan" in why for why in needs.reasons(dataclasses.replace(call, device="vulkan"))):
        fail("needs.devices does not refuse a device it does not name")
    if needs.min_capability:
        major, minor = needs.min_capability
        below = dataclasses.replace(call, device="cuda", capability=(major, minor - 1) if minor else (major - 1, 9))
        at = dataclasses.replace(below, capability=(major, minor))
        if not needs.static_reasons(below) or needs.static_reasons(at):
            fail(f"min_capability={needs.min_capability} does not tell {below.capability} from {at.capability}")


def _refused(case: Case, device: str, *words: str) -> None:
    """Chosen by hand the kernel refuses with these words; the public function is served by another one, rightly."""
    tensors, options = case.make(device)
    try:
        case.public()(*tensors, **options)
    except KernelUnavailable as error:
        if missing := [word for word in words if word not in str(error)]:
            fail(f"the refusal of {case.id} does not name {' and '.join(missing)}: {error}")
    else:
        fail(f"{case.id} is served though needs say otherwise")
    _served_by_another(case, device)


def _served_by_another(case: Case, device: str) -> None:
    tensors, options = case.make(device)
    public, kernel = load(case.op.public), case.kernel
    with count_ops() as counts:
        public(*tensors, **options)
    if counts[kernel.op, kernel.name] or sum(counts.values()) != 1:
        fail(f"{case.id}: expected one call of another kernel, counted {dict(counts)}")
    assert_contract(public, load(case.op.reference), tensors, options, reduction=case.reduction)


# -- Disabled, not importable ------------------------------------------------------------------------------------------
def disabled(kernel: Kernel, device: str) -> None:
    """Under LIGER_DISABLE_KERNELS the op is served by another kernel, and this one refuses, saying why."""
    with _fresh_decisions(), mock.patch.dict(os.environ, LIGER_DISABLE_KERNELS=kernel.id):
        _refused(typical(kernel), device, "LIGER_DISABLE_KERNELS")


def unavailable(kernel: Kernel, device: str) -> None:
    """Where its module cannot be imported the op is served by another kernel, and this one refuses, saying why."""
    module = kernel.fn.partition(":")[0]
    op = registry().op(kernel.op)
    if module in {name.partition(":")[0] for name in (op.public, op.reference)}:
        return  # where it is missing there is no op
    with _fresh_decisions(), mock.patch.dict(sys.modules, {module: None}):
        _refused(typical(kernel), device, "does not import")


@contextmanager
def _fresh_decisions() -> Iterator[None]:
    dispatch.reset()
    try:
        yield
    finally:
        dispatch.reset()


IMPORTS = """
import hashlib, importlib, os
for name in {order!r}:
    importlib.import_module(name)
if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    importlib.import_module("liger.testing.interpreter").fix()
from liger.testing.cases import find, typical
from liger.testing.compiled import run
case = typical(find({kernel!r}))
tensors, options = case.make({device!r})
made = run(case.public(), tensors, options)
print([hashlib.sha256(t.contiguous().cpu().numpy().tobytes()).hexdigest() for t in made])
"""


def import_order(kernel: Kernel, device: str) -> None:
    """In fresh processes, whatever is imported first: the same bits."""
    if not _installed(kernel):
        return
    module = kernel.fn.partition(":")[0]
    orders = (["liger", "liger.ops", "torch", module], [module, "torch", "liger"])
    printed = [_python(IMPORTS.format(order=order, kernel=kernel.id, device=device)) for order in orders]
    if len(set(printed)) != 1:
        fail(f"results depend on the order of imports: {printed}")


def _installed(kernel: Kernel) -> bool:
    """Whether another process would find it: its plugin has an entry point, and was not registered by a test."""
    installed = {point.value for point in entry_points(group=GROUP)}
    mine = registry().owner("kernel", kernel.id)
    return any(info.owner == mine and info.entry_point in installed for info in registry().plugins.infos)


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"a fresh process failed: {done.stderr[-2000:]}")
    return done.stdout.strip()


CHECKS = named(
    signature,
    omitted_arguments,
    parity,
    autocast,
    not_finite,
    size_limits,
    other_limits,
    disabled,
    unavailable,
    import_order,
)
