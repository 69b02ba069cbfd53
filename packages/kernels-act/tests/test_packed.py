"""Gate and up in one tensor: the contract, all behaviours, the bits of the ops on two tensors, upstream's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find
from liger.testing.memory import allocated
from liger_kernels_act._pair import LAYOUTS, halves

KERNELS = ("silu_mul_packed/triton", "gelu_mul_packed/triton", "silu_mul_clamped_packed/triton")
OPTIONS: dict[str, dict[str, Any]] = {
    "silu_mul": {"gate_multiplier": 0.7, "down_multiplier": 0.3},
    "gelu_mul": {"approximate": "none"},
    "silu_mul_clamped": {"limit": 1.5},
}


@pytest.mark.parametrize("check", checks(*KERNELS))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.triton
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPTIONS)
def test_same_bits_as_from_two_tensors(op: str, layout: str, device: str, generator: torch.Generator) -> None:
    x = torch.randn(3, 2 * 1030, generator=generator).to(device, torch.bfloat16).requires_grad_()
    dy = torch.randn(3, 1030, generator=generator).to(device, torch.bfloat16)
    y = getattr(ops, f"{op}_packed")(x, layout=layout, **OPTIONS[op], kernel="triton")
    (dx,) = torch.autograd.grad(y, x, dy)
    gate, up = (t.detach().contiguous().requires_grad_() for t in halves(x, layout))
    expected = getattr(ops, op)(gate, up, **OPTIONS[op], kernel="triton")
    assert torch.equal(y, expected)
    for got, wanted in zip(halves(dx, layout), torch.autograd.grad(expected, (gate, up), dy), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.triton
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_split_or_concatenated(layout: str, device: str) -> None:
    x = torch.randn(8, 512, device=device, requires_grad=True)
    y = ops.silu_mul_packed(x, layout=layout, kernel="triton")
    dy = torch.ones_like(y)
    assert allocated(lambda: ops.silu_mul_packed(x, layout=layout, kernel="triton")) == y.nbytes
    small = 512  # what an empty tensor may be rounded up to
    assert allocated(lambda: torch.autograd.grad(y, x, dy, retain_graph=True)) <= x.nbytes + small


@pytest.mark.parametrize("op", OPTIONS)
def test_bad_input(op: str) -> None:
    fn = getattr(ops, f"{op}_packed")
    with pytest.raises(ValueError, match=rf"{op}_packed: x has shape \(2, 3\), expected \(..., 2 H\)"):
        fn(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        fn(torch.zeros(()))
    with pytest.raises(ValueError, match="layout is 'up', expected one of gate_up, up_gate, interleaved"):
        fn(torch.zeros(2, 4), layout="up")
    with pytest.raises(TypeError, match=r"x must be floating, got torch.int64 \(2, 4\)"):
        fn(torch.zeros(2, 4).long())
    with pytest.raises(TypeError, match="x must be a tensor, got list"):
        fn([1.0, 2.0])


def test_bad_options() -> None:
    x = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="gelu_mul_packed: approximate is 'sigmoid', expected one of tanh, none"):
        ops.gelu_mul_packed(x, approximate="sigmoid")
    with pytest.raises(TypeError, match="silu_mul_packed: down_multiplier must be a number, got str"):
        ops.silu_mul_packed(x, down_multiplier="2")
    with pytest.raises(ValueError, match="silu_mul_clamped_packed: limit is 0, expected a number above 0"):
        ops.silu_mul_clamped_packed(x, limit=0)


def test_modules(device: str) -> None:
    x = torch.randn(2, 6, device=device)
    assert torch.equal(liger.nn.SiLUMulPacked("up_gate")(x), ops.silu_mul_packed(x, layout="up_gate"))
    assert torch.equal(liger.nn.GELUMulPacked("none")(x), ops.gelu_mul_packed(x, approximate="none"))
    clamped = liger.nn.SiLUMulClampedPacked(limit=0.5)
    assert torch.equal(clamped(x), ops.silu_mul_clamped_packed(x, limit=0.5))
    assert "layout='interleaved', alpha=1.702, limit=0.5" in repr(clamped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["phi3", "glm4"])
def test_reference_has_the_bits_of_upstream_mlps(family: str, dtype: torch.dtype) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    config = transformers.AutoConfig.for_model(family, hidden_size=24, intermediate_size=64)
    name = f"{family.capitalize()}MLP"
    module = getattr(transformers.models.__getattr__(family), f"modeling_{family}")
    mlp = getattr(module, name)(config).to(dtype)
    x = torch.randn(5, 24, dtype=dtype)
    expected = mlp(x)
    assert torch.equal(mlp.down_proj(ops.silu_mul_packed(mlp.gate_up_proj(x), kernel="reference")), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_has_the_bits_of_upstream_experts(dtype: torch.dtype, generator: torch.Generator) -> None:
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss", reason="compares with transformers")
    experts = gpt_oss.GptOssExperts(gpt_oss.GptOssConfig(num_local_experts=1, hidden_size=8, intermediate_size=8))
    x = (5 * torch.randn(4, 64, generator=generator)).to(dtype)
    assert torch.equal(ops.silu_mul_clamped_packed(x, kernel="reference"), experts._apply_gate(x))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", [{}, {"layout": "interleaved"}])
def test_big(kernel: str, options: dict[str, str], device: str) -> None:
    Case(kernel=find(kernel), dtype="bfloat16", sizes={"R": 8191, "H": 5461}, options=options).check(device)
