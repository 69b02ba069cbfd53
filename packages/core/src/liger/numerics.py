"""Arithmetic that references share. Imports torch; ``liger`` itself does not import this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def acc(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype statistics are computed in: float64 stays, everything else becomes float32.

    References use it instead of ``.float()``, so they have upstream's bits in bf16 and fp32 and are exact in fp64.
    """
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(reference: Callable[..., Any]) -> Callable[..., Any]:
    """``reference`` with autocast off: it says itself in which dtype each step is, and kernels do what it says."""

    def call(*tensors: torch.Tensor, **options: Any) -> Any:
        device = tensors[0].device.type
        if device == "meta" or not torch.is_autocast_enabled(device):  # that fails for meta
            return reference(*tensors, **options)
        with torch.autocast(device, enabled=False):
            return reference(*tensors, **options)

    return call
