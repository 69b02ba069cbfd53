"""poly_norm: the contract, all behaviours, the definition's bits in fp32, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find


@pytest.mark.parametrize("check", checks("poly_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("shape", [(1,), ()])
def test_reference_has_the_bits_of_the_definition(shape: tuple[int, ...], generator: torch.Generator) -> None:
    """The highest power has the first weight, as in the authors' code."""
    x, w = torch.randn(3, 5, 64, generator=generator), torch.rand(3, generator=generator)
    b = torch.full(shape, 0.5)

    def norm(u: torch.Tensor) -> torch.Tensor:
        return u / torch.sqrt(u.pow(2).mean(-1, keepdim=True) + 1e-6)

    expected = w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b
    assert torch.equal(ops.poly_norm(x, w, b, kernel="reference"), expected)


def test_module(device: str) -> None:
    x = torch.randn(2, 3, 16, device=device)
    module = liger.nn.PolyNorm(1e-5, device=device)
    assert torch.equal(module(x), ops.poly_norm(x, module.weight, module.bias, eps=1e-5))
    assert list(module.state_dict()) == ["weight", "bias"]
    assert "eps=1e-05" in repr(module)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, r"weight has shape \(4,\), expected \(3,\), of the third, second", {"weight": torch.zeros(4)}),
        (ValueError, r"bias has shape \(3,\), expected \(1,\) or \(\), one element", {"bias": torch.zeros(3)}),
        (TypeError, "bias must be a tensor, got NoneType", {"bias": None}),
        (ValueError, "eps is -1.0, expected a finite number", {"eps": -1.0}),
        (TypeError, "eps must be a number, got str", {"eps": "1e-6"}),
        (
            TypeError,
            r"x must be floating with at least one dimension, got torch.int64",
            {"x": torch.zeros(2, 8).long()},
        ),
    ],
)
def test_bad_input(error: type[Exception], message: str, change: dict[str, Any]) -> None:
    good = {"x": torch.zeros(2, 8), "weight": torch.zeros(3), "bias": torch.zeros(1)}
    with pytest.raises(error, match=f"poly_norm: {message}"):
        ops.poly_norm(**{**good, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{"R": 8192, "H": 4096}, {"R": 4099, "H": 5461}, {"R": 257, "H": 16385}])
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("poly_norm/triton"), dtype="bfloat16", sizes=sizes).check(device)
