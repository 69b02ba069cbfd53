"""The second stage of sums over rows, which small cases of the ops have too few rows for."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.triton
pytest.importorskip("triton")

from liger._partials_triton import add_partials  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300, 50), (129, 2, 33), (1, 7), (0, 40), (70, 9000), (3, 0)])
def test_partial_sums_are_added(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    parts = torch.randint(-8, 9, (2, *shape), generator=generator).float().to(device)  # whole numbers add up exactly
    first, second = (torch.empty(shape[1:], dtype=dtype, device=device) for _ in range(2))
    add_partials(parts, first, second)
    assert torch.equal(first, parts[0].sum(0).to(dtype)) and torch.equal(second, parts[1].sum(0).to(dtype))
    add_partials(parts[1].contiguous(), first)
    assert torch.equal(first, second)
