"""The modules pass what they were made with on to the ops."""

from __future__ import annotations

import pytest
import torch

from liger import nn, ops
from liger_kernels_rope.mrope import mrope_inputs
from liger_kernels_rope.rope import rope_inputs
from liger_kernels_rope.rope_complex import rope_complex_inputs

SIZES = {"T": 5, "B": 2, "NQ": 4, "NK": 2}


def equal(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_rope(device: str, generator: torch.Generator) -> None:
    (q, k, cos, sin), _ = rope_inputs(device, torch.float32, **SIZES, D=16, generator=generator)
    assert equal(nn.RoPE()(q, k, cos, sin), ops.rope(q, k, cos, sin))
    form = {"layout": "interleaved", "cast": "fp32"}
    assert equal(nn.RoPE(**form)(q, k, cos, sin), ops.rope(q, k, cos, sin, **form))
    assert not equal(ops.rope(q, k, cos, sin), ops.rope(q, k, cos, sin, **form))
    last = [t.transpose(1, 2) for t in (q, k)]
    assert equal(nn.RoPE(unsqueeze_dim=2)(*last, cos, sin), ops.rope(*last, cos, sin, unsqueeze_dim=2))
    assert repr(nn.RoPE(**form)) == "RoPE(layout='interleaved', tables='column', cast='fp32')"


def test_mrope(device: str, generator: torch.Generator) -> None:
    tensors, options = mrope_inputs(device, torch.float32, **SIZES, P=8, generator=generator)
    for interleaved in (False, True):
        form = {**options, "interleaved": interleaved}
        assert equal(nn.MRoPE(**form)(*tensors), ops.mrope(*tensors, **form))
    assert "interleaved=True" in repr(nn.MRoPE(interleaved=True))


def test_rope_complex(device: str, generator: torch.Generator) -> None:
    tensors, options = rope_complex_inputs(device, torch.float32, **SIZES, P=8, generator=generator)
    assert equal(nn.ComplexRoPE(**options)(*tensors), ops.rope_complex(*tensors, **options))
    assert repr(nn.ComplexRoPE()) == "ComplexRoPE(unsqueeze_dim=1)"


@pytest.mark.triton
def test_the_inverse_of_complex_angles(device: str, generator: torch.Generator) -> None:
    """The conjugate is lazy: in memory its imaginary part has the other sign."""
    (q, k, freqs), options = rope_complex_inputs(device, torch.float32, **SIZES, P=8, generator=generator)
    found = ops.rope_complex(q, k, freqs.conj(), **options, kernel="triton")
    for f, e in zip(found, ops.rope_complex(q, k, freqs.conj(), **options, kernel="reference"), strict=True):
        torch.testing.assert_close(f, e)


@pytest.mark.triton
def test_one_table_for_cos_and_sin_compiles(device: str, generator: torch.Generator) -> None:
    (q, k, cos, _), _ = rope_inputs(device, torch.float32, **SIZES, D=16, generator=generator)
    compiled = torch.compile(lambda *t: ops.rope(*t, t[2], kernel="triton"), backend="aot_eager", fullgraph=True)
    assert equal(compiled(q, k, cos), ops.rope(q, k, cos, cos, kernel="reference"))
