"""gated_rms_norm: the contract, all behaviours, upstream's bits in every order, bad input."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find


@pytest.mark.parametrize("check", checks("gated_rms_norm/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


MAMBA = {"norm_before_gate": False}
FP32 = {"cast": "fp32-weight"}
SIGMOID = {**FP32, "activation": "sigmoid"}
UPSTREAM = [
    ("mamba2", "MambaRMSNormGated", {"group_size": 16}, {**MAMBA, "groups": 4}),
    ("bamba", "BambaRMSNormGated", {"group_size": 64}, MAMBA),
    ("granitemoehybrid", "GraniteMoeHybridRMSNormGated", {"group_size": 32}, {**MAMBA, "groups": 2}),
    ("nemotron_h", "NemotronHRMSNormGated", {"group_size": 16}, {**MAMBA, "groups": 4}),
    ("zamba2", "Zamba2RMSNormGated", {"group_size": 32}, {**MAMBA, "groups": 2}),
    ("falcon_h1", "FalconH1RMSNormGated", {"n_groups": 2, "norm_before_gate": False}, {**FP32, **MAMBA, "groups": 2}),
    ("falcon_h1", "FalconH1RMSNormGated", {"n_groups": 2, "norm_before_gate": True}, {**FP32, "groups": 2}),
    ("qwen3_next", "Qwen3NextRMSNormGated", {}, {}),
    ("qwen3_5", "Qwen3_5RMSNormGated", {}, {}),
    ("olmo_hybrid", "OlmoHybridRMSNormGated", {}, {}),
    ("kimi_linear", "KimiLinearRMSNormGated", {}, SIGMOID),
    ("bailing_hybrid", "BailingHybridRMSNormGated", {}, SIGMOID),
    ("glm5_next", "Glm5NextTextRMSNormGated", {}, SIGMOID),
    ("lara_mini", "LaraMiniRMSNormGated", {}, FP32),
]


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "name", "arguments", "options"), UPSTREAM, ids=[f"{m}-{i}" for i, (m, *_) in enumerate(UPSTREAM)]
)
def test_reference_has_upstream_bits(
    module: str,
    name: str,
    arguments: dict[str, Any],
    options: dict[str, Any],
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    cls = getattr(modeling, name, None)
    if cls is None or not set(arguments) <= set(inspect.signature(cls).parameters):
        pytest.skip(f"this transformers has no {name} with {', '.join(arguments) or 'such a name'}")
    norm = cls(64, eps=1e-5, **arguments).to(weight_dtype)
    x, gate = (torch.randn(3, 5, 64, generator=generator).to(dtype) for _ in range(2))
    with torch.no_grad():
        norm.weight.add_(0.1 * torch.randn(64, generator=generator))
        expected = norm(x, gate)
        found = ops.gated_rms_norm(x, gate, norm.weight, eps=1e-5, **options, kernel="reference")
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.triton
@pytest.mark.parametrize("options", [{}, {**MAMBA, "groups": 4}, FP32], ids=["llama", "mamba2", "fp32-weight"])
def test_triton_has_nearly_the_references_bits(
    options: dict[str, Any], device: str, generator: torch.Generator
) -> None:
    x, gate = (torch.randn(8, 2048, generator=generator).to(device, torch.bfloat16) for _ in range(2))
    w = torch.randn(2048, generator=generator).to(device, torch.bfloat16)
    expected, found = (ops.gated_rms_norm(x, gate, w, **options, kernel=name) for name in ("reference", "triton"))
    assert float((found != expected).float().mean()) <= 2e-3


def test_module(device: str) -> None:
    x, gate = torch.randn(2, 2, 3, 16, device=device)
    options = {"activation": "sigmoid", "norm_before_gate": False, "groups": 4, "cast": "fp32-weight"}
    norm = liger.nn.GatedRMSNorm(16, eps=1e-5, **options, device=device)
    assert torch.equal(norm(x, gate), ops.gated_rms_norm(x, gate, norm.weight, eps=1e-5, **options))
    assert "groups=4" in repr(norm) and list(norm.state_dict()) == ["weight"]
    assert liger.nn.GatedRMSNorm(16, elementwise_affine=False).weight is None


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "cast is 'none', expected one of llama, fp32-weight", {"cast": "none"}),
        (ValueError, "activation is 'gelu', expected one of silu, sigmoid", {"activation": "gelu"}),
        (ValueError, "norm_before_gate is None, expected one of True, False", {"norm_before_gate": None}),
        (ValueError, "groups is 3, which does not divide 8", {"groups": 3}),
        (ValueError, "groups is 0, expected 1 or more", {"groups": 0}),
        (TypeError, "groups must be an int, got float", {"groups": 2.0}),
        (ValueError, "eps is nan, expected", {"eps": float("nan")}),
        (TypeError, "gate must be a tensor, got NoneType", {"gate": None}),
        (ValueError, r"gate has shape \(2, 4\), expected \(2, 8\), that of x", {"gate": torch.zeros(2, 4)}),
        (ValueError, r"weight has shape \(0,\), expected \(8,\), the last of x .*sharded", {"weight": torch.zeros(0)}),
        (TypeError, "weight must be floating on cpu like x, got .* on meta", {"weight": torch.zeros(8, device="meta")}),
        (
            TypeError,
            r"x must be floating with at least one dimension, got torch.int64",
            {"x": torch.zeros(2, 8).long()},
        ),
    ],
)
def test_bad_input(error: type[Exception], message: str, change: dict[str, Any]) -> None:
    good = {"x": torch.zeros(2, 8), "gate": torch.zeros(2, 8), "weight": torch.zeros(8)}
    with pytest.raises(error, match=f"gated_rms_norm: {message}"):
        ops.gated_rms_norm(**{**good, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{"R": 8192, "H": 4096}, {"R": 4099, "H": 5461}, {"R": 257, "H": 16385}])
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("gated_rms_norm/triton"), dtype="bfloat16", sizes=sizes).check(device)
