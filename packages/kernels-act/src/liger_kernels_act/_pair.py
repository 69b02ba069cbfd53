"""What the gated activations share: checks, test inputs, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_tensor


def check_pair(op: str, gate: torch.Tensor, up: torch.Tensor) -> None:
    """Raise unless gate and up are floating, of one shape and on one device.

    Raises:
        TypeError: an argument is no tensor or not floating, or up is on another device than gate.
        ValueError: the shapes differ.
    """
    for name, t in (("gate", gate), ("up", up)):
        check_tensor(op, name, t)
        if not t.dtype.is_floating_point:
            raise TypeError(f"{op}: {name} must be floating, got {t.dtype} {tuple(t.shape)}")
    if up.device != gate.device:
        raise TypeError(f"{op}: up must be on {gate.device} like gate, got {up.device}")
    if up.shape != gate.shape:
        raise ValueError(f"{op}: up has shape {tuple(up.shape)}, expected {tuple(gate.shape)} like gate")


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


def pair_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Read gate and up, write y; read both and dy, write both gradients."""
    gate, up = tensors
    pair, y = gate.nbytes + up.nbytes, max(gate.nbytes, up.nbytes)
    return {"forward": pair + y, "backward": 2 * pair + y}
