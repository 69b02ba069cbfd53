"""Numbers of any kind, tensors that come twice, lazy minus signs, no columns: the same for all norms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from liger import ops
from liger.launch import Launch
from liger_kernels_norm.rms_norm import rms_norm_reference

triton = pytest.mark.triton


@triton
@pytest.mark.parametrize("value", [0, 1, True, np.float32(0.5), np.float64(0.5), np.int64(1)], ids=repr)
@pytest.mark.parametrize("name", ["eps", "offset"])
def test_numbers_reach_the_kernel_as_floats(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A kernel is compiled for the type of a number: the integer 0 would be another kernel than 0.0."""
    pytest.importorskip("triton")
    seen: list[object] = []
    launch = Launch.__call__
    monkeypatch.setattr(Launch, "__call__", lambda self, *a: (seen.extend(a[2]), launch(self, *a))[1])
    x, w = torch.ones(2, 8, device=device), torch.full((8,), 3.0, device=device)
    y = ops.rms_norm(x, w, **{name: value}, kernel="triton")
    assert [type(n) for n in seen] == [int, float, float]  # rows, eps, offset
    torch.testing.assert_close(y, rms_norm_reference(x, w, **{name: float(value)}))


@triton
def test_a_lazy_minus_sign(device: str, generator: torch.Generator) -> None:
    x = torch._neg_view(torch.randn(3, 8, generator=generator).to(device))
    assert x.is_neg()
    torch.testing.assert_close(ops.rms_norm(x, kernel="triton"), rms_norm_reference(x))


@triton
def test_one_tensor_for_two_arguments_compiles(device: str, generator: torch.Generator) -> None:
    def norm(x: torch.Tensor, kernel: str = "triton") -> torch.Tensor:
        return ops.fused_add_rms_norm(x, x, kernel=kernel)[0]

    x = torch.randn(3, 8, generator=generator).to(device).requires_grad_()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (expected,) = torch.autograd.grad(norm(x, "reference").square().sum(), x)
    torch.testing.assert_close(found, expected)


@triton
@pytest.mark.parametrize("op", ["dyt", "poly_norm"])
def test_no_columns(op: str, device: str) -> None:
    x = torch.ones(3, 0, device=device, requires_grad=True)
    more = (torch.ones(1), torch.ones(0), None) if op == "dyt" else (torch.ones(3), torch.ones(1))
    inputs = [None if t is None else t.to(device).requires_grad_() for t in more]
    y = getattr(ops, op)(x, *inputs, kernel="triton")
    found = torch.autograd.grad(y.sum(), [x, *(t for t in inputs if t is not None)])
    assert all(not g.any() for g in found)
