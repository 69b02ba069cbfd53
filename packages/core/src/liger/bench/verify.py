"""What is wrong is not timed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from liger.bench.inputs import Inputs, backward, forward, make, seeds
from liger.bench.plan import Point
from liger.declare import Kernel, load
from liger.errors import ContractViolation
from liger.testing.contract import assert_contract

ROWS = 64  # at the contract; a row more adds nothing but time
ELEMENTS = 2**25  # of inputs; beyond, the contract's float64 copies take too long
WRONG = 0.02  # relative error against eager at full size, where bf16 itself gives 0.004


def contract(kernel: Kernel, point: Point, device: str) -> None:
    """Hold our kernel to the contract on a few rows of full width."""
    op, sizes = point.op, few(point)
    inputs = make(op, sizes, device, point.variant)
    fn = functools.partial(load(op.public), kernel=kernel.name)
    reduction = sizes.get(op.reduction) if op.reduction else None
    assert_contract(fn, load(op.reference), inputs.tensors, inputs.options, reduction=reduction)


def few(point: Point) -> dict[str, int]:
    """The point's sizes with few rows; where that is too much still, the largest dimension is halved."""
    rows = next(iter(point.op.sizes))
    sizes = {**point.sizes, rows: min(point.sizes[rows], ROWS)}
    while sum(t.numel() for t in make(point.op, sizes, "meta", point.variant).tensors if t is not None) > ELEMENTS:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] //= 2
    return sizes


def results(fn: Callable[..., Any], inputs: Inputs) -> list[torch.Tensor]:
    """Floating outputs and gradients. Outputs are copied, as a backward may write into what a peer saved."""
    outputs = forward(fn, inputs)
    kept = [o.detach().clone() for o in outputs if o.dtype.is_floating_point]
    return [*kept, *backward(outputs, inputs, seeds(outputs))]


def compare(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Compare in full size with eager, by the relative norm of the difference; raise ContractViolation."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = a.float(), b.float()  # noqa: PLW2901
        error = float((a - b).norm() / b.norm().clamp_min(1e-30))
        if not error < WRONG:
            raise ContractViolation(f"result {i} differs from eager by {error:.2g}")
