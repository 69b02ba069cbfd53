"""cross_entropy and linear_cross_entropy against torch: what their options mean, and what must never happen."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import liger
from liger import ops
from liger.declare import load
from liger.registry import registry
from liger.testing import assert_contract, no_writes
from liger_kernels_loss.cross_entropy import cross_entropy_reference
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_reference
from liger_kernels_loss.plugin import DECLARED

LINEAR = ("reference", "torch", "triton")
PLAIN = ("reference", "triton")
BOTH = [("cross_entropy", k) for k in PLAIN] + [("linear_cross_entropy", k) for k in LINEAR]
FUSED = [pair for pair in BOTH if pair[1] != "reference"]
WITH_LABELS = [op.name for op in DECLARED if isinstance(op, liger.Op) and "ignore_index" in op.options]
EVERY_LABEL = [(k.op, k.name) for op in WITH_LABELS for k in registry().kernels(op) if k.name != "triton"]
MIXES: list[dict[str, Any]] = [
    {"label_smoothing": 0.2, "softcap": 3.0, "logit_scale": 1.7, "z_loss": 0.05},
    {"label_smoothing": 1.0, "logit_scale": -0.5, "reduction": "sum"},
    {"label_smoothing": 0.1, "z_loss": 0.1, "num_items": 11},
    {"softcap": 2.0, "z_loss": 0.01, "reduction": "none", "ignore_index": 3},
    {"label_smoothing": 0.1, "softcap": 50.0, "logit_scale": 0.25, "reduction": "none"},
]


def make(op: str, rows: int, classes: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Differentiable inputs of either op; the seed is the test's."""
    if op == "cross_entropy":
        return [torch.randn(rows, classes).to(device, dtype).requires_grad_()]
    shapes = ((rows, 16), (classes, 16))
    return [(torch.randn(*shape) / 2).to(device, dtype).requires_grad_() for shape in shapes]


def call(op: str, kernel: str) -> Callable[..., Tensor]:
    """The op as ``f(inputs, target, class_weight=None, **options)``."""

    def run(inputs: list[Tensor], target: Tensor, class_weight: Tensor | None = None, **options: Any) -> Tensor:
        tensors = (*inputs, target) if op == "cross_entropy" else (*inputs, target, None)
        return getattr(ops, op)(*tensors, class_weight, kernel=kernel, **options)  # type: ignore[no-any-return]

    return run


def gradients(loss: Tensor, inputs: list[Tensor], **kwargs: Any) -> list[Tensor]:
    """Gradients of the sum of the loss."""
    return list(torch.autograd.grad(loss.sum(), inputs, **kwargs))


def logits_of(inputs: list[Tensor]) -> Tensor:
    """Logits of either op's inputs, in float64."""
    wide = [t.double() for t in inputs]
    return wide[0] if len(wide) == 1 else wide[0] @ wide[1].t()


def close(a: Tensor, b: Tensor, tolerance: float = 2e-6) -> bool:
    """Relative Frobenius distance."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm()) <= tolerance * float(b.norm())


# -- Meaning -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mix", MIXES, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_options_together_with_class_weights_and_bias(
    op: str, kernel: str, dtype: torch.dtype, mix: dict[str, Any], device: str
) -> None:
    inputs: list[Tensor | None] = list(make(op, 9, 203, device, dtype))
    target = torch.randint(0, 203, (9,))
    target[2::3] = mix.get("ignore_index", -100)
    reference = cross_entropy_reference
    inputs.append(target.to(device))
    if op == "linear_cross_entropy":
        reference = linear_cross_entropy_reference
        inputs.append(torch.randn(203).to(device, dtype).requires_grad_())
    inputs.append((0.1 + torch.rand(203)).to(device))

    def fn(*tensors: Tensor | None, **options: Any) -> Tensor:
        return getattr(ops, op)(*tensors, kernel=kernel, **options)  # type: ignore[no-any-return]

    assert_contract(fn, reference, inputs, mix, reduction=203)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("op", "kernel"), BOTH)
def test_is_torchs_cross_entropy(
    op: str, kernel: str, reduction: str, weighted: bool, smoothing: float, device: str
) -> None:
    inputs, target = make(op, 12, 57, device), torch.randint(0, 57, (12,), device=device)
    target[::4] = -100
    weight = torch.rand(57, device=device) if weighted else None
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    wide = None if weight is None else weight.double()
    expected = F.cross_entropy(logits_of(inputs), target, wide, **options)
    got = call(op, kernel)(inputs, target, weight, **options)
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    assert close(got, expected)
    for a, b in zip(gradients(got, inputs), gradients(expected, inputs), strict=True):
        assert close(a, b)


@pytest.mark.parametrize(("op", "kernel"), BOTH)
def test_scale_softcap_and_z_loss_are_what_is_written(op: str, kernel: str, device: str) -> None:
    inputs, target = make(op, 6, 31, device), torch.randint(0, 31, (6,), device=device)
    z = 2.5 * torch.tanh(logits_of(inputs) * 1.5 / 2.5)
    expected = F.cross_entropy(z, target) + (0.2 * z.logsumexp(-1).square()).mean()
    got = call(op, kernel)(inputs, target, logit_scale=1.5, softcap=2.5, z_loss=0.2)
    assert close(got, expected)
    for a, b in zip(gradients(got, inputs), gradients(expected, inputs), strict=True):
        assert close(a, b)


@pytest.mark.parametrize(("op", "kernel"), BOTH)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_num_items_divides_the_sum(op: str, kernel: str, reduction: str, device: str) -> None:
    inputs, target = make(op, 7, 19, device), torch.randint(0, 19, (7,), device=device)
    target[0] = -100
    total = F.cross_entropy(logits_of(inputs), target, reduction="sum") / 13
    forms = (13, 13.0, torch.tensor(13), torch.tensor([13]), torch.tensor(13.0, device=device))
    for num_items in forms:
        got = call(op, kernel)(inputs, target, reduction=reduction, num_items=num_items)
        assert got.shape == ()
        assert close(got, total)
        for a, b in zip(gradients(got, inputs), gradients(total, inputs, retain_graph=True), strict=True):
            assert close(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loss_is_in_the_statistics_dtype(dtype: torch.dtype) -> None:
    for op, kernel in (("cross_entropy", "reference"), ("linear_cross_entropy", "torch")):
        loss = call(op, kernel)(make(op, 3, 5, "cpu", dtype), torch.tensor([0, 1, 2]))
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(("op", "kernel"), BOTH)
@pytest.mark.parametrize("integer", [torch.int32, torch.int16, torch.uint8])
def test_any_integer_labels(op: str, kernel: str, integer: torch.dtype, device: str) -> None:
    inputs, target = make(op, 5, 11, device), torch.randint(0, 11, (5,), device=device)
    assert torch.equal(call(op, kernel)(inputs, target.to(integer)), call(op, kernel)(inputs, target))


@pytest.mark.parametrize(("op", "kernel"), EVERY_LABEL)
def test_narrow_labels_are_compared_as_numbers(op: str, kernel: str) -> None:
    """156 is no ignored -100, though it is in eight bits, and 250 is below 1000, which is 232 there."""
    names = inspect.signature(load(registry().op(op).reference)).parameters
    wide, narrow, at = torch.randn(3, 1000), torch.randn(3, 4), torch.arange(6).view(3, 2)
    given = {
        "logits": wide,
        "student": wide,
        "teacher": torch.randn(3, 1000),
        "topk_logprobs": -1.0 - at,
        "topk_indices": at,
        **dict.fromkeys(("hidden", "student_hidden", "teacher_hidden"), narrow),
        **{f"{whose}weight": torch.randn(1000, 4) for whose in ("student_", "teacher_", "")},
        "check_labels": True,
        "hard_weight": 0.5,
        "reduction": "none",
        "group": "self",
    }
    if "logits" in names:
        del given["weight"]
    given = {name: value for name, value in given.items() if name in names}
    target = torch.tensor([5, 156, 250])
    fn = getattr(ops, op)
    found, expected = (fn(target=y, kernel=kernel, **given) for y in (target.to(torch.uint8), target))
    for a, b in zip(*((x,) if isinstance(x, Tensor) else x for x in (found, expected)), strict=True):
        assert torch.equal(a, b)
    assert (expected if isinstance(expected, Tensor) else expected[0]).all()


@pytest.mark.parametrize(("op", "kernel"), BOTH)
def test_numbers_of_numpy(op: str, kernel: str, device: str) -> None:
    inputs, target = make(op, 5, 11, device), torch.randint(0, 11, (5,), device=device)
    options = {"label_smoothing": 0.25, "softcap": 4.0, "logit_scale": 1.5, "temperature": 0.5, "z_loss": 0.125}
    options |= {"workspace_mb": 1.0} if op == "linear_cross_entropy" else {}
    found, expected = (
        call(op, kernel)(inputs, target, **{name: kind(value) for name, value in options.items()})
        for kind in (np.float32, float)
    )
    assert torch.equal(found, expected)


@pytest.mark.triton
@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    classes=st.integers(1, 2100),
    seed=st.integers(0, 2**31),
    layout=st.sampled_from(["plain", "transposed", "expanded", "sliced"]),
    pair=st.sampled_from(FUSED),
)
def test_any_shape(
    shape: tuple[int, ...], classes: int, seed: int, layout: str, pair: tuple[str, str], device: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    op, kernel = pair
    width = classes if op == "cross_entropy" else 5
    first = torch.randn(*shape, width, generator=generator).to(device)
    if layout == "transposed":
        first = first.movedim(-1, 0).contiguous().movedim(0, -1)
    elif layout == "expanded" and shape:
        first = first[:1].expand(first.shape)
    elif layout == "sliced":
        first = torch.cat([first, first], -1)[..., width:]
    inputs = [first.requires_grad_()]
    if op == "linear_cross_entropy":
        inputs.append(torch.randn(classes, width, generator=generator).to(device).requires_grad_())
    target = torch.randint(0, classes, shape, generator=generator).to(device)
    got = call(op, kernel)(inputs, target, reduction="none")
    z = logits_of(inputs)
    expected = F.cross_entropy(z.reshape(-1, classes), target.reshape(-1), reduction="none").view(shape)
    assert got.shape == shape
    assert torch.allclose(got.double(), expected, rtol=2e-5, atol=2e-6)
    upstream = torch.randn(shape, generator=generator).to(device)
    pairs = zip(gradients(got * upstream, inputs), gradients(expected * upstream, inputs), strict=True)
    assert all(torch.allclose(a.double(), b.double(), rtol=2e-5, atol=2e-5) for a, b in pairs)


# -- Degenerate and extreme rows ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "kernel"), BOTH)
@pytest.mark.parametrize("rows", [4, 0])
def test_c02_all_ignored_or_no_rows(op: str, kernel: str, rows: int, device: str) -> None:
    target = torch.full((rows,), -100, device=device)
    kept = torch.rand(9, device=device)
    for options, expected in (({}, math.nan), ({"reduction": "sum"}, 0.0), ({"num_items": 7}, 0.0)):
        for weight in (None, kept):
            inputs = make(op, rows, 9, device)
            loss = call(op, kernel)(inputs, target, weight, label_smoothing=0.1, z_loss=0.1, **options)
            assert float(loss) == expected or (math.isnan(expected) and math.isnan(float(loss)))
            assert all(g.shape == t.shape and not g.any() for g, t in zip(gradients(loss, inputs), inputs, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("op", "kernel"), BOTH)
def test_num_items_0_is_a_division_by_0(op: str, kernel: str, smoothing: float, device: str) -> None:
    """As upstream's ``cross_entropy(reduction="sum") / num_items``; nothing hides that a batch was counted wrongly."""
    for labels in ([-100, -100, -100], [1, -100, 4]):
        target = torch.tensor(labels, device=device)
        for zero in (0, 0.0, torch.tensor(0), torch.tensor(0, device=device)):
            inputs = make(op, 3, 9, device)
            loss = call(op, kernel)(inputs, target, label_smoothing=smoothing, num_items=zero)
            eager = F.cross_entropy(logits_of(inputs), target, reduction="sum", label_smoothing=smoothing) / zero_of(
                zero
            )
            assert torch.equal(loss.isnan(), eager.isnan()) and torch.equal(loss.isposinf(), eager.isposinf())
            got, expected = gradients(loss, inputs), gradients(eager, inputs)
            for a, b in zip(got, expected, strict=True):
                assert torch.equal(a.isfinite(), b.isfinite())
                assert not a[a.isfinite()].any() and not b[b.isfinite()].any()


def zero_of(zero: object) -> Tensor:
    """Python raises for a division by its own 0."""
    return zero if isinstance(zero, Tensor) else torch.tensor(zero)


@pytest.mark.parametrize("classes", [1, 97, 1025, 32769, 129919, 262147])
@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_c02_no_log_prob_above_0(op: str, kernel: str, classes: int, device: str) -> None:
    inputs = make(op, 3, classes, device)
    z = logits_of(inputs)
    target = z.argmax(-1)  # the largest log-prob there is
    loss = call(op, kernel)([inputs[0] * 30, *inputs[1:]], target, reduction="none")
    assert float((-loss).max()) <= 0
    assert torch.allclose(loss.double(), -(z * 30).log_softmax(-1).gather(-1, target[:, None])[:, 0], atol=1e-5)


@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_constant_logits_cost_log_v(op: str, kernel: str, device: str) -> None:
    for value in (0.0, 1e4, -1e4):
        inputs = make(op, 2, 1000, device)
        if op == "cross_entropy":
            inputs = [torch.full((2, 1000), value, device=device, requires_grad=True)]
        else:
            inputs = [torch.ones(2, 1, device=device) * value, torch.ones(1000, 1, device=device)]
            inputs = [t.requires_grad_() for t in inputs]
        loss = call(op, kernel)(inputs, torch.tensor([0, 999], device=device), label_smoothing=0.1)
        assert abs(float(loss) - math.log(1000)) < 1e-5


@pytest.mark.parametrize("kernel", PLAIN)
def test_masked_classes_and_broken_ignored_rows(kernel: str, device: str) -> None:
    logits = torch.randn(3, 70, device=device)
    logits[0, 10:60] = -math.inf  # a padded vocabulary
    logits[1] = math.nan  # an ignored row, whatever it holds
    logits[2, :40] = -math.inf
    target = torch.tensor([65, -100, 50], device=device)
    inputs = [logits.requires_grad_()]
    expected = F.cross_entropy(logits.double()[[0, 2]], target[[0, 2]], reduction="sum")
    loss = call("cross_entropy", kernel)(inputs, target, reduction="sum")
    assert close(loss, expected)
    (gradient,) = gradients(loss, inputs)
    if kernel == "triton":
        assert gradient.isfinite().all()
        assert not gradient[1].any()
        assert not gradient[0, 10:60].any()


@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_small_logits_under_a_large_softcap(op: str, kernel: str, device: str) -> None:
    """tanh(x) = 2 sigmoid(2x) - 1 would lose all digits here."""
    inputs = [t.detach().mul(1e-3).requires_grad_() for t in make(op, 4, 33, device)]
    target = torch.randint(0, 33, (4,), device=device)
    z = logits_of(inputs)
    expected = F.cross_entropy(1000 * torch.tanh(z / 1000), target)
    loss = call(op, kernel)(inputs, target, softcap=1000.0)
    pairs = zip(gradients(loss, inputs), gradients(expected, inputs), strict=True)
    assert all(close(a, b, 1e-6) for a, b in pairs)


@pytest.mark.triton
@pytest.mark.parametrize("x", [1e-6, 1e-3, 0.1, 0.5999, 0.6001, 1.0, 5.0, 20.0])
def test_softcap_curve(x: float, device: str) -> None:
    """Two classes, the loss of one gives its z back."""
    logits = torch.tensor([[x * 4, 0.0]], device=device)
    z = 4 * math.tanh(x)
    options: dict[str, Any] = {"softcap": 4.0, "reduction": "sum"}
    up, down = (
        float(ops.cross_entropy(logits, torch.tensor([y], device=device), kernel="triton", **options)) for y in (0, 1)
    )
    assert abs((down - up) - z) <= 3e-7 * (1 + abs(z))


@pytest.mark.triton
def test_rows_so_wide_that_a_team_shares_them(device: str) -> None:
    """With the settings that they have; test_shared_rows.py has all options."""
    rows, classes = 5, 196_612
    inputs = [t.requires_grad_() for t in (torch.randn(rows, 2, device=device), torch.randn(classes, 2, device=device))]
    target = torch.tensor([0, classes - 1, -100, 5, 17], device=device)
    kernel = functools.partial(ops.linear_cross_entropy, kernel="triton")
    assert_contract(kernel, linear_cross_entropy_reference, [*inputs, target], reduction=classes)


# -- The caller's memory and graph -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", PLAIN)
def test_c07_no_side_effects(kernel: str, device: str) -> None:
    dtype = torch.float64 if kernel == "reference" else torch.float32
    z = torch.randn(6, 9, dtype=dtype, device=device, requires_grad=True)
    target = torch.randint(0, 9, (6,), device=device)

    def losses(ce: Callable[..., Tensor], logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        return ce(p, target) + ce(p, target, reduction="sum") * 0.5  # two losses on one tensor

    with no_writes(z):
        got = losses(lambda *a, **o: ops.cross_entropy(*a, kernel=kernel, **o), z)
        (gradient,) = torch.autograd.grad(got, z)
    wide = z.detach().double().requires_grad_()
    expected = losses(F.cross_entropy, wide)
    assert close(got, expected)
    assert close(gradient, torch.autograd.grad(expected, wide)[0])
    with torch.no_grad():
        assert torch.equal(losses(lambda *a, **o: ops.cross_entropy(*a, kernel=kernel, **o), z), got)
    frozen = losses(lambda *a, **o: ops.cross_entropy(*a, kernel=kernel, **o), z.detach())
    assert torch.equal(frozen, got)
    assert not frozen.requires_grad


@pytest.mark.parametrize("kernel", LINEAR)
def test_c01_each_row_has_its_own_upstream_gradient(kernel: str, device: str) -> None:
    inputs = [torch.randn(12, 16, device=device), torch.randn(37, 16, device=device)]
    inputs = [t.requires_grad_() for t in inputs]
    target = torch.randint(0, 37, (12,), device=device)
    target[[0, 5]] = -100
    w = torch.rand(12, device=device)
    loss = call("linear_cross_entropy", kernel)(inputs, target, reduction="none")
    expected = F.cross_entropy(logits_of(inputs), target, reduction="none")
    assert not loss[[0, 5]].any()
    assert close(loss, expected)
    got, true = gradients(loss * w, inputs), gradients(expected * w, inputs)
    assert not got[0][[0, 5]].any()
    assert all(close(a, b) for a, b in zip(got, true, strict=True))


@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_a_second_backward_does_not_see_what_became_of_the_first(op: str, kernel: str, device: str) -> None:
    inputs, target = make(op, 6, 40, device), torch.randint(0, 40, (6,), device=device)
    loss = call(op, kernel)(inputs, target)
    first = gradients(loss, inputs, retain_graph=True)
    kept = [g.clone() for g in first]
    for gradient in first:
        gradient.fill_(1e9)  # an optimiser may do as it likes with what it was given
    for scale in (1.0, 0.3):
        again = gradients(loss * scale, inputs, retain_graph=True)
        assert all(close(a, k * scale, 1e-6) for a, k in zip(again, kept, strict=True))


@pytest.mark.parametrize(("op", "kernel"), FUSED)
@pytest.mark.parametrize("scale", [1.0, 0.3, 65536.0])
def test_upstream_scale(op: str, kernel: str, scale: float, device: str) -> None:
    """As a loss weight or a gradient scaler brings it; bf16 rounds twice where it is no power of two."""
    inputs, target = make(op, 16, 40, device, torch.bfloat16), torch.randint(0, 40, (16,), device=device)
    loss = call(op, kernel)(inputs, target)
    got = gradients(loss * scale, inputs)
    expected = gradients(F.cross_entropy(logits_of(inputs), target) * scale, inputs)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    expected = gradients(F.cross_entropy(logits_of(wide), target) * scale, wide)
    assert all(close(a, b, 5e-3) for a, b in zip(got, expected, strict=True))
    bias = [float((a.double() * b).sum() / b.square().sum()) - 1 for a, b in zip(got, expected, strict=True)]
    assert max(map(abs, bias)) < 1e-3  # a factor rounded to bf16 would shift everything by up to 4e-3


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_inside_checkpointing(op: str, kernel: str, reentrant: bool, device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    inputs, target = make(op, 6, 40, device), torch.randint(0, 40, (6,), device=device)

    def fn(*tensors: Tensor) -> Tensor:
        return call(op, kernel)([t * 1.0 for t in tensors], target)

    plain = torch.autograd.grad(fn(*inputs), inputs)
    loss = checkpoint(fn, *inputs, use_reentrant=reentrant)
    loss.backward()
    assert all(torch.equal(t.grad, g) for t, g in zip(inputs, plain, strict=True))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_second_derivative_is_refused(op: str, kernel: str, reduction: str, device: str) -> None:
    inputs, target = make(op, 3, 5, device), torch.zeros(3, dtype=torch.long, device=device)
    loss = call(op, kernel)(inputs, target, reduction=reduction).sum()
    with pytest.raises(RuntimeError, match=f"{op}: this kernel has no second derivative.*liger.prefer"):
        torch.autograd.grad(loss, inputs, create_graph=True)


@pytest.mark.parametrize("op", ["cross_entropy", "linear_cross_entropy"])
def test_second_derivative_of_the_reference(op: str) -> None:
    inputs = [t.detach().double().requires_grad_() for t in make(op, 3, 5, "cpu")]
    target = torch.tensor([1, -100, 4])
    options = {"softcap": 3.0, "label_smoothing": 0.1, "z_loss": 0.1}
    assert torch.autograd.gradgradcheck(lambda *t: call(op, "reference")(t, target, **options), inputs)


# -- Bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "kernel"), BOTH)
def test_labels_out_of_range(op: str, kernel: str, device: str) -> None:
    inputs, target = make(op, 4, 10, device), torch.tensor([1, 10, -100, -7], device=device)
    found = r"target has 2 of 4 labels outside \[0, 10\), the first is 10; expected .* ignore_index=-100"
    with pytest.raises(ValueError, match=f"{op}: {found}"):
        call(op, kernel)(inputs, target, check_labels=True)
    fine = torch.tensor([1, 9, -100, 0], device=device)
    checked, plain = (call(op, kernel)(inputs, fine, check_labels=check) for check in (True, False))
    assert torch.equal(checked, plain)
    if kernel == "triton":  # unchecked: loud, and nothing is read or written outside
        rows = call(op, kernel)(inputs, target, reduction="none")
        assert rows.isnan().tolist() == [False, True, False, True]
        assert all(g.isnan().any() for g in gradients(rows, inputs))


def _bad_calls() -> list[tuple[type[Exception], str, Callable[[], object]]]:
    z, h, w, y = torch.randn(4, 9), torch.randn(4, 3), torch.randn(9, 3), torch.zeros(4, dtype=torch.long)
    ce, lce = ops.cross_entropy, ops.linear_cross_entropy
    needs_gradient = torch.rand(9, requires_grad=True)
    return [
        (ValueError, r"reduction is 'avg', expected one of mean, sum, none", lambda: ce(z, y, reduction="avg")),
        (ValueError, r"label_smoothing is 1.5, expected a number in \[0, 1\]", lambda: ce(z, y, label_smoothing=1.5)),
        (ValueError, r"softcap is 0.0, expected None or a positive", lambda: ce(z, y, softcap=0.0)),
        (ValueError, r"logit_scale is 0.0, expected a finite number", lambda: ce(z, y, logit_scale=0.0)),
        (
            ValueError,
            r"num_items divides a sum, but reduction is 'none'",
            lambda: ce(z, y, reduction="none", num_items=3),
        ),
        (ValueError, r"num_items has shape \(2,\), expected one element", lambda: ce(z, y, num_items=torch.ones(2))),
        (ValueError, r"num_items is -1, expected", lambda: ce(z, y, num_items=-1)),
        (ValueError, r"target has shape \(3,\), expected \(4,\)", lambda: ce(z, y[:3])),
        (
            TypeError,
            r"integer class indices, or probabilities of shape \(4, 9\), got torch.float32",
            lambda: ce(z, y.float()),
        ),
        (TypeError, r"target is on meta, expected cpu", lambda: ce(z, y.to("meta"))),
        (TypeError, r"logits must be floating .* got torch.int64", lambda: ce(y[None], y)),
        (ValueError, r"logits have shape \(4, 0\), expected at least one class", lambda: ce(z[:, :0], y)),
        (ValueError, r"weight has shape \(8,\), expected \(9,\)", lambda: ce(z, y, torch.ones(8))),
        (
            TypeError,
            r"weight must be floating on cpu, got torch.int64",
            lambda: ce(z, y, torch.ones(9, dtype=torch.long)),
        ),
        (ValueError, r"weight requires a gradient", lambda: ce(z, y, needs_gradient)),
        (ValueError, r"class_weight has shape \(3,\), expected \(9,\)", lambda: lce(h, w, y, None, torch.ones(3))),
        (ValueError, r"weight has shape \(9, 2\), expected \(V, 3\)", lambda: lce(h, w[:, :2], y)),
        (ValueError, r"weight has shape \(0, 3\).*sharded parameter that was not gathered", lambda: lce(h, w[:0], y)),
        (ValueError, r"weight has shape \(0,\).*not gathered", lambda: lce(h, torch.empty(0), y)),
        (ValueError, r"bias has shape \(3,\), expected \(9,\)", lambda: lce(h, w, y, torch.ones(3))),
        (TypeError, r"weight is torch.float32 but hidden is torch.bfloat16", lambda: lce(h.bfloat16(), w, y)),
        (TypeError, r"bias is torch.float16 but hidden is torch.float32", lambda: lce(h, w, y, torch.ones(9).half())),
        (TypeError, r"weight must be floating on cpu .* got torch.float32 on meta", lambda: lce(h, w.to("meta"), y)),
        (
            ValueError,
            r"accum_dtype is 'float23', expected None or torch.float32",
            lambda: lce(h, w, y, accum_dtype="float23"),
        ),
        (ValueError, r"accum_dtype is torch.float16", lambda: lce(h, w, y, accum_dtype=torch.float16)),
        (ValueError, r"workspace_mb is 0, expected None or a positive", lambda: lce(h, w, y, workspace_mb=0)),
        (TypeError, r"num_items must be None, a number or a tensor .*got str", lambda: ce(z, y, num_items="3")),
        (TypeError, r"num_items must be .*got list", lambda: lce(h, w, y, num_items=[3])),
        (ValueError, r"num_items is nan, expected", lambda: ce(z, y, num_items=float("nan"))),
        (TypeError, r"ignore_index must be an int, got NoneType", lambda: ce(z, y, ignore_index=None)),
        (TypeError, r"label_smoothing must be a number, got str", lambda: ce(z, y, label_smoothing="0.1")),
        (TypeError, r"softcap must be None or a number, got list", lambda: ce(z, y, softcap=[3.0])),
        (TypeError, r"logit_scale must be a number, got NoneType", lambda: ce(z, y, logit_scale=None)),
        (TypeError, r"z_loss must be a number, got str", lambda: ce(z, y, z_loss="0")),
        (ValueError, r"z_loss is -0.1, expected a finite number", lambda: ce(z, y, z_loss=-0.1)),
        (ValueError, r"z_loss is nan, expected a finite number", lambda: lce(h, w, y, z_loss=float("nan"))),
        (TypeError, r"workspace_mb must be None or a number, got str", lambda: lce(h, w, y, workspace_mb="1")),
        (TypeError, r"workspace_mb must be None or a number, got list", lambda: lce(h, w, y, workspace_mb=[1])),
        (ValueError, r"workspace_mb is -1, expected", lambda: lce(h, w, y, workspace_mb=-1)),
        (ValueError, r"workspace_mb is nan, expected", lambda: lce(h, w, y, workspace_mb=float("nan"))),
        (TypeError, r"cross_entropy: logits must be a tensor, got list", lambda: ce([[1.0]], y)),
        (TypeError, r"cross_entropy: target must be a tensor, got NoneType", lambda: ce(z, None)),
        (TypeError, r"cross_entropy: weight must be a tensor, got float", lambda: ce(z, y, 1.0)),
        (TypeError, r"hidden must be a tensor, got NoneType", lambda: lce(None, w, y)),
        (TypeError, r"weight must be a tensor, got list", lambda: lce(h, [1.0], y)),
        (TypeError, r"target must be a tensor, got int", lambda: lce(h, w, 0)),
        (TypeError, r"bias must be a tensor, got float", lambda: lce(h, w, y, 0.5)),
        (TypeError, r"class_weight must be a tensor, got list", lambda: lce(h, w, y, None, [1.0])),
        (TypeError, r"unexpected keyword argument 'chunk'", lambda: lce(h, w, y, chunk=3)),
    ]


@pytest.mark.parametrize(("error", "message", "fn"), _bad_calls(), ids=lambda v: v if isinstance(v, str) else "")
def test_bad_input(error: type[Exception], message: str, fn: Callable[[], object]) -> None:
    with pytest.raises(error, match=message):
        fn()


# -- Modules -----------------------------------------------------------------------------------------------------------
def test_modules() -> None:
    z, h, w = torch.randn(4, 9), torch.randn(4, 3), torch.randn(9, 3)
    target, weight = torch.tensor([1, 0, 8, 0]), torch.rand(9)
    module = liger.nn.CrossEntropyLoss(weight, label_smoothing=0.1, ignore_index=0)
    assert repr(module) == "CrossEntropyLoss(label_smoothing=0.1, ignore_index=0)"
    assert torch.equal(module(z, target), ops.cross_entropy(z, target, weight, label_smoothing=0.1, ignore_index=0))
    assert torch.allclose(module(z, target, num_items=3), module(z, target) * weight[[1, 8]].sum() / 3)
    linear = liger.nn.LinearCrossEntropyLoss(softcap=2.0, reduction="none")
    assert torch.equal(linear(h, w, target), ops.linear_cross_entropy(h, w, target, softcap=2.0, reduction="none"))
    with pytest.raises(TypeError, match="'soft_cap' is not an option of linear_cross_entropy.*did you mean 'softcap'"):
        liger.nn.LinearCrossEntropyLoss(soft_cap=2.0)
