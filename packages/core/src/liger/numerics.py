"""Arithmetic that references share. Imports torch; ``liger`` itself does not import this module."""

from __future__ import annotations

import torch


def acc(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype statistics are computed in: float64 stays, everything else becomes float32.

    References use it instead of ``.float()``, so they have upstream's bits in bf16 and fp32 and are exact in fp64.
    """
    return x if x.dtype == torch.float64 else x.float()
