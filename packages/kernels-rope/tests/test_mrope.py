"""mrope and rope_complex: the contract, upstream's bits, bad input."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from liger import ops
from liger.testing import Check, checks
from liger_kernels_rope.mrope import choose_axes, mrope_inputs
from liger_kernels_rope.rope_complex import rope_complex_inputs

SIZES = {"T": 5, "B": 2, "NQ": 4, "NK": 2, "P": 64}
MULTIMODAL = (
    ("qwen2_vl.modeling_qwen2_vl", "Qwen2VLRotaryEmbedding", (16, 24, 24), False),
    ("qwen3_vl.modeling_qwen3_vl", "Qwen3VLTextRotaryEmbedding", (24, 20, 20), True),
)


@pytest.mark.parametrize("check", checks("mrope/triton", "rope_complex/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("module", "rotary", "sections", "interleaved"), MULTIMODAL)
def test_mrope_has_upstreams_bits(
    module: str,
    rotary: str,
    sections: tuple[int, int, int],
    interleaved: bool,
    dtype: torch.dtype,
    kernel: str,
    device: str,
    generator: torch.Generator,
) -> None:
    """Upstream chooses among the three angles of a pair first, and then rotates."""
    modeling = pytest.importorskip(f"transformers.models.{module}")
    choose = getattr(modeling, rotary).recomposition_frequencies
    (q, k, *_), _ = mrope_inputs(device, dtype, **SIZES, generator=generator)
    angles = 6.3 * torch.rand(3, SIZES["B"], SIZES["T"], SIZES["P"], generator=generator)
    tables = [t.to(device, dtype) for t in (angles.cos(), angles.sin())]
    chosen = [choose(SimpleNamespace(mrope_section=list(sections)), t.clone()) for t in tables]
    expected = modeling.apply_rotary_pos_emb(q, k, *chosen)
    wide = [torch.cat((t, t), dim=-1) for t in tables]
    options = {"sections": sections, "interleaved": interleaved}
    for got, theirs in zip(ops.mrope(q, k, *wide, **options, kernel=kernel), expected, strict=True):
        assert got.dtype == theirs.dtype and torch.equal(got, theirs)


def test_halves_of_a_table_are_both_read() -> None:
    """By column, as upstream's former ``apply_multimodal_rotary_pos_emb`` read them."""
    table = torch.arange(3 * 12.0).view(3, 12)
    assert choose_axes(table, (1, 2, 3), False).tolist() == [0, 13, 14, 27, 28, 29, 6, 19, 20, 33, 34, 35]
    assert choose_axes(table, (2, 2, 2), True).tolist() == [0, 13, 26, 3, 16, 29, 6, 19, 32, 9, 22, 35]
    assert choose_axes(table, (4, 1, 1), True).tolist() == [0, 13, 26, 3, 4, 5, 6, 19, 32, 9, 10, 11]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", ["apply_rotary_emb", "vision_apply_rotary_emb"])
def test_the_complex_reference_has_llama4s_bits(
    function: str, dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    modeling = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    (q, k, freqs), options = rope_complex_inputs(device, dtype, **SIZES, generator=generator, variant="heads last")
    given = freqs if function == "apply_rotary_emb" else freqs[:1].transpose(0, 1)
    expected = getattr(modeling, function)(q, k, given)
    ours = ops.rope_complex(q, k, freqs if given is freqs else freqs[:1], **options, kernel="reference")
    for got, theirs in zip(ours, expected, strict=True):
        assert got.dtype == theirs.dtype and torch.equal(got, theirs)


def test_the_complex_reference_has_deepseek_v2s_bits(device: str, generator: torch.Generator) -> None:
    modeling = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    inputs, _ = rope_complex_inputs(device, torch.bfloat16, **SIZES, generator=generator)
    expected = modeling.apply_rotary_emb(*inputs)
    for got, theirs in zip(ops.rope_complex(*inputs, kernel="reference"), expected, strict=True):
        assert torch.equal(got, theirs)


@pytest.mark.triton
def test_layouts_of_results_and_gradients(device: str, generator: torch.Generator) -> None:
    for op, make in ((ops.mrope, mrope_inputs), (ops.rope_complex, rope_complex_inputs)):
        inputs, options = make(device, torch.bfloat16, **SIZES, generator=generator)
        outputs = op(*inputs, **options, kernel="triton")
        gradients = torch.autograd.grad(outputs, inputs[:2], [torch.ones_like(y).contiguous() for y in outputs])
        for x, y, dx in zip(inputs, outputs, gradients, strict=False):
            assert x.stride() == y.stride() == dx.stride()


# -- Bad input ---------------------------------------------------------------------------------------------------------
def test_mrope_refusals() -> None:
    q, cos = torch.zeros(2, 3, 5, 8), torch.zeros(3, 2, 5, 8)
    good = {"sections": (2, 1, 1)}
    with pytest.raises(ValueError, match=r"sections are \(16, 24, 24\), expected three numbers with the sum 4"):
        ops.mrope(q, q, cos, cos)
    for sections in ((2, 2), (5, -1, 0)):
        with pytest.raises(ValueError, match="expected three numbers with the sum 4"):
            ops.mrope(q, q, cos, cos, sections=sections)
    with pytest.raises(TypeError, match=r"sections are \(2.0, 1, 1\), expected three integers"):
        ops.mrope(q, q, cos, cos, sections=(2.0, 1, 1))
    with pytest.raises(ValueError, match=r"cos has shape \(2, 2, 5, 8\), expected \(3, 1 or 2, 5, columns\)"):
        ops.mrope(q, q, cos[:2], cos[:2], **good)
    with pytest.raises(ValueError, match=r"q has shape \(3, 5, 8\), expected 4 dimensions"):
        ops.mrope(q[0], q[0], cos[:, 0], cos[:, 0], **good)
    with pytest.raises(ValueError, match=r"sin requires a gradient, which this op does not give; pass sin.detach\(\)"):
        ops.mrope(q, q, cos, cos.clone().requires_grad_(), **good)


def test_rope_complex_refusals() -> None:
    q, freqs = torch.zeros(2, 3, 5, 8), torch.zeros(1, 5, 4, dtype=torch.complex64)
    with pytest.raises(TypeError, match="freqs must be complex64 on cpu like q, got torch.float32 on cpu"):
        ops.rope_complex(q, q, freqs.real)
    with pytest.raises(TypeError, match="freqs must be a tensor, got NoneType"):
        ops.rope_complex(q, q, None)
    with pytest.raises(ValueError, match=r"freqs have shape \(1, 5, 2\), expected \(1, 5, 4\) or \(2, 5, 4\) to match"):
        ops.rope_complex(q, q, freqs[..., :2])
    with pytest.raises(ValueError, match="q has 7 columns, expected an even number"):
        ops.rope_complex(q[..., :7], q[..., :7], freqs)
    with pytest.raises(ValueError, match="freqs requires a gradient"):
        ops.rope_complex(q, q, freqs.clone().requires_grad_())
