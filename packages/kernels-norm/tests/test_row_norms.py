"""layer_norm, cohere_norm, fused_add_rms_norm and l2norm: the contract, upstream's bits, modules, bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import liger
from liger import ops
from liger.testing import Case, Check, checks
from liger.testing.cases import find

OPS = ("layer_norm", "cohere_norm", "fused_add_rms_norm", "l2norm")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("check", checks(*(f"{op}/triton" for op in OPS)))
def test_kernel(check: Check, device: str) -> None:
    check(device)


def rows(generator: torch.Generator, device: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=generator)).to(device, dtype)


# -- The reference has upstream's bits ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "neither"])
def test_layer_norm_is_torchs(affine: str, dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    x = rows(generator, device, dtype, 5, 200)
    w = None if affine == "neither" else rows(generator, device, dtype, 200)
    b = rows(generator, device, dtype, 200) if affine == "weight and bias" else None
    assert torch.equal(ops.layer_norm(x, w, b, kernel="reference"), F.layer_norm(x, (200,), w, b))


def test_layer_norm_of_16_bit_rows_with_fp32_parameters(device: str, generator: torch.Generator) -> None:
    x = rows(generator, device, torch.bfloat16, 5, 200)
    w, b = (rows(generator, device, torch.float32, 200) for _ in range(2))
    y = ops.layer_norm(x, w, b, kernel="reference")
    assert torch.equal(y, F.layer_norm(x.float(), (200,), w, b).bfloat16())


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("shape", [(64,), (4, 64)], ids=["hidden", "heads"])
def test_cohere_norm_is_upstreams(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    modeling = pytest.importorskip("transformers.models.cohere.modeling_cohere")
    norm = modeling.CohereLayerNorm(shape, eps=1e-5).to(device, dtype)
    with torch.no_grad():
        norm.weight.copy_(rows(generator, device, dtype, *shape))
    x = rows(generator, device, dtype, 3, 5, *shape)
    assert torch.equal(ops.cohere_norm(x, norm.weight, kernel="reference"), norm(x))
    ours = liger.nn.CohereNorm(shape, device=device, dtype=dtype)
    ours.load_state_dict(norm.state_dict())
    assert torch.equal(ours(x), ops.cohere_norm(x, norm.weight))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_l2norm_is_upstreams(dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    x = rows(generator, device, dtype, 3, 5, 64)
    assert torch.equal(ops.l2norm(x, cast="none", kernel="reference"), modeling.l2norm(x, dim=-1, eps=1e-6))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("cast", ["llama", "gemma"])
def test_fused_add_is_the_two_steps(cast: str, dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    x, residual = (rows(generator, device, dtype, 3, 5, 64).requires_grad_() for _ in range(2))
    w = rows(generator, device, dtype, 64)
    y, s = ops.fused_add_rms_norm(x, residual, w, cast=cast, kernel="reference")
    assert torch.equal(s, x + residual)
    assert torch.equal(y, ops.rms_norm(x + residual, w, cast=cast, kernel="reference"))


@pytest.mark.triton
@pytest.mark.parametrize("used", ["y", "s"])
def test_fused_add_with_one_result_unused(used: str, device: str, generator: torch.Generator) -> None:
    """A gradient that does not arrive counts as 0, whichever it is."""
    x, residual = (rows(generator, device, torch.float32, 3, 64).requires_grad_() for _ in range(2))
    w = rows(generator, device, torch.float32, 64).requires_grad_()
    found, expected = (
        torch.autograd.grad(
            ops.fused_add_rms_norm(x, residual, w, kernel=kernel)["ys".index(used)].square().sum(),
            (x, residual, w),
            materialize_grads=True,
        )
        for kernel in ("triton", "reference")
    )
    torch.testing.assert_close(found, expected)


NOTHING = {  # shapes of the arguments of rows without columns, and of no heads
    "rms_norm": ((3, 0), (0,), (0,)),
    "fused_add_rms_norm": ((3, 0), (3, 0), (0,)),
    "layer_norm": ((3, 0), (0,), (0,)),
    "cohere_norm": ((2, 0, 8), (0, 8)),
    "l2norm": ((3, 0),),
    "gated_rms_norm": ((3, 0), (3, 0), (0,)),
    "modulated_rms_norm": ((2, 3, 0), (2, 0), (2, 0), (0,)),
    "poly_norm": ((3, 0), (3,), (1,)),
    "dyt": ((3, 0), (1,), (0,), (0,)),
}


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("op", NOTHING)
def test_no_columns(op: str, kernel: str, device: str) -> None:
    inputs = [torch.ones(shape, device=device, requires_grad=True) for shape in NOTHING[op]]
    y = getattr(ops, op)(*inputs, kernel=kernel)
    for result in y if isinstance(y, tuple) else (y,):
        assert result.shape == NOTHING[op][0]
    grads = torch.autograd.grad(sum(t.sum() for t in (y if isinstance(y, tuple) else (y,))), inputs)
    assert [(g.shape, bool(g.any())) for g in grads] == [(t.shape, False) for t in inputs]


# -- Modules -----------------------------------------------------------------------------------------------------------
def test_modules(device: str, generator: torch.Generator) -> None:
    x, residual = (rows(generator, device, torch.float32, 2, 3, 16) for _ in range(2))
    norm = liger.nn.LayerNorm(16, eps=1e-3, device=device)
    assert isinstance(norm, torch.nn.LayerNorm) and torch.equal(
        norm(x), ops.layer_norm(x, norm.weight, norm.bias, eps=1e-3)
    )
    assert set(norm.state_dict()) == {"weight", "bias"}
    with pytest.raises(ValueError, match=r"normalized_shape is \(3, 16\), expected one dimension"):
        liger.nn.LayerNorm((3, 16))
    added = liger.nn.FusedAddRMSNorm(16, cast="gemma", offset=1.0, device=device)
    y, s = added(x, residual)
    assert torch.equal(s, x + residual) and torch.equal(y, ops.rms_norm(s, cast="gemma"))
    assert torch.equal(liger.nn.L2Norm(cast="none")(x), ops.l2norm(x, cast="none"))
    assert "cast='none'" in repr(liger.nn.L2Norm(cast="none")) and "(3, 16)" in repr(liger.nn.CohereNorm((3, 16)))
    with_bias = liger.nn.RMSNorm(16, bias=True, device=device)
    with torch.no_grad():
        with_bias.bias.fill_(2.0)
    assert torch.equal(with_bias(x), ops.rms_norm(x, with_bias.weight, with_bias.bias))


# -- Bad input ---------------------------------------------------------------------------------------------------------
X, W = torch.zeros(2, 8), torch.zeros(8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.layer_norm(X, W[:4]), ValueError, r"layer_norm: weight has shape \(4,\), expected \(8,\)"),
        (lambda: ops.layer_norm(X, W, W.long()), TypeError, "layer_norm: bias must be floating on cpu like x, got"),
        (lambda: ops.layer_norm(X, eps=-1.0), ValueError, "layer_norm: eps is -1.0, expected"),
        (lambda: ops.layer_norm(torch.zeros(())), TypeError, "layer_norm: x must be floating with at least one"),
        (lambda: ops.cohere_norm(X, None), TypeError, "cohere_norm: weight must be a tensor, got NoneType"),
        (lambda: ops.cohere_norm(X, W[:3]), ValueError, r"weight has shape \(3,\), expected \(8,\) or \(2, 8\)"),
        (lambda: ops.l2norm(X, cast="llama"), ValueError, "l2norm: cast is 'llama', expected one of fp32, none"),
        (lambda: ops.l2norm(X.long()), TypeError, "l2norm: x must be floating"),
        (
            lambda: ops.fused_add_rms_norm(X, X[:1], W),
            ValueError,
            r"residual has shape \(1, 8\), expected \(2, 8\), like x",
        ),
        (lambda: ops.fused_add_rms_norm(X, X, W, cast="x"), ValueError, "fused_add_rms_norm: cast is 'x'"),
        (lambda: ops.fused_add_rms_norm(X, X, W, offset="1"), TypeError, "offset must be a number, got str"),
        (lambda: ops.rms_norm(X, W, W[:4]), ValueError, r"rms_norm: bias has shape \(4,\), expected \(8,\)"),
    ],
)
def test_bad_input(call: Callable[[], torch.Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.triton
def test_wide_rows_with_a_weight_for_each_head(device: str) -> None:
    Case(kernel=find("cohere_norm/triton"), dtype="bfloat16", sizes={"R": 3, "H": 33001}, variant="heads").check(device)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS[:3])
@pytest.mark.parametrize("sizes", [{"R": 8192, "H": 4096}, {"R": 4099, "H": 5461}, {"R": 257, "H": 16384}])
def test_big(sizes: dict[str, int], op: str, device: str) -> None:
    Case(kernel=find(f"{op}/triton"), dtype="bfloat16", sizes=sizes).check(device)
