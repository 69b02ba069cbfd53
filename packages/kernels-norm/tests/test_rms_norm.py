"""rms_norm: the contract, all behaviours, upstream's bits in every cast order, bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import liger
from liger import ops
from liger.testing import Case, Check, assert_contract, checks
from liger.testing.cases import find, typical
from liger_kernels_norm.rms_norm import CASTS, rms_norm_reference


@pytest.mark.parametrize("check", checks("rms_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


# -- Cast orders, written from upstream's modelling files --------------------------------------------------------------
def llama(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return w * h.to(x.dtype)


def gemma(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (1.0 + w.float())).type_as(x)


def olmo2(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (w * h).to(x.dtype)


def no_cast(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


UPSTREAM = {
    "llama": (llama, {"cast": "llama"}),
    "gemma": (gemma, {"cast": "gemma", "offset": 1.0}),
    "fp32-weight": (olmo2, {"cast": "fp32-weight"}),
    "none": (no_cast, {"cast": "none"}),
}


@pytest.mark.triton
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("cast", UPSTREAM)
def test_reference_has_upstream_bits_and_triton_nearly(
    cast: str, dtype: torch.dtype, weight_dtype: torch.dtype | None, device: str, generator: torch.Generator
) -> None:
    upstream, options = UPSTREAM[cast]
    x = torch.randn(8, 2048, generator=generator).to(device, dtype)
    w = torch.randn(2048, generator=generator).to(device, weight_dtype or dtype)
    expected = upstream(x, w, 1e-6)
    reference = ops.rms_norm(x, w, **options, kernel="reference")
    assert reference.dtype == expected.dtype and torch.equal(reference, expected)
    got = ops.rms_norm(x, w, **options, kernel="triton")
    assert got.dtype == expected.dtype
    if got.dtype == torch.float32 or cast == "none":
        return  # held to the contract elsewhere; "none" rounds a sum of 2048 terms, in the kernel's own order
    distance = (got.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
    assert int(distance.max()) <= 2  # xhat off by one ulp, which the product with w can double across a power of two
    assert float((distance != 0).float().mean()) <= 1e-3


@pytest.mark.parametrize("kernel", ["reference", "triton"])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cast", ["gemma", "llama"])
def test_c05_offset_is_added_in_fp32(
    cast: str, weight_dtype: torch.dtype, kernel: str, device: str, generator: torch.Generator
) -> None:
    """C05: the offset was added in bf16, so that 64 % of the outputs were wrong, by up to 0.125."""
    x = torch.randn(4, 16, generator=generator).to(device, torch.bfloat16)
    w = torch.tensor([0.00390625] * 8 + [15.8125] * 8, device=device, dtype=weight_dtype)
    upstream, options = UPSTREAM[cast]
    assert torch.equal(ops.rms_norm(x, w, **options, kernel=kernel), upstream(x, w, 1e-6))


@pytest.mark.parametrize(
    ("module", "name", "cast"),
    [
        ("llama", "LlamaRMSNorm", "llama"),
        ("gemma2", "Gemma2RMSNorm", "gemma"),
        ("olmo2", "Olmo2RMSNorm", "fp32-weight"),
    ],
)
def test_matches_transformers(module: str, name: str, cast: str, device: str, generator: torch.Generator) -> None:
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    norm = getattr(modeling, name)(64, eps=1e-5).to(device, torch.bfloat16)
    with torch.no_grad():
        norm.weight.add_(0.1 * torch.randn(64, generator=generator).to(device, torch.bfloat16))
    x = torch.randn(3, 5, 64, generator=generator).to(device, torch.bfloat16)
    assert torch.equal(ops.rms_norm(x, norm.weight, eps=1e-5, **UPSTREAM[cast][1], kernel="reference"), norm(x))


@pytest.mark.triton
@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    width=st.integers(2, 3000),  # at 1, dx is nothing but what cancellation leaves: 1 - x^2 / (x^2 + eps)
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["plain", "transposed", "expanded", "weightless", "fp32 weight"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    cast=st.sampled_from(CASTS),
    offset=st.sampled_from([0.0, 1.0]),
)
def test_any_shape(
    shape: tuple[int, ...], width: int, seed: int, kind: str, dtype: torch.dtype, cast: str, offset: float, device: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, width, generator=generator).to(device, dtype)
    if kind == "transposed":
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "expanded":
        x = x[..., :1].expand(x.shape)
    w = 1 + 0.2 * torch.randn(width, generator=generator)
    weight = None if kind == "weightless" else w.to(device, torch.float32 if kind == "fp32 weight" else dtype)
    inputs = [None if t is None else t.detach().requires_grad_() for t in (x, weight)]
    options = {"cast": cast, "offset": offset, "eps": 1e-6}
    assert_contract(
        lambda *a, **o: ops.rms_norm(*a, **o, kernel="triton"), rms_norm_reference, inputs, options, reduction=width
    )


@pytest.mark.triton
@pytest.mark.parametrize("cast", ["fp32-weight", "gemma"])
def test_gradient_of_an_fp32_weight_is_not_rounded_to_16_bit(cast: str, device: str) -> None:
    typical(find("rms_norm/triton"), "bfloat16").replace(variant="fp32 weight", options={"cast": cast}).check(device)


def test_module(device: str) -> None:
    x = torch.randn(2, 3, 16, device=device)
    norm = liger.nn.RMSNorm(16, eps=1e-5, cast="gemma", offset=1.0, device=device)
    assert torch.equal(norm.weight, torch.zeros(16, device=device))
    assert torch.equal(norm(x), ops.rms_norm(x, norm.weight, eps=1e-5, cast="gemma", offset=1.0))
    assert "cast='gemma'" in repr(norm)
    assert liger.nn.RMSNorm(16, elementwise_affine=False).weight is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x, w: ops.rms_norm(x, w, cast="Llama"),
            ValueError,
            "cast is 'Llama', expected one of llama, fp32-weight",
        ),
        (lambda x, w: ops.rms_norm(x.long(), w), TypeError, r"x must be floating .* got torch.int64 \(2, 8\)"),
        (lambda x, w: ops.rms_norm(x, w[:4]), ValueError, r"weight has shape \(4,\), expected \(8,\)"),
        (lambda x, w: ops.rms_norm(x, w[:0]), ValueError, "usually a sharded one that was not gathered"),
        (
            lambda x, w: ops.rms_norm(x, w.to("meta")),
            TypeError,
            "weight must be floating on cpu like x, got .* on meta",
        ),
        (lambda x, w: ops.rms_norm(x, w, epsilon=1e-6), TypeError, "unexpected keyword argument 'epsilon'"),
    ],
)
def test_bad_input(call: Callable[..., torch.Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(torch.zeros(2, 8), torch.zeros(8))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{"R": 8192, "H": 4096}, {"R": 4099, "H": 5461}, {"R": 257, "H": 16385}])
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("rms_norm/triton"), dtype="bfloat16", sizes=sizes).check(device)


@pytest.mark.parametrize("cast", CASTS)
def test_second_derivative_of_the_reference(cast: str) -> None:
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 8), (8,)))
    assert torch.autograd.gradgradcheck(lambda *t: ops.rms_norm(*t, cast=cast, kernel="reference"), (x, w))


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (TypeError, "x must be a tensor, got list", ([1.0],), {}),
        (TypeError, "x must be a tensor, got NoneType", (None,), {}),
        (TypeError, "weight must be a tensor, got float", (torch.ones(2), 1.0), {}),
        (TypeError, "eps must be a number, got str", (torch.ones(2),), {"eps": "1e-6"}),
        (TypeError, "offset must be a number, got NoneType", (torch.ones(2),), {"offset": None}),
        (ValueError, "eps is -1.0, expected", (torch.ones(2),), {"eps": -1.0}),
        (ValueError, "eps is nan, expected", (torch.ones(2),), {"eps": float("nan")}),
    ],
)
def test_arguments_of_a_wrong_type(error, message, arguments, options) -> None:
    with pytest.raises(error, match=f"rms_norm: {message}"):
        ops.rms_norm(*arguments, **options)
