"""qk_norm_rope: the contract, upstream's bits, what it keeps and leaves out, bad input."""

from __future__ import annotations

import pytest
import torch

from liger import nn, ops
from liger.testing import Check, checks
from liger_kernels_rope.qk_norm_rope import qk_norm_rope_inputs

SIZES = {"T": 5, "B": 2, "NQ": 4, "NK": 2, "D": 64}
NORMS = (  # module, class, its eps, our options
    ("qwen3.modeling_qwen3", "Qwen3RMSNorm", {}),
    ("gemma3.modeling_gemma3", "Gemma3RMSNorm", {"cast": "gemma", "offset": 1.0}),
    ("olmo2.modeling_olmo2", "Olmo2RMSNorm", {"cast": "fp32-weight"}),
)


@pytest.mark.parametrize("check", checks("qk_norm_rope/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("module", "norm", "options"), NORMS)
def test_the_reference_has_upstreams_bits(
    module: str, norm: str, options: dict[str, object], dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    modeling = pytest.importorskip(f"transformers.models.{module}")
    (q, k, q_weight, k_weight, cos, sin), _ = qk_norm_rope_inputs(device, dtype, **SIZES, generator=generator)
    normed = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        upstream = getattr(modeling, norm)(SIZES["D"], eps=1e-6).to(device, dtype)
        upstream.weight.data.copy_(weight.data)
        normed.append(upstream(x))
    expected = modeling.apply_rotary_pos_emb(*normed, cos, sin)
    ours = ops.qk_norm_rope(q, k, q_weight, k_weight, cos, sin, **options, kernel="reference")
    for got, theirs in zip(ours, expected, strict=True):
        assert got.dtype == theirs.dtype and torch.equal(got, theirs)


@pytest.mark.triton
@pytest.mark.parametrize("variant", ["", "heads last"])
def test_results_and_gradients_keep_the_memory_layout(variant: str, device: str, generator: torch.Generator) -> None:
    inputs, options = qk_norm_rope_inputs(device, torch.bfloat16, **SIZES, generator=generator, variant=variant)
    outputs = ops.qk_norm_rope(*inputs, **options, kernel="triton")
    gradients = torch.autograd.grad(outputs, inputs[:2], [torch.ones_like(y).contiguous() for y in outputs])
    for x, y, dx in zip(inputs, outputs, gradients, strict=False):
        assert x.stride() == y.stride() == dx.stride()


@pytest.mark.triton
def test_only_one_output_used(device: str, generator: torch.Generator) -> None:
    inputs, _ = qk_norm_rope_inputs(device, torch.float32, **SIZES, generator=generator)
    ops.qk_norm_rope(*inputs, kernel="triton")[1].sum().backward()
    assert [t.grad is not None for t in inputs[:4]] == [False, True, False, True]


@pytest.mark.triton
def test_a_head_of_zeros_without_eps_does_not_reach_other_weight_gradients(device: str) -> None:
    """Heads beyond the last one of a block are zeros as well, and 0 * inf would be NaN."""
    q, k = torch.ones(1, 3, 1, 4, device=device), torch.ones(1, 1, 1, 4, device=device)
    tables = torch.ones(1, 1, 4, device=device), torch.zeros(1, 1, 4, device=device)
    weights = [torch.ones(4, device=device, requires_grad=True) for _ in range(2)]
    y, _ = ops.qk_norm_rope(q, k, *weights, *tables, eps=0.0, kernel="triton")
    y.sum().backward()
    assert weights[0].grad.tolist() == [3.0] * 4


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_module(offset: float, device: str, generator: torch.Generator) -> None:
    module = nn.QKNormRope(SIZES["D"], offset=offset, device=device)
    (q, k, _, _, cos, sin), _ = qk_norm_rope_inputs(device, torch.float32, **SIZES, generator=generator)
    ones = torch.ones(SIZES["D"], device=device)
    for got, expected in zip(module(q, k, cos, sin), ops.qk_norm_rope(q, k, ones, ones, cos, sin), strict=True):
        torch.testing.assert_close(got, expected)
    assert sorted(module.state_dict()) == ["k_weight", "q_weight"]
    assert repr(module) == f"QKNormRope(64, eps=1e-06, cast='llama', offset={offset})"


def test_refusals() -> None:
    q, w, cos = torch.zeros(2, 3, 5, 8), torch.ones(8), torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match="cast is 'none', expected one of llama, fp32-weight, gemma"):
        ops.qk_norm_rope(q, q, w, w, cos, cos, cast="none")
    with pytest.raises(ValueError, match="eps is -1.0, expected a finite number, 0 or more"):
        ops.qk_norm_rope(q, q, w, w, cos, cos, eps=-1.0)
    with pytest.raises(TypeError, match="offset must be a number, got str"):
        ops.qk_norm_rope(q, q, w, w, cos, cos, offset="1")
    with pytest.raises(ValueError, match=r"k_weight has shape \(4,\), expected \(8,\), the last of q"):
        ops.qk_norm_rope(q, q, w, w[:4], cos, cos)
    with pytest.raises(TypeError, match="q_weight must be a tensor, got NoneType"):
        ops.qk_norm_rope(q, q, None, w, cos, cos)
    with pytest.raises(ValueError, match="cos requires a gradient, which this op does not give"):
        ops.qk_norm_rope(q, q, w, w, cos.clone().requires_grad_(), cos)
