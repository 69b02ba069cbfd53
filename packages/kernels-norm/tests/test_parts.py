"""The second stage of sums over rows, which small cases of the ops have too few rows for."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300, 50), (129, 2, 33), (1, 7), (0, 40)])
def test_parts_are_added(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    pytest.importorskip("triton")
    from liger_kernels_norm._parts_triton import add_parts

    parts = torch.randint(-8, 9, shape, generator=generator).float().to(device)  # whole numbers add up exactly
    out = torch.empty(shape[1:], dtype=dtype, device=device)
    assert add_parts(parts, out) is out
    assert torch.equal(out, parts.sum(0).to(dtype))
