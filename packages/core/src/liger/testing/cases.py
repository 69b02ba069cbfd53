"""From the declarations of an op and a kernel to the cases its tests run."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from liger.declare import EMPTY, Kernel, Op, load
from liger.errors import PluginError
from liger.registry import registry

if TYPE_CHECKING:
    import torch
    from _pytest.mark import ParameterSet
    from hypothesis.strategies import SearchStrategy

DTYPES = ("float32", "bfloat16")  # of kernels that name none
LAYOUTS = ("strided rows", "transposed", "unaligned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One set of inputs for a kernel.

    Attributes:
        kernel: the kernel under test.
        dtype: name of the inputs' floating dtype.
        sizes: the op's named dimensions.
        options: options that are not at their default.
        variant: one of the op's ``variants``, or "".
        layout: "" for inputs as the op makes them, otherwise one of ``LAYOUTS``, with equal values.
        mixed: an argument that is float32 whatever ``dtype`` says, or "".
    """

    kernel: Kernel = field(repr=False)
    dtype: str
    sizes: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    options: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    variant: str = ""
    layout: str = ""
    mixed: str = ""

    @property
    def op(self) -> Op:
        """The kernel's op."""
        return registry().op(self.kernel.op)

    @property
    def reduction(self) -> int | None:
        """Terms summed into one output element; None if the op sums nothing."""
        return self.sizes.get(self.op.reduction) if self.op.reduction else None

    @property
    def id(self) -> str:
        """Readable and unique among an op's cases: ``bfloat16-R3-H511-cast=gemma``."""
        sizes = [f"{name}{value}" for name, value in self.sizes.items()]
        options = [f"{name}={value}" for name, value in self.options.items()]
        mixed = f"{self.mixed} float32" if self.mixed else ""
        extra = [word.replace(" ", "_") for word in (self.variant, self.layout, mixed) if word]
        return "-".join([self.dtype, *sizes, *options, *extra])

    def replace(self, **changes: Any) -> Case:
        """A copy with other values."""
        return dataclasses.replace(self, **changes)

    def make(self, device: str = "cpu") -> tuple[list[torch.Tensor | None], dict[str, Any]]:
        """Make the tensors, those to differentiate with ``requires_grad``, and all options of the call."""
        import torch

        generator = None if device == "meta" else torch.Generator().manual_seed(zlib.crc32(self.id.encode()))
        tensors, made = make_inputs(self.op, device, getattr(torch, self.dtype), generator, self.sizes, self.variant)
        if self.mixed:
            if self.mixed not in self.arguments():
                known = ", ".join(self.arguments())
                raise PluginError(
                    f"op {self.op.name!r} has no tensor argument {self.mixed!r} to be float32; it has {known}"
                )
            at = self.arguments().index(self.mixed)
            tensors = [t.float() if i == at and t is not None else t for i, t in enumerate(tensors)]
        out = [None if t is None else lay_out(t.detach(), self.layout).requires_grad_(t.requires_grad) for t in tensors]
        return out, {**made, **self.options}

    def arguments(self) -> list[str]:
        """Names of the op's tensor arguments, in order."""
        parameters = inspect.signature(load(self.op.reference)).parameters
        return [name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]

    def public(self) -> Callable[..., Any]:
        """The op's public function with the kernel chosen by hand."""
        return functools.partial(load(self.op.public), kernel=self.kernel.name)

    def check(self, device: str = "cpu") -> None:
        """Hold the kernel to the contract on this case."""
        from liger.testing.contract import assert_contract

        tensors, options = self.make(device)
        waits = any(self.op.options[name].waits for name in self.options)
        assert_contract(self.public(), load(self.op.reference), tensors, options, reduction=self.reduction, waits=waits)


def make_inputs(
    op: Op,
    device: str,
    dtype: torch.dtype,
    generator: torch.Generator | None,
    sizes: Mapping[str, int],
    variant: str = "",
) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
    """Tensors from ``Op.inputs``, those to differentiate with ``requires_grad``, and options.

    Random numbers come from where the generator is; without one, on meta, there are none.

    Raises:
        PluginError: the op declares no inputs.
    """
    import torch

    if op.inputs is None:
        raise PluginError(f"op {op.name!r} declares no inputs, so no cases can be made")
    extra = {"variant": variant} if variant else {}
    with torch.device(generator.device if generator else "meta"):
        made, options = load(op.inputs)(device, dtype, generator=generator, **sizes, **extra)
    chosen = [t is not None and t.requires_grad for t in made]
    if not any(chosen):
        chosen = [t is not None and t.is_floating_point() for t in made]
    tensors = [None if t is None else t.detach().requires_grad_(c) for t, c in zip(made, chosen, strict=True)]
    return tensors, dict(options)


def find(kernel: str | Kernel) -> Kernel:
    """The declaration of ``"op/kernel"``.

    Raises:
        PluginError: there is none.
    """
    if isinstance(kernel, Kernel):
        return kernel
    op, _, name = kernel.partition("/")
    for known in registry().kernels(registry().op(op).name):
        if known.name == name:
            return known
    raise PluginError(f"no kernel {kernel!r}; {op} has {', '.join(k.id for k in registry().kernels(op))}")


def cases(kernel: str | Kernel) -> list[ParameterSet]:
    """Parameters for ``pytest.mark.parametrize("case", cases("rms_norm/triton"))``; call ``case.check(device)``.

    They cover every value of every size and dtype, each option at each value other than its default, each variant,
    inputs that are not contiguous, one row and no row; not their product.
    """
    return [parameter(case, case.id, find(kernel)) for case in make_cases(find(kernel))]


def parameter(value: object, name: str, kernel: Kernel, gpus: int = 0) -> ParameterSet:
    """A parameter of a test that runs ``kernel``: marked ``triton`` if that is one, ``gpu`` if it needs any."""
    import pytest

    marks = [pytest.mark.triton] if kernel.needs.interpreter else []
    return pytest.param(value, id=name, marks=[*marks, *([pytest.mark.gpu(gpus)] if gpus else [])])


def make_cases(kernel: Kernel) -> list[Case]:
    """The cases of ``cases``, without pytest."""
    unique = {case.id: case for case in _all(kernel)}
    return list(unique.values())


def typical(kernel: Kernel, dtype: str | None = None) -> Case:
    """A case of middling sizes: for each dimension the middle of the op's values."""
    sizes = registry().op(kernel.op).sizes
    middle = {name: sorted(values)[len(values) // 2] for name, values in sizes.items()}
    return Case(kernel=kernel, dtype=dtype or dtypes(kernel)[0], sizes=middle)


def dtypes(kernel: Kernel) -> tuple[str, ...]:
    """The dtypes a kernel is tested in."""
    return kernel.needs.dtypes or DTYPES


def option_values(kernel: Kernel) -> Iterator[tuple[str, Any]]:
    """Each option with each of its declared values that the kernel serves."""
    for name, option in registry().op(kernel.op).options.items():
        served = kernel.needs.options.get(name)
        for value in option.values:
            if served is None or value in served:
                yield name, value


def largest(kernel: Kernel, dtype: str | None = None) -> Case:
    """A case of the largest size in each dimension: wide rows may take other launches than narrow ones."""
    sizes = {name: max(values) for name, values in registry().op(kernel.op).sizes.items()}
    return Case(kernel=kernel, dtype=dtype or dtypes(kernel)[-1], sizes=sizes)


def _all(kernel: Kernel) -> Iterator[Case]:
    op = registry().op(kernel.op)
    rows = next(iter(op.sizes), None)
    for dtype in dtypes(kernel):
        for sizes in _sizes(op.sizes):
            yield Case(kernel=kernel, dtype=dtype, sizes=sizes)
        base = typical(kernel, dtype)
        yield from (base.replace(variant=variant) for variant in op.variants)
        yield from (base.replace(layout=layout) for layout in LAYOUTS)
        yield from (base.replace(mixed=name) for name in op.mixed if dtype != "float32")
        if rows is not None:
            yield from (base.replace(sizes={**base.sizes, rows: count}) for count in (1, 0))
    for dtype in dict.fromkeys((dtypes(kernel)[0], dtypes(kernel)[-1])):
        for name, value in option_values(kernel):
            yield typical(kernel, dtype).replace(options={name: value})
    yield from _together(kernel, rows)


def _together(kernel: Kernel, rows: str | None) -> Iterator[Case]:
    """In one dtype: what goes wrong only together, at the largest size or in the typical one."""
    op, dtype = registry().op(kernel.op), dtypes(kernel)[-1]
    big, base = largest(kernel, dtype), typical(kernel, dtype)
    chosen = [{name: value} for name, value in option_values(kernel)]
    yield big
    yield from (big.replace(options=option) for option in chosen)
    yield from (base.replace(options=option, mixed=name) for option in chosen for name in op.mixed)
    for variant in op.variants:
        yield big.replace(variant=variant)
        yield from (base.replace(variant=variant, layout=layout) for layout in LAYOUTS)
        if rows is not None:
            yield base.replace(variant=variant, sizes={**base.sizes, rows: 0})


def any_case(kernel: Kernel) -> SearchStrategy[Case]:
    """Any case of a kernel: sizes up to the largest but one that the op lists, rows from 0 on; a variant or an option.

    A dimension of which all listed values above 1 have a common divisor is a multiple of it, as an even width is.
    """
    from hypothesis import strategies as st

    op = registry().op(kernel.op)
    rows = next(iter(op.sizes), None)

    def dimension(name: str, values: Sequence[int]) -> SearchStrategy[int]:
        step, most = math.gcd(*(v for v in values if v > 1)) or 1, sorted(values)[-2:][0]
        return st.integers(0 if name == rows else 1, max(1, most // step)).map(lambda n: n * step)

    chosen = [{}, *({"variant": v} for v in op.variants), *({"options": {n: v}} for n, v in option_values(kernel))]
    drawn: dict[str, SearchStrategy[Any]] = {
        "dtype": st.sampled_from(dtypes(kernel)),
        "sizes": st.fixed_dictionaries({name: dimension(name, values) for name, values in op.sizes.items()}),
        "layout": st.sampled_from(["", *LAYOUTS]),
        "mixed": st.sampled_from(["", *op.mixed]),
    }
    return st.builds(
        lambda d, more: Case(kernel=kernel, **d, **more), st.fixed_dictionaries(drawn), st.sampled_from(chosen)
    )


def _sizes(sizes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every value of every dimension, shorter lists repeated, so that there are as many as the longest list."""
    count = max((len(values) for values in sizes.values()), default=1)
    cycles = [itertools.islice(itertools.cycle(values), count) for values in sizes.values()]
    for combination in zip(*cycles, strict=True) if cycles else [()]:
        yield dict(zip(sizes, combination, strict=True))


def lay_out(t: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in other memory: with gaps between rows, dimensions reversed, or a start that is not aligned."""
    if not layout or t.dim() == 0:
        return t
    if layout == "unaligned":
        extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
        return t.new_empty(extent + 1).as_strided(t.shape, t.stride(), 1).copy_(t)
    if layout == "transposed" and t.dim() > 1:
        order = tuple(reversed(range(t.dim())))
        return t.permute(order).contiguous().permute(order)
    gap = float("nan") if t.is_floating_point() else 0
    if t.dim() == 1:
        wide = t.new_full((t.shape[0], 2), gap)
        wide[:, 1] = t
        return wide[:, 1]
    wide = t.new_full((*t.shape[:-1], t.shape[-1] + 3), gap)
    wide[..., 1:-2] = t
    return wide[..., 1:-2]
