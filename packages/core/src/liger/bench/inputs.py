"""Inputs of a benchmark, made on the device from an op's declarations."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from liger.declare import Op
from liger.testing.cases import make_inputs
from liger.testing.contract import flat, leaves

COLD = 256 << 20  # bytes; calls go round through copies of the inputs, so that no cache holds them from the last time
COPIES = 8  # at most; 2 on a CPU, where times mean nothing

Tensors = list[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of an op: tensors, of which those to differentiate require a gradient, and options."""

    tensors: Tensors
    options: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of all tensors together."""
        return sum(t.nbytes for t in self.tensors if t is not None)

    def copy(self) -> Inputs:
        """Equal tensors in the same layout in other memory."""
        copies = [None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in self.tensors]
        return Inputs(copies, self.options)

    def leaves(self) -> Inputs:
        """New leaves that share the memory."""
        return Inputs(leaves(self.tensors), self.options)

    def wanted(self) -> list[torch.Tensor]:
        """The tensors to differentiate."""
        return [t for t in self.tensors if t is not None and t.requires_grad]


def make(
    op: Op, sizes: Mapping[str, int], device: str, variant: str = "", dtype: torch.dtype = torch.bfloat16
) -> Inputs:
    """Inputs of ``op``; random numbers come from the device, which takes seconds less than the CPU."""
    generator = None
    if device != "meta":
        generator = torch.Generator(device).manual_seed(zlib.crc32(repr((op.name, dict(sizes))).encode()))
    return Inputs(*make_inputs(op, device, dtype, generator, sizes, variant))


def ring(inputs: Inputs, own: bool) -> list[Inputs]:
    """The inputs in enough copies for cold caches; ``own`` leaves the given tensors alone, for who overwrites them."""
    cuda = any(t is not None and t.is_cuda for t in inputs.tensors)
    count = max(1, min(COPIES if cuda else 2, -(-COLD // max(1, inputs.bytes))))
    first = inputs.copy() if own else inputs.leaves()
    return [first, *(inputs.copy() for _ in range(count - 1))]


def seeds(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Output gradients: 1 for a loss, otherwise random, the same for the same shapes."""
    out = []
    for o in outputs:
        generator = torch.Generator(o.device).manual_seed(1234)
        random = o.dim() and o.dtype.is_floating_point
        out.append(torch.empty_like(o).normal_(generator=generator) if random else torch.ones_like(o))
    return out


def forward(fn: Callable[..., Any], inputs: Inputs) -> list[torch.Tensor]:
    """The outputs as a list."""
    return flat(fn(*inputs.tensors, **inputs.options))


def backward(
    outputs: Sequence[torch.Tensor], inputs: Inputs, gradients: Sequence[torch.Tensor], keep: bool = False
) -> tuple[torch.Tensor, ...]:
    """The gradients of the inputs, none for an op without; ``keep`` for another backward through the same graph."""
    roots = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
    if not roots:
        return ()
    made, given = zip(*roots, strict=True)
    return torch.autograd.grad(made, inputs.wanted(), given, retain_graph=keep)
