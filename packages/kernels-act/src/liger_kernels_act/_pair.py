"""What the gated activations share: checks, the halves of a packed tensor, test inputs, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_number, check_tensor

LAYOUTS = ("gate_up", "up_gate", "interleaved")


# -- Checks ------------------------------------------------------------------------------------------------------------
def check_floating(op: str, name: str, value: torch.Tensor) -> None:
    """Raise TypeError unless ``value`` is a floating tensor."""
    check_tensor(op, name, value)
    if not value.dtype.is_floating_point:
        raise TypeError(f"{op}: {name} must be floating, got {value.dtype} {tuple(value.shape)}")


def check_pair(op: str, gate: torch.Tensor, up: torch.Tensor) -> None:
    """Raise unless gate and up are floating, of one shape and on one device.

    Raises:
        TypeError: an argument is no tensor or not floating, or up is on another device than gate.
        ValueError: the shapes differ.
    """
    check_floating(op, "gate", gate)
    check_floating(op, "up", up)
    if up.device != gate.device:
        raise TypeError(f"{op}: up must be on {gate.device} like gate, got {up.device}")
    if up.shape != gate.shape:
        raise ValueError(f"{op}: up has shape {tuple(up.shape)}, expected {tuple(gate.shape)} like gate")


def check_packed(op: str, x: torch.Tensor, layout: str) -> None:
    """Raise unless x is floating and has an even last dimension, and the layout is known.

    Raises:
        TypeError: x is no tensor or not floating.
        ValueError: the last dimension is odd or there is none, or an unknown layout.
    """
    check_floating(op, "x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"{op}: x has shape {tuple(x.shape)}, expected (..., 2 H): gate and up in one tensor")
    check_choice(op, "layout", layout, LAYOUTS)


def check_numbers(op: str, **numbers: object) -> None:
    """Raise TypeError unless all are numbers."""
    for name, value in numbers.items():
        check_number(op, name, value)


def check_limit(op: str, limit: float) -> None:
    """Raise ValueError unless limit, a number, is above 0."""
    if not limit > 0:
        raise ValueError(f"{op}: limit is {limit}, expected a number above 0; math.inf clamps nothing")


# -- The definition ----------------------------------------------------------------------------------------------------
def halves(x: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up (..., H) as views of x (..., 2 H)."""
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return (first, second) if layout == "gate_up" else (second, first)


def scaled(x: torch.Tensor, multiplier: float) -> torch.Tensor:
    """x * multiplier in x.dtype; x itself where that is the same."""
    return x if multiplier == 1.0 else x * multiplier


# -- Tests and benchmarks ----------------------------------------------------------------------------------------------
def pair_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """gate and up (R, H); gate has rows of magnitude 1e-3, 1 and 1e3 in turn.

    Variants: "packed", the two halves of one (R, 2 H) tensor; "three dimensions" (R, 2, H).
    """
    shape = (R, 2, H) if variant == "three dimensions" else (R, H)
    gate, up = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    scale = torch.tensor([1e-3, 1.0, 1e3])[torch.arange(R) % 3]
    gate = gate * scale.reshape(-1, *[1] * (len(shape) - 1))
    if variant == "packed":
        both = torch.cat((gate, up), dim=-1).to(device, dtype)
        return both.chunk(2, dim=-1), {}
    return (gate.to(device, dtype), up.to(device, dtype)), {}


def packed_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """x (R, 2 H): gate and up of ``pair_inputs``. Variant: "three dimensions" (R, 2, 2 H)."""
    (gate, up), _ = pair_inputs(device, dtype, R=R, H=H, generator=generator, variant=variant)
    return (torch.cat((gate, up), dim=-1),), {}


def pair_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Read gate and up, write y; read both and dy, write both gradients."""
    gate, up = tensors
    pair, y = gate.nbytes + up.nbytes, max(gate.nbytes, up.nbytes)
    return {"forward": pair + y, "backward": 2 * pair + y}


def packed_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x, write y of half its size; read x and dy, write dx."""
    (x,) = tensors
    return {"forward": 3 * x.nbytes // 2, "backward": 5 * x.nbytes // 2}
