"""What is timed: the points of each op's sweeps, with the bytes and operations that belong to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from liger.bench import MODES
from liger.bench.inputs import Inputs, make
from liger.bench.models import config, dimensions
from liger.bench.options import Options
from liger.declare import Kernel, Op, load
from liger.errors import PluginError
from liger.registry import registry

Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Series:
    """Sizes along one variable, smallest first, which plots show as one curve."""

    variable: str
    variant: str
    sizes: tuple[Sizes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size of one op.

    Attributes:
        op, kernels: what is timed.
        sizes: named dimensions, in the order of ``Op.sizes``.
        variable: the dimension that varies in its series.
        variant: kind of input.
        moved: bytes that have to be moved, by mode.
        flops: floating-point operations by mode, where products are the limit.
        held: bytes of the inputs.
    """

    op: Op
    kernels: tuple[Kernel, ...]
    sizes: Mapping[str, int]
    variable: str
    variant: str
    moved: Mapping[str, int]
    flops: Mapping[str, int]
    held: int

    @property
    def case(self) -> str:
        """``R=16384 H=4096``, with the variant behind it."""
        return " ".join([*(f"{k}={v}" for k, v in self.sizes.items()), *([self.variant] if self.variant else [])])

    def make(self, device: str) -> Inputs:
        """The inputs."""
        return make(self.op, self.sizes, device, self.variant)

    def spec(self, kernel: Kernel) -> dict[str, Any]:
        """One kernel at this point as plain data, for a worker."""
        return {"op": self.op.name, "kernel": kernel.id, "sizes": dict(self.sizes), "variant": self.variant}


def plan(options: Options) -> dict[str, list[list[Point]]]:
    """Series of points by op.

    Raises:
        ValueError: the model has no such size, or an op that was named takes no size from a model.
        PluginError: an op or kernel declares too little to be timed.
    """
    found: dict[str, list[list[Point]]] = {}
    for name, kernels in options.chosen().items():
        op, seen = registry().op(name), set[str]()
        for some in series(op, options):
            points = {p.case: p for p in (point(op, kernels, some, sizes, options) for sizes in some.sizes)}
            fresh = [p for case, p in points.items() if case not in seen]  # a model may make two points one
            seen |= set(points)
            if fresh:
                found.setdefault(name, []).append(fresh)
    without = [name for name in options.ops if name not in found]
    if without or not found:
        who = ", ".join(without) or "all ops"
        raise ValueError(f"--model {options.model}: no size is taken from a model (Op.model) by {who}")
    return found


def series(op: Op, options: Options) -> Iterator[Series]:
    """Toy sizes, or the op's sweeps, in sizes of the model if one is named."""
    if options.smoke:
        yield toy(op)
        return
    fixed: Sizes = {}
    if options.model:
        sizes = {**config(options.model), "tokens": options.tokens}
        fixed = dimensions(op.name, op.model, sizes, options.model)
        if not fixed:
            return
    for sweep in op.sweeps:
        yield Series(sweep.variable, sweep.variant, tuple({**point, **fixed} for point in sweep.points()))
    if not op.sweeps and op.production:
        yield Series(list(op.sizes)[-1], "", tuple({**point, **fixed} for point in op.production))


def toy(op: Op) -> Series:
    """Two points of the first sweep, in the smallest test sizes; of rows and of what is summed the second smallest."""
    names = list(op.sizes)
    variable, variant = (op.sweeps[0].variable, op.sweeps[0].variant) if op.sweeps else (names[-1], "")
    some = {k: sorted(values)[:3] for k, values in op.sizes.items()}
    small = {k: values[:2][-1] if k in (names[0], op.reduction) else values[0] for k, values in some.items()}
    return Series(
        variable, variant, tuple({**small, variable: value} for value in some[variable][1:] or some[variable])
    )


def point(op: Op, kernels: list[Kernel], series: Series, sizes: Sizes, options: Options) -> Point:
    """A point with its bytes and operations, which are taken from inputs on the meta device."""
    kernel = next((k for k in kernels if k.bytes), None)
    if kernel is None or kernel.bytes is None or op.inputs is None:
        raise PluginError(f"{op.name} cannot be timed: it needs Op.inputs, and Kernel.bytes of {kernels[0].id}")
    ordered = {name: sizes[name] for name in op.sizes if name in sizes}
    inputs = make(op, ordered, "meta", series.variant)
    moved = _with_full(load(kernel.bytes)(inputs.tensors, inputs.options))
    flops = load(kernel.flops)(inputs.tensors, inputs.options) if kernel.flops else {}
    return Point(
        op=op,
        kernels=tuple(kernels),
        sizes=ordered,
        variable=series.variable,
        variant=series.variant,
        moved={mode: moved[mode] for mode in MODES if mode in moved and mode in options.modes},
        flops=flops,
        held=inputs.bytes,
    )


def _with_full(moved: Mapping[str, int]) -> dict[str, int]:
    both = {"full": moved["forward"] + moved["backward"]} if {"forward", "backward"} <= set(moved) else {}
    return {**both, **moved}
