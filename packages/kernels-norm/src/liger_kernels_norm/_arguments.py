"""Checks of arguments that several norms share. Each names op and argument, what was found and what was expected."""

from __future__ import annotations

import torch

from liger.dispatch import check_tensor


def check_count(op: str, name: str, value: object) -> None:
    """Raise unless ``value`` is a whole number above 0.

    Raises:
        TypeError: it is no int.
        ValueError: it is 0 or less.
    """
    if not isinstance(value, int):
        raise TypeError(f"{op}: {name} must be an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{op}: {name} is {value}, expected 1 or more")


def check_input(op: str, x: object, dimensions: int = 1) -> None:
    """Raise TypeError unless ``x`` is a floating tensor with at least that many dimensions."""
    check_tensor(op, "x", x)
    assert isinstance(x, torch.Tensor)
    if x.dim() < dimensions or not x.dtype.is_floating_point:
        many = "one dimension" if dimensions == 1 else f"{dimensions} dimensions"
        raise TypeError(f"{op}: x must be floating with at least {many}, got {x.dtype} {tuple(x.shape)}")


def check_beside(op: str, name: str, value: object, x: torch.Tensor, *shapes: tuple[int, ...], why: str) -> None:
    """Raise unless ``value`` is a floating tensor on x's device, of one of ``shapes``, which ``why`` explains.

    Raises:
        TypeError: it is no tensor, not floating, or on another device.
        ValueError: it has another shape.
    """
    check_tensor(op, name, value)
    assert isinstance(value, torch.Tensor)
    if not value.dtype.is_floating_point or value.device != x.device:
        raise TypeError(f"{op}: {name} must be floating on {x.device} like x, got {value.dtype} on {value.device}")
    if value.shape not in shapes:
        hint = "" if value.numel() else " (an empty parameter is usually a sharded one that was not gathered)"
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{op}: {name} has shape {tuple(value.shape)}, expected {expected}, {why}{hint}")
