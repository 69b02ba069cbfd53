"""relu_squared, softmax, log_softmax and sparsemax: the contract, all behaviours, infinities, bad input."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find

OPS = ("relu_squared", "softmax", "log_softmax", "sparsemax")
ROWS = OPS[1:]
WIDTHS = (4, 1500, 17000)  # of softmax: held in registers, in two parts, one row after another


@pytest.mark.parametrize("check", checks(*(f"{op}/triton" for op in OPS)))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.triton
@pytest.mark.parametrize("width", [*WIDTHS, 33003, 66002])  # read twice, and shared
@pytest.mark.parametrize("op", ROWS)
def test_infinities_and_nan(op: str, width: int, device: str, generator: torch.Generator) -> None:
    x = torch.zeros(6, width, device=device)
    x[0] = -math.inf
    x[1, 1:] = -math.inf  # one that is allowed: the first
    x[2, :-1] = -math.inf  # the last
    x[3, 0] = math.nan
    x[4, -1] = math.inf
    x.requires_grad_()
    expected, got = (getattr(ops, op)(x, kernel=kernel) for kernel in ("reference", "triton"))
    dy = torch.randint(-4, 5, (6, width), generator=generator).float().to(device)  # whose sums are exact
    slopes = [torch.autograd.grad(y, x, dy)[0] for y in (expected, got)]
    torch.testing.assert_close((got, slopes[1]), (expected, slopes[0]), equal_nan=True)
    for found in (got, slopes[1]):
        assert found[[0, 3, 4]].isnan().all() and not found[[1, 2, 5]].isnan().any()


@pytest.mark.triton
@pytest.mark.parametrize("width", WIDTHS)
def test_sparsemax_of_known_rows(width: int, device: str) -> None:
    x = torch.full((5, width), -9.0, device=device)
    x[0, 1] = 3.0  # alone
    x[1, :2] = 3.0  # two alike
    x[2, :3] = torch.tensor([0.0, 1.5, 2.0])
    x[3] = -9.0  # all alike
    x[4] = torch.linspace(0, 1e-6, width)  # nearly so: all are in the support
    y = ops.sparsemax(x, kernel="triton")
    assert y[0, 1] == 1 and y[0].count_nonzero() == 1
    assert y[1, :2].tolist() == [0.5, 0.5] and y[1].count_nonzero() == 2
    assert y[2, :3].tolist() == [0.0, 0.25, 0.75] and y[2].count_nonzero() == 2
    assert torch.allclose(y[3], torch.tensor(1.0 / width, device=device), rtol=1e-6)
    assert torch.allclose(y.double().sum(-1), torch.ones(5, dtype=torch.float64, device=device), atol=1e-6)


@pytest.mark.triton
@pytest.mark.parametrize("width", [300, 9000])
def test_sparsemax_leaves_out_what_lies_at_the_threshold(width: int, device: str, generator: torch.Generator) -> None:
    # 1 in 1024 parts, dealt to at most 96 columns: the threshold is exactly 0.5, where the others are
    parts = torch.zeros(24, width)
    for row in parts:
        places = torch.randint(0, width, (1024,), generator=generator)
        row.index_put_((places[torch.randint(0, 96, (1024,), generator=generator)],), torch.ones(1024), accumulate=True)
    y = ops.sparsemax((parts / 1024 + 0.5).to(device), kernel="triton")
    assert torch.equal(y.cpu() > 0, parts > 0)
    torch.testing.assert_close(y.cpu(), parts / 1024)


@pytest.mark.triton
def test_sparsemax_keeps_the_support_in_float16(device: str) -> None:
    tiny = 2.0**-24  # the smallest number
    x = torch.tensor([[1.0, tiny, tiny, tiny]], device=device, dtype=torch.float16)
    y = ops.sparsemax(x, kernel="triton")  # in truth 1 - 3/4 tiny and three times tiny / 4, which rounds to 0
    assert y.tolist() == [[1.0, tiny, tiny, tiny]]


@pytest.mark.triton
@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_relu_squared_keeps_nan(kernel: str, device: str) -> None:
    x = torch.tensor([math.nan, -1.0, math.inf], device=device)
    y = ops.relu_squared(x, kernel=kernel)
    assert y[0].isnan() and y[1:].tolist() == [0.0, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softmax_in_float32_is_the_same(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = (4 * torch.randn(8, 1000, generator=generator)).to(dtype)
    assert torch.equal(ops.softmax(x, kernel="reference"), F.softmax(x, dim=-1, dtype=torch.float32).to(dtype))
    assert torch.equal(ops.log_softmax(x, kernel="reference"), F.log_softmax(x, dim=-1, dtype=torch.float32).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_squared_has_the_bits_of_nemotron(dtype: torch.dtype, generator: torch.Generator) -> None:
    activations = pytest.importorskip("transformers.activations", reason="compares with transformers")
    x = torch.randn(8, 1000, generator=generator).to(dtype)
    assert torch.equal(ops.relu_squared(x, kernel="reference"), activations.ACT2FN["relu2"](x))


@pytest.mark.parametrize("op", OPS)
def test_bad_input(op: str) -> None:
    fn = getattr(ops, op)
    with pytest.raises(TypeError, match=rf"{op}: x must be floating, got torch.int64 \(2, 3\)"):
        fn(torch.zeros(2, 3).long())
    with pytest.raises(TypeError, match=f"{op}: x must be a tensor, got list"):
        fn([1.0])


@pytest.mark.parametrize("op", ROWS)
def test_no_rows(op: str) -> None:
    with pytest.raises(ValueError, match=rf"{op}: x has no dimension, expected rows \(..., V\)"):
        getattr(ops, op)(torch.tensor(1.0))


@pytest.mark.triton
@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_rows_of_width_0(kernel: str, device: str) -> None:
    x = torch.zeros(3, 0, device=device)
    assert ops.softmax(x, kernel=kernel).shape == ops.log_softmax(x, kernel=kernel).shape == (3, 0)
    with pytest.raises(ValueError, match=r"sparsemax: x has shape \(3, 0\), expected \(..., V\) with V > 0"):
        ops.sparsemax(x, kernel=kernel)


def test_modules(device: str) -> None:
    x = torch.randn(2, 6, device=device)
    for name, op in zip(("ReLUSquared", "Softmax", "LogSoftmax", "Sparsemax"), OPS, strict=True):
        assert torch.equal(getattr(liger.nn, name)()(x), getattr(ops, op)(x))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ROWS)
@pytest.mark.parametrize("width", [5120, 16384, 32768, 131072, 524288])
def test_big(op: str, width: int, device: str) -> None:
    Case(kernel=find(f"{op}/triton"), dtype="bfloat16", sizes={"R": 300, "V": width}).check(device)
