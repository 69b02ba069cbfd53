"""silu_mul, gelu_mul and silu_mul_clamped: the contract, all behaviours, upstream's bits, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import liger
from liger import ops
from liger.testing import Case, Check, assert_contract, checks
from liger.testing.cases import find

KERNELS = ("silu_mul/triton", "gelu_mul/triton", "silu_mul_clamped/triton")
UPSTREAM = {
    "silu": (ops.silu_mul, {}, F.silu),
    "tanh": (ops.gelu_mul, {"approximate": "tanh"}, lambda g: F.gelu(g, approximate="tanh")),
    "none": (ops.gelu_mul, {"approximate": "none"}, F.gelu),
}
PAIRS = {"silu_mul": ops.silu_mul, "gelu_mul": ops.gelu_mul, "silu_mul_clamped": ops.silu_mul_clamped}


@pytest.mark.parametrize("check", checks(*KERNELS))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("act", UPSTREAM)
def test_reference_has_upstream_bits_and_triton_nearly(
    act: str, dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    op, options, upstream = UPSTREAM[act]
    gate, up = (torch.randn(4, 8192, generator=generator).to(device, dtype) for _ in range(2))
    expected = upstream(gate) * up
    assert torch.equal(op(gate, up, **options, kernel="reference"), expected)
    if dtype == torch.float32:
        return
    got = op(gate, up, **options, kernel="triton")
    # neighbouring 16-bit floats of one sign have neighbouring bit patterns
    distance = (got.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
    assert float((distance != 0).float().mean()) <= 1e-3
    # Off by one ulp in act(gate), which the product can double across a power of two. In the tail of a GELU eager's
    # 1 + tanh cancels and ours does not: there the truth decides.
    far = distance > 2
    truth = upstream(gate.double()) * up.double()
    assert bool(((got.double() - truth).abs() <= (expected.double() - truth).abs())[far].all())


@pytest.mark.triton
@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    width=st.integers(1, 2100),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["plain", "packed", "transposed", "expanded"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    act=st.sampled_from(list(UPSTREAM)),
)
def test_any_shape(
    shape: tuple[int, ...], width: int, seed: int, kind: str, dtype: torch.dtype, act: str, device: str
) -> None:
    op, options, upstream = UPSTREAM[act]
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(*shape, 2 * width, generator=generator).to(device, dtype)
    gate, up = both.chunk(2, -1)
    if kind == "plain":
        gate, up = gate.contiguous(), up.contiguous()
    if kind == "transposed":
        gate, up = (t.transpose(0, -1).contiguous().transpose(0, -1) for t in (gate, up))
    if kind == "expanded":
        gate = gate[..., :1].expand(gate.shape)
    up = up.detach().requires_grad_(True)
    gate = gate.detach().requires_grad_(True)
    assert_contract(lambda g, u: op(g, u, **options, kernel="triton"), lambda g, u: upstream(g) * u, [gate, up])


@pytest.mark.triton
@pytest.mark.parametrize("act", UPSTREAM)
def test_packed_rows_are_not_copied(act: str, device: str) -> None:
    from liger.testing.memory import allocated

    op, options, _ = UPSTREAM[act]
    gate, up = torch.randn(8, 2 * 256, device=device).chunk(2, -1)
    assert allocated(lambda: op(gate, up, **options, kernel="triton")) == 8 * 256 * 4


@pytest.mark.parametrize("op", PAIRS.values())
def test_bad_input(op: Callable[..., torch.Tensor]) -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"up has shape \(2, 4\), expected \(2, 3\) like gate"):
        op(x, torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"gate must be floating, got torch.int64 \(2, 3\)"):
        op(x.long(), x)
    with pytest.raises(TypeError, match="up must be on cpu like gate, got meta"):
        op(x, x.to("meta"))
    with pytest.raises(TypeError, match="unexpected keyword"):
        op(x, x, approximation="tanh")


def test_bad_options() -> None:
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="approximate is 'sigmoid', expected one of tanh, none"):
        ops.gelu_mul(x, x, approximate="sigmoid")
    with pytest.raises(TypeError, match="silu_mul: gate_multiplier must be a number, got NoneType"):
        ops.silu_mul(x, x, gate_multiplier=None)
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"silu_mul_clamped: limit is {limit}, expected a number above 0"):
            ops.silu_mul_clamped(x, x, limit=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_multipliers_have_the_bits_of_falcon_h1(dtype: torch.dtype, generator: torch.Generator) -> None:
    falcon = pytest.importorskip("transformers.models.falcon_h1.modeling_falcon_h1", reason="compares with it")
    config = falcon.FalconH1Config(hidden_size=16, intermediate_size=64, mlp_multipliers=[0.7, 0.25])
    mlp = falcon.FalconH1MLP(config).to(dtype)
    x = torch.randn(5, 16, generator=generator).to(dtype)
    options = {"gate_multiplier": mlp.gate_multiplier, "kernel": "reference"}
    y = ops.silu_mul(mlp.gate_proj(x), mlp.up_proj(x), **options)
    assert torch.equal(mlp.down_proj(y) * mlp.down_multiplier, mlp(x))
    folded = ops.silu_mul(mlp.gate_proj(x), mlp.up_proj(x), **options, down_multiplier=mlp.down_multiplier)
    assert torch.equal(mlp.down_proj(folded), mlp(x))  # the multiplier is a power of two


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_clamped_has_upstream_bits(dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    gate, up = (4 * torch.randn(4, 8192, generator=generator).to(device, dtype) for _ in range(2))
    expected = ops.silu_mul_clamped(gate, up, kernel="reference")
    got = ops.silu_mul_clamped(gate, up, kernel="triton")
    assert float((got != expected).float().mean()) <= 1e-3


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_at_and_beyond_the_clamp(dtype: torch.dtype, device: str) -> None:
    at = torch.tensor([-8.0, -7.0, 1.0, 7.0, 8.0, math.inf, -math.inf, math.nan], device=device, dtype=dtype)
    values = {}
    for kernel in ("reference", "triton"):
        gate, up = at.clone().requires_grad_(), at.clone().requires_grad_()
        (dgate,) = torch.autograd.grad(ops.silu_mul_clamped(gate, torch.ones_like(at), kernel=kernel).sum(), gate)
        (dup,) = torch.autograd.grad(ops.silu_mul_clamped(torch.ones_like(at), up, kernel=kernel).sum(), up)
        values[kernel] = dgate, dup
    dgate, dup = values["triton"]
    assert (dup != 0).tolist() == [False, True, True, True, False, False, False, False]
    assert (dgate != 0).tolist()[3:6] == [True, False, False]
    for got, expected in zip(values["triton"], values["reference"], strict=True):
        finite = at.isfinite()
        torch.testing.assert_close(got[finite], expected[finite])


@pytest.mark.triton
@pytest.mark.parametrize("layout", ["", "gate_up", "interleaved"])
@pytest.mark.parametrize("act", ["silu", "tanh", "clamped"])
def test_backward_may_write_the_product(act: str, layout: str, device: str, generator: torch.Generator) -> None:
    from liger_kernels_act._gated_triton import launch_forward, write_backward

    numbers = (0.7, 1.3, 1.702, 1.5, 1.0)
    gate, up, dy = (torch.randn(3, 1030, generator=generator).to(device, torch.bfloat16) for _ in range(3))
    given = (torch.cat((gate, up), -1), None) if layout else (gate, up)
    before = [t.clone() for t in (dy, *given) if t is not None]
    bare = [None if t is None else torch.empty_like(t) for t in given]
    full = [None if t is None else torch.empty_like(t) for t in given]
    y = torch.empty_like(dy)
    write_backward(dy, *given, (*bare, None), layout, act, numbers)
    write_backward(dy, *given, (*full, y), layout, act, numbers)
    assert torch.equal(y, launch_forward(*given, layout, act, numbers))
    for one, other in zip([*bare, *before], [*full, *(t for t in (dy, *given) if t is not None)], strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.triton
def test_large_negative_gates_give_zero_not_nan(device: str) -> None:
    gate = torch.tensor([-1e4, -100.0, -30.0, 0.0, 30.0, 1e4], device=device, requires_grad=True)
    for op, options, _ in UPSTREAM.values():
        y = op(gate, torch.ones_like(gate), **options, kernel="triton")
        (slope,) = torch.autograd.grad(y.sum(), gate)
        assert y[0] == 0 and y[3] == 0 and y[5] == 1e4
        assert slope.tolist()[::5] == [0.0, 1.0]


@pytest.mark.triton
@pytest.mark.parametrize("op", ["silu_mul", "gelu_mul"])
def test_huge_gates_are_what_upstream_makes_of_them(op: str, device: str) -> None:
    gate = torch.tensor([3e13, -3e13, 3e38, -3e38, math.inf, math.nan], device=device)
    y = getattr(ops, op)(gate, torch.ones_like(gate), kernel="triton")
    torch.testing.assert_close(y[:5], gate[:5].relu())
    assert y[5].isnan()


@pytest.mark.triton
@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("silu_mul", {}),
        ("gelu_mul", {}),
        ("gelu_mul", {"approximate": "none"}),
        ("silu_mul_clamped", {"limit": math.inf, "up_offset": 0.0}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slopes_of_huge_gates_are_0_or_1(op: str, options: dict[str, float], dtype: torch.dtype, device: str) -> None:
    """Powers of the gate overflow, torch's own too; what they are multiplied with is 0."""
    sizes = torch.tensor([20.0, 300.0, 2e19, 3e13, 2.5e38, 3.3e38], device=device)
    gate = torch.cat((sizes, -sizes)).to(dtype).requires_grad_()
    (slope,) = torch.autograd.grad(
        getattr(ops, op)(gate, torch.ones_like(gate), **options, kernel="triton").sum(), gate
    )
    torch.testing.assert_close(slope, (gate > 0).to(dtype), rtol=0, atol=1e-7)


def test_modules(device: str) -> None:
    gate, up = torch.randn(2, 4, device=device), torch.randn(2, 4, device=device)
    assert torch.equal(liger.nn.SiLUMul()(gate, up), ops.silu_mul(gate, up))
    exact = liger.nn.GELUMul(approximate="none")
    assert torch.equal(exact(gate, up), ops.gelu_mul(gate, up, approximate="none"))
    assert "approximate='none'" in repr(exact)
    clamped = liger.nn.SiLUMulClamped(limit=0.5)
    assert torch.equal(clamped(gate, up), ops.silu_mul_clamped(gate, up, limit=0.5))
    scaled = liger.nn.SiLUMul(down_multiplier=0.5)
    assert torch.equal(scaled(gate, up), 0.5 * ops.silu_mul(gate, up))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", [{"R": 4096, "H": 14336}, {"R": 8191, "H": 5461}])
def test_big(kernel: str, sizes: dict[str, int], device: str) -> None:
    Case(kernel=find(kernel), dtype="bfloat16", sizes=sizes).check(device)


@pytest.mark.parametrize("op", PAIRS)
def test_second_derivative_of_the_reference(op: str) -> None:
    pair = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradgradcheck(lambda *t: getattr(ops, op)(*t, kernel="reference"), pair)


@pytest.mark.parametrize("op", PAIRS)
def test_arguments_that_are_no_tensors(op: str) -> None:
    with pytest.raises(TypeError, match=f"{op}: gate must be a tensor, got list"):
        getattr(ops, op)([1.0], torch.ones(1))
    with pytest.raises(TypeError, match=f"{op}: up must be a tensor, got NoneType"):
        getattr(ops, op)(torch.ones(1), None)
