"""rope: the contract, all behaviours, upstream's bits, memory layout, bad input."""

from __future__ import annotations

import functools

import pytest
import torch

from liger import ops
from liger.declare import load
from liger.errors import ContractViolation
from liger.registry import registry
from liger.testing import Case, Check, assert_contract, checks
from liger.testing.cases import find
from liger_kernels_rope.rope import rope_inputs, rope_reference


def upstream(q, k, cos, sin, unsqueeze_dim=1):  # type: ignore[no-untyped-def]
    """As the formula stands in upstream's modelling files, written from it."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turn(x):  # type: ignore[no-untyped-def]
        middle = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., middle:], x[..., :middle]), dim=-1) * sin

    return turn(q), turn(k)


@pytest.mark.parametrize("check", checks("rope/triton"))
def test_kernel(check: Check, device: str) -> None:
    check(device)


@pytest.mark.parametrize("kernel", ["reference", "triton"])
@pytest.mark.parametrize("variant", ["", "per row", "fp32 cos", "heads last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_upstream_bits_forward_and_backward(
    kernel: str, variant: str, dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    sizes = {"T": 7, "B": 2, "NQ": 6, "NK": 2, "D": 64}
    inputs, options = rope_inputs(device, dtype, **sizes, generator=generator, variant=variant)
    ours, theirs = ops.rope(*inputs, **options, kernel=kernel), upstream(*inputs, **options)
    seeds = [torch.randn(y.shape, generator=generator).to(y) for y in theirs]
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == expected.dtype and torch.equal(got, expected)
    expected_gradients = torch.autograd.grad(theirs, inputs[:2], seeds)
    for got, expected in zip(torch.autograd.grad(ours, inputs[:2], seeds), expected_gradients, strict=True):
        assert torch.equal(got, expected)


def test_matches_transformers(device: str, generator: torch.Generator) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    sizes = {"T": 5, "B": 2, "NQ": 4, "NK": 2, "D": 32}
    inputs, _ = rope_inputs(device, torch.bfloat16, **sizes, generator=generator)
    for kernel in ("reference", "triton"):
        for got, expected in zip(ops.rope(*inputs, kernel=kernel), modeling.apply_rotary_pos_emb(*inputs), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.triton
@pytest.mark.parametrize("kernel", ["rope/triton", "qk_norm_rope/triton"])
def test_heads_that_several_programs_share(kernel: str, device: str) -> None:
    """9 + 3 heads of 512 columns are more than a program takes."""
    sizes = {"T": 2, "B": 2, "NQ": 9, "NK": 3, "D": 512}
    Case(kernel=find(kernel), dtype="bfloat16", sizes=sizes).check(device)


# -- Reproductions of faults in other tools ----------------------------------------------------------------------------
@pytest.mark.triton
def test_one_key_head_is_rotated(device: str, generator: torch.Generator) -> None:
    """A10: with a single key head k came back untouched."""
    inputs, _ = rope_inputs(device, torch.float32, T=5, B=2, NQ=4, NK=1, D=16, generator=generator)
    _, k = ops.rope(*inputs, kernel="triton")
    torch.testing.assert_close(k, upstream(*inputs)[1])
    assert not torch.equal(k[:, :, 1:], inputs[1][:, :, 1:])


@pytest.mark.triton
def test_each_row_has_its_own_angles(device: str, generator: torch.Generator) -> None:
    """A11: from batch row 2 on the first row's cos and sin were used."""
    inputs, _ = rope_inputs(device, torch.float32, T=5, B=3, NQ=4, NK=2, D=16, generator=generator, variant="per row")
    q, _ = ops.rope(*inputs, kernel="triton")
    for row in range(3):
        alone, _ = ops.rope(*(t[row : row + 1] for t in inputs), kernel="triton")
        assert torch.equal(q[row : row + 1], alone)
    q_first, k, cos, sin = inputs
    assert not torch.equal(q[1:], ops.rope(q_first, k, cos[:1], sin[:1], kernel="triton")[0][1:])


@pytest.mark.triton
def test_partial_width_passes_the_rest_through(device: str, generator: torch.Generator) -> None:
    """B9: head 16, rotary 4."""
    q, k, _, _ = rope_inputs(device, torch.float32, T=5, B=2, NQ=4, NK=2, D=16, generator=generator)[0]
    angle = torch.rand(1, 5, 4, generator=generator).to(device)
    got = ops.rope(q, k, angle.cos(), angle.sin(), kernel="triton")
    for x, y, turned in zip((q, k), got, upstream(q[..., :4], k[..., :4], angle.cos(), angle.sin()), strict=True):
        assert torch.equal(y[..., 4:], x[..., 4:])
        torch.testing.assert_close(y[..., :4], turned)


@pytest.mark.triton
@pytest.mark.parametrize("variant", ["", "heads last"])
def test_results_and_gradients_keep_the_memory_layout(variant: str, device: str, generator: torch.Generator) -> None:
    """Q6: gradients of a transposed q came back in a layout that made accumulation slow."""
    sizes = {"T": 5, "B": 2, "NQ": 4, "NK": 2, "D": 16}
    inputs, options = rope_inputs(device, torch.bfloat16, **sizes, generator=generator, variant=variant)
    outputs = ops.rope(*inputs, **options, kernel="triton")
    # whatever attention returns: here gradients that are contiguous as (B, N, T, D)
    seeds = [torch.ones(y.shape, dtype=y.dtype, device=device) for y in outputs]
    gradients = torch.autograd.grad(outputs, inputs[:2], seeds)
    for x, y, dx in zip(inputs, outputs, gradients, strict=False):
        assert x.stride() == y.stride() == dx.stride()


@pytest.mark.triton
def test_tables_get_gradients_if_they_require_them(device: str, generator: torch.Generator) -> None:
    for variant in ("", "per row", "partial"):
        sizes = {"T": 5, "B": 2, "NQ": 4, "NK": 2, "D": 16}
        inputs, _ = rope_inputs(device, torch.float32, **sizes, generator=generator, variant=variant)
        for t in inputs[2:]:
            t.requires_grad_()
        # a sum over heads and, if shared, the batch: in another order than eager's
        assert_contract(lambda *a: ops.rope(*a, kernel="triton"), rope_reference, inputs, reduction=12)


@pytest.mark.triton
def test_only_one_output_used(device: str, generator: torch.Generator) -> None:
    inputs, _ = rope_inputs(device, torch.float32, T=3, B=1, NQ=2, NK=2, D=8, generator=generator)
    q, _ = ops.rope(*inputs, kernel="triton")
    q.sum().backward()
    assert inputs[0].grad is not None and inputs[1].grad is None


@pytest.mark.triton
@pytest.mark.parametrize("none", ["NQ", "NK", "T", "B"])
@pytest.mark.parametrize("name", ["rope", "mrope", "rope_complex", "qk_norm_rope"])
def test_no_heads_tokens_or_samples(name: str, none: str, device: str, generator: torch.Generator) -> None:
    op = registry().op(name)
    sizes = {size: values[-1] for size, values in op.sizes.items()} | {none: 0}
    inputs, options = load(op.inputs)(device, torch.float32, **sizes, generator=generator)
    fn = functools.partial(getattr(ops, name), kernel="triton")
    assert_contract(fn, load(op.reference), inputs, options, reduction=256)


@pytest.mark.triton
def test_heads_axis_changes_the_result(device: str, generator: torch.Generator) -> None:
    q, k, cos, sin = rope_inputs(device, torch.float32, T=4, B=2, NQ=4, NK=4, D=8, generator=generator)[0]
    one, two = (ops.rope(q, k, cos, sin, unsqueeze_dim=dim, kernel="triton")[0] for dim in (1, 2))
    assert not torch.equal(one, two)


def test_a_forward_rotation_used_as_the_gradient_is_found(device: str, generator: torch.Generator) -> None:
    """The halves of cos and sin differ in these inputs, otherwise rotating backwards by -sin would pass."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, cos, sin):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(cos, sin)
            return rope_reference(q, k, cos, sin)

        @staticmethod
        def backward(ctx, dq, dk):  # type: ignore[no-untyped-def]
            cos, sin = ctx.saved_tensors
            return *rope_reference(dq, dk, cos, -sin), None, None

    inputs, _ = rope_inputs(device, torch.float32, T=3, B=1, NQ=2, NK=2, D=8, generator=generator)
    with pytest.raises(ContractViolation, match="gradient of q"):
        assert_contract(Wrong.apply, rope_reference, inputs)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": (2, 1, 6, 8)}, ValueError, r"k has shape \(2, 1, 6, 8\), expected \(2, 'Nk', 5, 8\) to match q"),
        ({"q": (5, 8)}, ValueError, r"q has shape \(5, 8\), expected 3 or 4 dimensions"),
        ({"k": (2, 5, 8)}, ValueError, r"k has shape \(2, 5, 8\), expected 4 dimensions, as q has"),
        ({"cos": (5, 8)}, ValueError, r"cos has shape \(5, 8\), expected 3 dimensions"),
        (
            {"cos": (3, 5, 8), "sin": (3, 5, 8)},
            ValueError,
            r"cos has shape \(3, 5, 8\), expected \(1 or 2, 5, columns\)",
        ),
        ({"cos": (1, 5, 5)}, ValueError, "cos has 5 columns, expected an even number of at most 8"),
        ({"cos": (1, 5, 10)}, ValueError, "cos has 10 columns"),
        ({"sin": (1, 5, 6)}, ValueError, r"sin has shape \(1, 5, 6\), expected \(1, 5, 8\) like cos"),
    ],
)
def test_bad_shapes(change: dict[str, tuple[int, ...]], error: type[Exception], message: str) -> None:
    shapes = {"q": (2, 3, 5, 8), "k": (2, 1, 5, 8), "cos": (1, 5, 8), "sin": (1, 5, 8), **change}
    with pytest.raises(error, match=message):
        ops.rope(*(torch.zeros(shape) for shape in shapes.values()))


def test_bad_types() -> None:
    q, cos = torch.zeros(2, 3, 5, 8), torch.zeros(1, 5, 8)
    with pytest.raises(TypeError, match="cos must be floating on cpu like q, got torch.int64 on cpu"):
        ops.rope(q, q, cos.long(), cos)
    with pytest.raises(TypeError, match="k must be floating on cpu like q, got torch.float32 on meta"):
        ops.rope(q, q.to("meta"), cos, cos)
    with pytest.raises(TypeError, match="sin has dtype torch.bfloat16, expected torch.float32 like cos"):
        ops.rope(q, q, cos, cos.bfloat16())
    with pytest.raises(ValueError, match="unsqueeze_dim is 3, expected 1 or 2 with 4 dimensions of q"):
        ops.rope(q, q, cos, cos, unsqueeze_dim=3)
    with pytest.raises(ValueError, match="unsqueeze_dim is 2, expected 0 or 1 with 3 dimensions of q"):
        ops.rope(q[0], q[0], cos[0], cos[0], unsqueeze_dim=2)
    with pytest.raises(ValueError, match="cos has 8 columns, expected at most 4"):
        ops.rope(q, q, cos, cos, tables="pair")


@pytest.mark.parametrize("option", ["layout", "tables", "cast"])
def test_unknown_values_of_options(option: str) -> None:
    q, cos = torch.zeros(2, 3, 5, 8), torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match=f"rope: {option} is 'float', expected one of"):
        ops.rope(q, q, cos, cos, **{option: "float"})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes", [{"T": 4096, "B": 2, "NQ": 32, "NK": 8, "D": 128}, {"T": 1023, "B": 3, "NQ": 10, "NK": 1, "D": 80}]
)
def test_big(sizes: dict[str, int], device: str) -> None:
    Case(kernel=find("rope/triton"), dtype="bfloat16", sizes=sizes).check(device)


def _small(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    shapes = ((1, 2, 3, 4), (1, 1, 3, 4), (1, 3, 4), (1, 3, 4))
    return [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]


@pytest.mark.triton
def test_second_derivative_is_refused(device: str) -> None:
    """The op is linear, so only an output gradient that is differentiated itself would miss something."""
    inputs = _small(torch.float32, device)
    outputs = ops.rope(*inputs, kernel="triton")
    seeds = [torch.ones_like(y, requires_grad=True) for y in outputs]
    with pytest.raises(RuntimeError, match="rope: this kernel has no second derivative"):
        torch.autograd.grad(outputs, inputs[:2], seeds, create_graph=True)


def test_second_derivative_of_the_reference() -> None:
    inputs = _small(torch.float64, "cpu")
    assert torch.autograd.gradgradcheck(lambda *t: ops.rope(*t, kernel="reference"), inputs)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("value", [None, [1.0], 2])
def test_arguments_that_are_no_tensors(at: int, value: object) -> None:
    inputs: list[object] = [*_small(torch.float32, "cpu")]
    inputs[at] = value
    name = ("q", "k", "cos", "sin")[at]
    with pytest.raises(TypeError, match=f"rope: {name} must be a tensor, got {type(value).__name__}"):
        ops.rope(*inputs)
