"""group_norm: the contract, all behaviours, torch's bits, groups of every kind, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import liger
from liger import ops
from liger.launch import ASSUMED, assume
from liger.testing import Case, Check, assert_contract, checks
from liger.testing.cases import find
from liger_kernels_norm.group_norm import group_norm_reference


@pytest.mark.parametrize("check", checks("group_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
def test_reference_has_the_bits_of_torch(affine: bool, dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(2, 12, 7, 5, generator=generator).to(dtype)
    w, b = torch.randn(2, 12, generator=generator).to(dtype) if affine else (None, None)
    assert torch.equal(ops.group_norm(x, w, b, num_groups=3, kernel="reference"), F.group_norm(x, 3, w, b))


@pytest.mark.triton
@pytest.mark.parametrize("shape", [(2, 24), (1, 24, 1, 1), (2, 6, 3, 5, 2), (1, 300, 20), (1, 6, 70, 70), (0, 6, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_shape(dtype: torch.dtype, shape: tuple[int, ...], device: str, generator: torch.Generator) -> None:
    x = (3 + torch.randn(shape, generator=generator)).to(device, dtype)
    w, b = torch.randn(2, shape[1], generator=generator).to(device, dtype)
    inputs = [t.detach().requires_grad_() for t in (x, w, b)]
    assert_contract(
        lambda *a, **o: ops.group_norm(*a, **o, kernel="triton"),
        group_norm_reference,
        inputs,
        {"num_groups": 3},
        reduction=x[0, : shape[1] // 3].numel() if len(x) else 1,
    )


@pytest.mark.triton
@pytest.mark.parametrize("shape", [(2, 4, 5000), (1, 6, 12000)], ids=["small tiles", "a program fills a processor"])
def test_a_program_takes_whole_groups_of_several_tiles(
    shape: tuple[int, ...], device: str, generator: torch.Generator
) -> None:
    """As on a GPU with more groups than places for programs."""
    if device != "cpu":
        pytest.skip("a GPU that is there is asked how many processors it has")
    x, w, b = (torch.randn(size, generator=generator).bfloat16() for size in (shape, shape[1], shape[1]))
    inputs = [t.requires_grad_() for t in (x, w, b)]
    with assume(ASSUMED._replace(processors=1)):
        assert_contract(
            lambda *a, **o: ops.group_norm(*a, **o, kernel="triton"),
            group_norm_reference,
            inputs,
            {"num_groups": 2},
            reduction=x[0, : shape[1] // 2].numel(),
        )


@pytest.mark.triton
def test_the_variance_is_that_of_values_far_from_0(device: str, generator: torch.Generator) -> None:
    """E[x^2] - E[x]^2 would have no digit left: 1e8 beside 1."""
    x = 1e4 + torch.randn(1, 2, 9000, generator=generator).to(device)
    found = ops.group_norm(x, num_groups=1, kernel="triton")
    assert float((found - F.group_norm(x.double(), 1)).abs().max()) < 1e-2


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_no_positions(kernel: str, device: str) -> None:
    x, w = torch.empty(2, 4, 0, device=device), torch.ones(4, device=device).requires_grad_()
    b = torch.zeros(4, device=device).requires_grad_()
    y = ops.group_norm(x, w, b, num_groups=2, kernel=kernel)
    assert y.shape == x.shape
    for gradient in torch.autograd.grad(y.sum(), (w, b)):
        assert torch.equal(gradient, torch.zeros(4, device=device))


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_a_bias_alone(kernel: str, device: str, generator: torch.Generator) -> None:
    """torch's own backward fails without a weight."""
    x = torch.randn(2, 6, 5, generator=generator).to(device).requires_grad_()
    bias = torch.randn(6, generator=generator).to(device).requires_grad_()
    found = ops.group_norm(x, None, bias, num_groups=3, kernel=kernel)
    expected = F.group_norm(x, 3) + bias[:, None]
    torch.testing.assert_close(found, expected)
    dy = torch.randn(2, 6, 5, generator=generator).to(device)
    for got, truth in zip(*(torch.autograd.grad(y, (x, bias), dy) for y in (found, expected)), strict=True):
        torch.testing.assert_close(got, truth)


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("channels", [6, 1])
def test_frozen_images_with_channels_last(channels: int, kernel: str, device: str, generator: torch.Generator) -> None:
    """torch's own backward ends the process."""
    x = torch.randn(2, channels, 3, 5, generator=generator).to(device)
    parameters = [t.to(device).requires_grad_() for t in torch.randn(2, channels, generator=generator)]
    found, expected = (
        torch.autograd.grad(ops.group_norm(t, *parameters, num_groups=1, kernel=k).square().sum(), parameters)
        for t, k in ((x.to(memory_format=torch.channels_last), kernel), (x, "reference"))
    )
    torch.testing.assert_close(found, expected)


def test_module(device: str, generator: torch.Generator) -> None:
    x = torch.randn(2, 6, 5, generator=generator).to(device)
    ours, theirs = (kind(3, 6, 1e-3, True, device=device) for kind in (liger.nn.GroupNorm, torch.nn.GroupNorm))
    with torch.no_grad():
        theirs.weight.mul_(2.0)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours.extra_repr() in theirs.extra_repr()  # newer releases of torch add to theirs
    assert list(liger.nn.GroupNorm(3, 6, bias=False).state_dict()) == ["weight"]
    assert not liger.nn.GroupNorm(3, 6, affine=False).state_dict()
    with pytest.raises(ValueError, match="num_groups is 4, which does not divide num_channels, 6"):
        liger.nn.GroupNorm(4, 6)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "num_groups is 3, which does not divide 8, the channels of x", {"num_groups": 3}),
        (ValueError, "num_groups is 0, expected 1 or more", {"num_groups": 0}),
        (TypeError, "num_groups must be an int, got NoneType", {"num_groups": None}),
        (ValueError, "eps is -1.0, expected", {"eps": -1.0}),
        (ValueError, r"weight has shape \(5,\), expected \(8,\), the channels of x", {"weight": torch.zeros(5)}),
        (TypeError, "bias must be a tensor, got int", {"bias": 1}),
        (TypeError, r"x must be floating with at least 2 dimensions, got torch.float32 \(8,\)", {"x": torch.zeros(8)}),
    ],
)
def test_bad_input(error: type[Exception], message: str, change: dict[str, Any]) -> None:
    good = {"x": torch.zeros(2, 8, 5), "num_groups": 2}
    with pytest.raises(error, match=f"group_norm: {message}"):
        ops.group_norm(**{**good, **change})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {"N": 8, "G": 32, "C": 10, "S": 4096},
        {"N": 33, "G": 8, "C": 12, "S": 1537},
        {"N": 1, "G": 2, "C": 3, "S": 1048583},
    ],
)
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("group_norm/triton"), dtype="bfloat16", sizes=sizes).check(device)
