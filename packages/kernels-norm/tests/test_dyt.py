"""dyt: the contract, all behaviours, the authors' bits in fp32, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find


@pytest.mark.parametrize("check", checks("dyt/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


def test_reference_has_the_bits_of_the_definition(generator: torch.Generator) -> None:
    x, w, b = torch.randn(3, 5, 64, generator=generator), torch.rand(64, generator=generator), torch.ones(64)
    alpha = torch.tensor([0.7])
    assert torch.equal(ops.dyt(x, alpha, w, b, kernel="reference"), torch.tanh(alpha * x) * w + b)


@pytest.mark.triton
def test_tanh_and_its_slope_are_exact_to_a_few_ulp(device: str) -> None:
    """Each by itself, also where both are far from 1: near 0, and where tanh is 1."""
    z = torch.logspace(-6, 1.5, 4001, device=device)
    x = torch.cat((-z, z)).requires_grad_()
    one = torch.ones_like(x)
    t = ops.dyt(x, torch.ones((), device=device), one, kernel="triton")
    (slope,) = torch.autograd.grad(t.sum(), x)
    true = x.detach().double()
    # a GPU computes exp(z) as 2^(z log2 e), whose argument is rounded: the error grows with z
    ulp = torch.finfo(torch.float32).eps * (8 + 2 * true.abs())
    for found, expected in ((t.detach(), true.tanh()), (slope, true.cosh() ** -2)):
        assert bool((((found - expected) / expected).abs() < ulp).all())
    huge = torch.tensor([-1e30, 1e30], device=device)
    assert ops.dyt(huge, torch.ones((), device=device), one[:2], kernel="triton").tolist() == [-1.0, 1.0]


def test_module(device: str) -> None:
    x = torch.randn(2, 3, 16, device=device)
    module = liger.nn.DyT(16, 0.3, device=device)
    assert torch.equal(module(x), ops.dyt(x, module.alpha, module.weight, module.bias))
    assert list(module.state_dict()) == ["alpha", "weight", "bias"] and "bias=True" in repr(module)
    assert liger.nn.DyT(16, bias=False).bias is None


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, r"alpha has shape \(8,\), expected \(1,\) or \(\), one element", {"alpha": torch.zeros(8)}),
        (TypeError, "alpha must be a tensor, got float", {"alpha": 0.5}),
        (ValueError, r"weight has shape \(4,\), expected \(8,\), the last of x", {"weight": torch.zeros(4)}),
        (ValueError, r"bias has shape \(1, 8\), expected \(8,\)", {"bias": torch.zeros(1, 8)}),
        (TypeError, "bias must be floating on cpu like x, got torch.int64", {"bias": torch.zeros(8).long()}),
        (TypeError, r"x must be floating with at least one dimension, got torch.float32 \(\)", {"x": torch.zeros(())}),
    ],
)
def test_bad_input(error: type[Exception], message: str, change: dict[str, Any]) -> None:
    good = {"x": torch.zeros(2, 8), "alpha": torch.zeros(1), "weight": torch.zeros(8), "bias": torch.zeros(8)}
    with pytest.raises(error, match=f"dyt: {message}"):
        ops.dyt(**{**good, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{"R": 8192, "H": 4096}, {"R": 4099, "H": 5461}])
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("dyt/triton"), dtype="bfloat16", sizes=sizes).check(device)
