"""modulated_rms_norm: the contract, all behaviours, upstream's bits, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find


@pytest.mark.parametrize("check", checks("modulated_rms_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_has_upstream_bits(dtype: torch.dtype, mixed: bool, generator: torch.Generator) -> None:
    """VibeVoice's diffusion head: ``norm(x) * (1 + scale) + shift``."""
    modeling = pytest.importorskip("transformers.models.vibevoice.modeling_vibevoice")
    norm = modeling.VibeVoiceRMSNorm(64, eps=1e-5).to(dtype)
    x = torch.randn(3, 5, 64, generator=generator).to(dtype)
    scale, shift = torch.randn(2, 3, 64, generator=generator).to(torch.float32 if mixed else dtype)
    with torch.no_grad():
        norm.weight.add_(0.1 * torch.randn(64, generator=generator))
        expected = norm(x) * (1 + scale[:, None]) + shift[:, None]
        found = ops.modulated_rms_norm(x, scale, shift, norm.weight, eps=1e-5, kernel="reference")
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.triton
@pytest.mark.parametrize("cast", ["llama", "fp32-weight"])
@pytest.mark.parametrize("weight", [True, False])
def test_triton_has_nearly_the_references_bits(
    weight: bool, cast: str, device: str, generator: torch.Generator
) -> None:
    x = torch.randn(2, 8, 1024, generator=generator).to(device, torch.bfloat16)
    scale, shift = torch.randn(2, 2, 1024, generator=generator).to(device, torch.bfloat16)
    w = torch.randn(1024, generator=generator).to(device, torch.bfloat16) if weight else None
    expected, found = (
        ops.modulated_rms_norm(x, scale, shift, w, cast=cast, kernel=name) for name in ("reference", "triton")
    )
    assert float((found != expected).float().mean()) <= 2e-3


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_no_tokens(kernel: str, device: str) -> None:
    """Samples without tokens: gradients of what belongs to samples are 0."""
    x, scale = torch.empty(2, 0, 8, device=device), torch.ones(2, 8, device=device).requires_grad_()
    w = torch.ones(8, device=device).requires_grad_()
    y = ops.modulated_rms_norm(x, scale, scale.detach(), w, kernel=kernel)
    assert y.shape == x.shape
    for gradient in torch.autograd.grad(y.sum(), (scale, w)):
        assert not gradient.any()


def test_module(device: str) -> None:
    x, s = torch.randn(2, 3, 16, device=device), torch.randn(2, 16, device=device)
    norm = liger.nn.ModulatedRMSNorm(16, eps=1e-5, cast="fp32-weight", device=device)
    assert torch.equal(norm(x, s, s), ops.modulated_rms_norm(x, s, s, norm.weight, eps=1e-5, cast="fp32-weight"))
    assert list(norm.state_dict()) == ["weight"]
    assert "cast='fp32-weight'" in repr(norm)
    assert liger.nn.ModulatedRMSNorm(16, elementwise_affine=False).weight is None


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "cast is 'gemma', expected one of llama, fp32-weight", {"cast": "gemma"}),
        (ValueError, "eps is inf, expected", {"eps": float("inf")}),
        (ValueError, r"scale has shape \(3, 8\), expected \(2, 8\), first dimensions", {"scale": torch.zeros(3, 8)}),
        (ValueError, r"scale has shape \(8,\), expected \(2, 8\), first dimensions", {"scale": torch.zeros(8)}),
        (ValueError, r"scale has shape \(2, 3, 8\), expected \(2, 4, 8\)", {"scale": torch.zeros(2, 3, 8)}),
        (ValueError, r"shift has shape \(2, 4, 8\), expected \(2, 8\), that of scale", {"shift": torch.zeros(2, 4, 8)}),
        (TypeError, "shift must be a tensor, got NoneType", {"shift": None}),
        (ValueError, r"weight has shape \(4,\), expected \(8,\), the last of x", {"weight": torch.zeros(4)}),
        (TypeError, r"x must be floating with at least 2 dimensions, got torch.float32 \(8,\)", {"x": torch.zeros(8)}),
    ],
)
def test_bad_input(error: type[Exception], message: str, change: dict[str, Any]) -> None:
    good = {"x": torch.zeros(2, 4, 8), "scale": torch.zeros(2, 8), "shift": torch.zeros(2, 8)}
    with pytest.raises(error, match=f"modulated_rms_norm: {message}"):
        ops.modulated_rms_norm(**{**good, **change})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [{"B": 8, "T": 1024, "H": 4096}, {"B": 3, "T": 1367, "H": 5461}, {"B": 2, "T": 129, "H": 16385}]
)
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("modulated_rms_norm/triton"), dtype="bfloat16", sizes=sizes).check(device)
