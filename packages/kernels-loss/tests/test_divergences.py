"""Losses between a student and a teacher: what their options mean, and what must never happen."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import liger
from liger import ops
from liger.declare import load
from liger.registry import registry
from liger.testing import assert_contract, no_writes

KERNELS = ("reference", "triton")
ROW_LOSSES = ("jsd", "tvd", "cosine_distance")
FORMS: dict[str, dict[str, Any]] = {  # each way that the gradient is computed
    "jsd": {"op": "jsd"},
    "forward": {"op": "jsd", "beta": 0.0},
    "reverse": {"op": "jsd", "beta": 1.0},
    "tvd": {"op": "tvd"},
    "cosine": {"op": "cosine_distance"},
}
MIXES: list[dict[str, Any]] = [
    {"beta": 0.0, "temperature": 2.0, "reduction": "sum"},
    {"beta": 1.0, "temperature": 0.7, "reduction": "none", "ignore_index": 3},
    {"beta": 0.2, "temperature": 3.0, "num_items": 11, "reduction": "sum"},
    {"beta": 0.9, "reduction": "none", "ignore_index": 3},
    {"beta": 0.3, "num_items": 5, "ignore_index": 3},
    {"temperature": 1.5, "reduction": "sum", "num_items": 2},
]
every_form = pytest.mark.parametrize("form", FORMS)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def call(form: str, kernel: str, **more: Any) -> Callable[..., Tensor]:
    """``f(student, teacher, target=None, **options)``."""
    options = {**FORMS[form], **more}
    op = options.pop("op")

    def run(*tensors: Tensor | None, **others: Any) -> Tensor:
        return getattr(ops, op)(*tensors, kernel=kernel, **{**options, **others})  # type: ignore[no-any-return]

    return run


def pair(rows: int, classes: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Student, to be differentiated, and teacher."""
    student, teacher = torch.randn(rows, classes), torch.randn(rows, classes) * 2
    return student.to(device, dtype).requires_grad_(), teacher.to(device, dtype)


def targets(rows: int, device: str, ignored: slice = slice(None, None, 3)) -> Tensor:
    """Class indices, of which some are -100."""
    out = torch.arange(rows)
    out[ignored] = -100
    return out.to(device)


def close(a: Tensor, b: Tensor, tolerance: float = 2e-6) -> bool:
    """Relative Frobenius distance."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm()) <= tolerance * float(b.norm())


def grad(loss: Tensor, student: Tensor, **kwargs: Any) -> Tensor:
    """Gradient of the sum of the loss."""
    return torch.autograd.grad(loss.sum(), student, **kwargs)[0]


# -- Meaning -----------------------------------------------------------------------------------------------------------
@pytest.mark.triton
@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ROW_LOSSES)
def test_options_together(op: str, dtype: torch.dtype, mix: dict[str, Any], device: str) -> None:
    known = registry().op(op).options
    options = {name: value for name, value in mix.items() if name in known}
    student, teacher = pair(9, 203, device, dtype)
    target = targets(9, device).masked_fill(torch.arange(9, device=device) % 3 == 0, options.get("ignore_index", -100))

    def fn(*tensors: Tensor | None, **given: Any) -> Tensor:
        return getattr(ops, op)(*tensors, kernel="triton", **given)  # type: ignore[no-any-return]

    reference = load(registry().op(op).reference)
    assert_contract(fn, reference, [student, teacher, target], options, reduction=203)


def mixture_of_logs(student: Tensor, teacher: Tensor, beta: float, temperature: float) -> Tensor:
    """The loss of each row as on-policy distillation states it, by torch's own kl_div, in float64."""
    q, p = ((t.double() / temperature).log_softmax(-1) for t in (student, teacher))
    if beta in (0.0, 1.0):
        a, b = ((q, p), (p, q))[int(beta)]
        return F.kl_div(a, b, reduction="none", log_target=True).sum(-1)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    kl = [F.kl_div(m, t, reduction="none", log_target=True).sum(-1) for t in (p, q)]
    return beta * kl[0] + (1 - beta) * kl[1]


@every_kernel
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_c17_the_mean_is_over_the_kept_rows(beta: float, kernel: str, device: str) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(8, 11) * 0.3, torch.randn(8, 11) * 3
    student[:5] *= 40  # loud, so that counting them shows
    student, teacher, target = student.to(device).requires_grad_(), teacher.to(device), torch.arange(8, device=device)
    target[:5] = -100
    rows = mixture_of_logs(student, teacher, beta, 2.0)
    loss = ops.jsd(student, teacher, target, beta=beta, temperature=2.0, kernel=kernel)
    assert close(loss, rows[5:].mean())
    gradient = grad(loss, student)
    assert close(gradient, grad(rows[5:].mean(), student))
    assert not gradient[:5].any()
    swapped = ops.jsd(teacher, student.detach(), target, beta=beta, temperature=2.0, kernel=kernel)
    others = [rows.mean(), rows[5:].sum() / 8, mixture_of_logs(student, teacher, beta, 1.0)[5:].mean()]
    assert all(abs(float(other) / float(loss) - 1) > 0.1 for other in (*others, *([swapped] if beta != 0.5 else [])))


@every_kernel
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_teachers_gradient_is_that_of_exchanged_roles(beta: float, kernel: str, device: str) -> None:
    student, teacher = pair(5, 37, device)
    teacher.requires_grad_()
    expected = torch.autograd.grad(mixture_of_logs(student, teacher, beta, 1.0).mean(), [student, teacher])
    first = ops.jsd(student, teacher.detach(), beta=beta, kernel=kernel)
    second = ops.jsd(teacher, student.detach(), beta=1.0 - beta, kernel=kernel)
    assert close(first, second)
    assert close(grad(first, student), expected[0])
    assert close(grad(second, teacher), expected[1])


@every_form
@every_kernel
def test_equal_rows_have_no_loss(kernel: str, form: str, device: str) -> None:
    student, teacher = pair(4, 61, device)[0], None
    teacher = student.detach().clone()
    loss = call(form, kernel)(student, teacher, reduction="none")
    assert loss.abs().max() < 1e-6
    assert grad(loss, student).abs().max() < 1e-6


@pytest.mark.triton
@pytest.mark.parametrize("beta", [0.3, 0.7])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_teacher_that_is_sure_where_the_student_is_not(dtype: torch.dtype, beta: float, device: str) -> None:
    """q * (log(q / m) - its mean) is nearly 0 for all other classes: no error of a logarithm may be left in it."""
    student, teacher = (torch.randn(9, 203, device=device) for _ in range(2))
    sure = torch.arange(9, device=device)
    teacher[sure, sure] = 20.0
    student[sure, sure] = -10.0 - torch.arange(9.0, device=device) / 4
    inputs = [student.to(dtype).requires_grad_(), teacher.to(dtype), None]
    reference = load(registry().op("jsd").reference)

    def fn(*tensors: Tensor | None, **given: Any) -> Tensor:
        return ops.jsd(*tensors, kernel="triton", **given)  # type: ignore[no-any-return]

    assert_contract(fn, reference, inputs, {"beta": beta, "reduction": "sum"}, reduction=203)


@every_kernel
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "batchmean", "sum", "none"])
@pytest.mark.filterwarnings("ignore:reduction")  # torch advises against "mean"
def test_kl_div_is_torchs(reduction: str, log_target: bool, kernel: str, device: str) -> None:
    student, teacher = pair(6, 5, device)
    x = student.log_softmax(-1).detach().view(3, 2, 5).requires_grad_()
    t = teacher.log_softmax(-1).view(3, 2, 5)
    t = t if log_target else t.exp().masked_fill(t < -3.0, 0.0)
    options: dict[str, Any] = {"reduction": reduction, "log_target": log_target}
    got = ops.kl_div(x, t, kernel=kernel, **options)
    wide = x.detach().double().requires_grad_()
    expected = F.kl_div(wide, t.double(), **options)
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    assert close(got, expected)
    assert close(grad(got, x), grad(expected, wide))
    one = ops.kl_div(x[0, 0, 0], t[0, 0, 0], kernel=kernel, **options)
    assert close(one, F.kl_div(x[0, 0, 0], t[0, 0, 0], **options))


@every_kernel
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["batchmean", "none"])
def test_reverse_kl_div_is_torchs_with_both_exchanged(
    reduction: str, log_target: bool, kernel: str, device: str
) -> None:
    student, teacher = pair(6, 5, device)
    x = student.log_softmax(-1).detach().requires_grad_()
    t = teacher.log_softmax(-1)
    got = ops.kl_div(
        x, t if log_target else t.exp(), reverse=True, log_target=log_target, reduction=reduction, kernel=kernel
    )
    wide = x.detach().double().requires_grad_()
    expected = F.kl_div(t.double(), wide, reduction=reduction, log_target=True)
    assert close(got, expected)
    assert close(grad(got, x), grad(expected, wide))


@every_kernel
def test_reverse_kl_div_at_the_edges(kernel: str, device: str) -> None:
    """No probability, no part; a target of 0 alone is infinitely far; sums end where the tensors do."""
    x = torch.tensor([-torch.inf, -torch.inf, -1.0, -1.0, -200.0], device=device).requires_grad_()
    t = torch.tensor([0.5, 0.0, 0.0, float("nan"), 0.5], device=device)
    found = ops.kl_div(x, t, reverse=True, reduction="none", kernel=kernel)
    assert found.tolist()[:3] == [0.0, 0.0, float("inf")]
    assert found[3].isnan()
    assert found[4] == 0.0
    assert grad(found, x).tolist()[:2] == [0.0, 0.0]
    few = torch.full((3,), -1.0, device=device)
    total = ops.kl_div(few, few.exp(), reverse=True, reduction="sum", kernel=kernel)
    assert abs(total.item()) < 1e-6


@every_kernel
def test_kl_div_at_the_edges_is_torchs(kernel: str, device: str) -> None:
    """Probabilities that are none, zeros, and infinite logarithms; sums of nothing."""
    t = torch.tensor([0.0, -0.1, float("nan"), 0.0, 1e-45, 3.0], device=device)
    x = torch.tensor([-1.0, -1.0, -1.0, -torch.inf, -1.0, -torch.inf], device=device)
    found = ops.kl_div(x, t, reduction="none", kernel=kernel)
    assert torch.allclose(found, F.kl_div(x, t, reduction="none"), equal_nan=True)
    t = torch.tensor([-torch.inf, 0.0, -200.0, float("nan")], device=device)
    found = ops.kl_div(x[:4], t, reduction="none", log_target=True, kernel=kernel)
    assert torch.allclose(found, F.kl_div(x[:4], t, reduction="none", log_target=True), equal_nan=True)
    for reduction in ("mean", "batchmean", "sum"):
        nothing = ops.kl_div(x[:0], t[:0], reduction=reduction, kernel=kernel)
        assert nothing.isnan() == (reduction != "sum")
        assert reduction != "sum" or nothing == 0


@pytest.mark.triton
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kl_div_options_together(dtype: torch.dtype, reduction: str, reverse: bool, device: str) -> None:
    x, t = (logits.detach().log_softmax(-1).to(device, dtype) for logits in pair(9, 203, device))
    reference = load(registry().op("kl_div").reference)
    options: dict[str, Any] = {"reduction": reduction, "log_target": True, "reverse": reverse}

    def fn(*tensors: Tensor | None, **given: Any) -> Tensor:
        return ops.kl_div(*tensors, kernel="triton", **given)  # type: ignore[no-any-return]

    assert_contract(fn, reference, [x.requires_grad_(), t], options, reduction=203)


@every_kernel
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_kl_div_of_log_probabilities_is_jsd_of_their_logits(beta: float, kernel: str, device: str) -> None:
    student, teacher = pair(5, 37, device)
    logs = student.detach().log_softmax(-1), teacher.log_softmax(-1)
    a, b = logs if beta == 0.0 else logs[::-1]
    long = ops.kl_div(a, b, reduction="batchmean", log_target=True, kernel=kernel)
    assert close(ops.jsd(student, teacher, beta=beta, kernel=kernel), long)


# -- Rows that are ignored, or absent ----------------------------------------------------------------------------------
@every_form
@every_kernel
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), -float("inf")])
def test_an_ignored_row_has_exactly_no_part(wrong: float, reduction: str, kernel: str, form: str, device: str) -> None:
    student, teacher = pair(6, 33, device)
    target = targets(6, device)
    fn = call(form, kernel, reduction=reduction)
    clean = fn(student, teacher, target)
    loud = student.detach().clone(), teacher.clone()
    for t in loud:
        t[::3] = wrong
    loud[0].requires_grad_()
    loss = fn(*loud, target)
    assert torch.equal(loss, clean)
    gradient = grad(loss, loud[0])
    assert torch.equal(gradient, grad(clean, student))
    assert not gradient[::3].any()


@every_form
@every_kernel
def test_no_row_is_kept_and_no_row(kernel: str, form: str, device: str) -> None:
    student, teacher = pair(3, 5, device)
    target = targets(3, device, slice(None))
    for reduction, isnan in (("mean", True), ("sum", False)):
        loss = call(form, kernel, reduction=reduction)(student, teacher, target)
        assert loss.isnan() if isnan else loss == 0
        assert not grad(loss, student).any()
        empty = call(form, kernel, reduction=reduction)(student[:0], teacher[:0], target[:0])
        assert empty.isnan() if isnan else empty == 0
        assert grad(empty, student).shape == student.shape
    assert call(form, kernel, reduction="none")(student[:0], teacher[:0]).shape == (0,)


@every_form
@every_kernel
def test_num_items(kernel: str, form: str, device: str) -> None:
    student, teacher = pair(5, 19, device)
    target = targets(5, device)
    total = call(form, kernel, reduction="sum")(student, teacher, target)
    for given in (4, 4.0, torch.tensor(4), torch.tensor([4.0], device=device)):
        for reduction in ("mean", "sum"):
            loss = call(form, kernel, reduction=reduction)(student, teacher, target, num_items=given)
            assert close(loss, total / 4, 1e-7)
            assert close(grad(loss, student, retain_graph=True), grad(total / 4, student, retain_graph=True), 2e-7)


# -- Range -------------------------------------------------------------------------------------------------------------
@every_form
@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_large_logits(dtype: torch.dtype, form: str, device: str) -> None:
    """One class at 60000 or all around it: exponentials and differences of such logits stay finite and right."""
    student, teacher = torch.randn(4, 65), torch.randn(4, 65)
    student[0, 3] = teacher[0, 3] = 6e4
    student[1] += 5e4
    teacher[1] -= 5e4
    student[2] *= 1e4
    teacher[2] = student[2]
    student, teacher = student.to(device, dtype).requires_grad_(), teacher.to(device, dtype)
    loss = call(form, "triton")(student, teacher, reduction="none")
    wide = student.detach().double().requires_grad_()
    truth = call(form, "reference")(wide, teacher.double(), reduction="none")
    assert close(loss, truth)
    eps = 2 * torch.finfo(dtype).eps + 4e-7
    assert close(grad(loss, student), grad(truth, wide), eps)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("form", "classes"),
    [("jsd", 262_147), ("forward", 129_919), ("reverse", 129_919), ("tvd", 129_919), ("cosine", 262_147)],
)
def test_wide_rows_of_odd_length(classes: int, form: str, device: str) -> None:
    student, teacher = pair(2, classes, device)
    target = torch.tensor([-100, 0], device=device)
    loss = call(form, "triton")(student, teacher, target)
    wide = student.detach().double().requires_grad_()
    truth = call(form, "reference")(wide, teacher.double(), target)
    assert close(loss, truth, 1e-5)
    assert close(grad(loss, student), grad(truth, wide), 1e-5)


@every_form
@every_kernel
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_wrong_in_a_kept_row_shows(which: int, wrong: float, kernel: str, form: str, device: str) -> None:
    student, teacher = pair(3, 40, device)
    with torch.no_grad():
        (student, teacher)[which][1, 39] = wrong
    loss = call(form, kernel)(student, teacher, reduction="none")
    assert loss.isnan().tolist() == [False, True, False]
    gradient = grad(loss, student)
    assert gradient[[0, 2]].isfinite().all()
    assert gradient[1].isnan().all() or (form, kernel) == ("tvd", "reference")  # torch's sign of nan is 0


@every_kernel
@pytest.mark.parametrize("form", ["jsd", "forward", "reverse"])
def test_classes_that_are_excluded(form: str, kernel: str, device: str) -> None:
    """A class of logit -inf in the teacher, in both, in the student alone."""
    student, teacher = pair(3, 24, device)
    with torch.no_grad():
        teacher[:2, 3] = student[1:, 3] = -torch.inf
    loss = call(form, kernel)(student, teacher, reduction="none")
    expected = {"jsd": [True, True, True], "forward": [True, True, False], "reverse": [False, True, True]}[form]
    assert loss.isfinite().tolist() == expected
    assert not loss.isnan().any()
    smaller = call(form, kernel)(*(t[1:2, [*range(3), *range(4, 24)]] for t in (student, teacher)), reduction="none")
    assert close(loss[1], smaller[0])
    gradient = grad(loss, student)
    assert gradient[expected].isfinite().all()
    assert gradient[1, 3] == 0


# -- The caller's memory and graph -------------------------------------------------------------------------------------
@every_form
@every_kernel
def test_two_losses_and_two_backwards_of_one_tensor(kernel: str, form: str, device: str) -> None:
    student, teacher = pair(4, 29, device)
    fn = call(form, kernel)
    with no_writes(student, teacher):
        loss = fn(student, teacher) + 0.5 * fn(student, teacher, reduction="sum")
        first = grad(loss, student, retain_graph=True)
        kept = first.clone()
        first.fill_(1e9)  # an optimiser may do as it likes with what it was given
        assert close(grad(0.3 * loss, student), 0.3 * kept, 1e-6)
    expected = call(form, "reference")(student.double(), teacher.double())
    assert close(kept, 3.0 * grad(expected, student), 1e-5)


@every_kernel
def test_rows_of_zeros_have_a_distance_of_1(kernel: str, device: str) -> None:
    student, teacher = torch.zeros(3, 8, device=device), torch.ones(3, 8, device=device)
    student[1], teacher[2] = 1.0, 0.0
    student.requires_grad_()
    loss = ops.cosine_distance(student, teacher, reduction="none", kernel=kernel)
    assert torch.allclose(loss, torch.tensor([1.0, 0.0, 1.0], device=device), atol=1e-6)
    gradient = grad(loss, student)
    assert torch.allclose(gradient[0], torch.full((8,), -1e8 / 8**0.5, device=device))
    assert gradient[2].eq(0).all()


@every_form
@pytest.mark.triton
def test_a_gradient_scaler_keeps_small_gradients_of_fp16(form: str, device: str) -> None:
    """Without its factor they are below the smallest fp16 number, 6e-8."""
    student, teacher = pair(4, 1000, device, torch.float16)
    loss = call(form, "triton")(student, teacher, num_items=64_000)
    truth = call(form, "reference")(student.double(), teacher.double(), num_items=64_000)
    got, expected = grad(65536.0 * loss, student), grad(65536.0 * truth, student)
    assert close(got, expected, 2e-3)


# -- Bad input ---------------------------------------------------------------------------------------------------------
def _bad_calls() -> list[tuple[type[Exception], str, Callable[[], object]]]:
    s, t, y = torch.randn(4, 9), torch.randn(4, 9), torch.zeros(4, dtype=torch.long)
    learning = torch.randn(4, 9, requires_grad=True)
    jsd, kl_div = ops.jsd, ops.kl_div
    return [
        (ValueError, r"jsd: beta is 1.5, expected a number in \[0, 1\]", lambda: jsd(s, t, beta=1.5)),
        (ValueError, r"jsd: beta is nan, expected", lambda: jsd(s, t, beta=float("nan"))),
        (TypeError, r"jsd: beta must be a number, got str", lambda: jsd(s, t, beta="0.5")),
        (ValueError, r"jsd: temperature is 0, expected a positive number", lambda: jsd(s, t, temperature=0)),
        (ValueError, r"jsd: temperature is inf, expected", lambda: jsd(s, t, temperature=float("inf"))),
        (TypeError, r"jsd: temperature must be a number, got NoneType", lambda: jsd(s, t, temperature=None)),
        (ValueError, r"reduction is 'avg', expected one of mean, sum, none", lambda: jsd(s, t, reduction="avg")),
        (ValueError, r"'batchmean', expected .*'mean' is over rows", lambda: jsd(s, t, reduction="batchmean")),
        (ValueError, r"num_items divides a sum, but", lambda: jsd(s, t, num_items=3, reduction="none")),
        (ValueError, r"num_items is -1, expected", lambda: jsd(s, t, num_items=-1)),
        (TypeError, r"ignore_index must be an int, got NoneType", lambda: jsd(s, t, y, ignore_index=None)),
        (ValueError, r"teacher has shape \(4, 8\), expected \(4, 9\) like student", lambda: jsd(s, t[:, :8])),
        (ValueError, r"teacher requires a gradient, .* pass teacher.detach\(\)", lambda: jsd(s, learning)),
        (ValueError, r"student has shape \(4, 0\), expected .* at least one class", lambda: jsd(s[:, :0], t[:, :0])),
        (ValueError, r"student has shape \(\), expected \(..., V\)", lambda: jsd(s[0, 0], t[0, 0])),
        (TypeError, r"student must be floating on cpu, got torch.int64", lambda: jsd(y, y)),
        (TypeError, r"teacher must be floating on cpu, got torch.float32 on meta", lambda: jsd(s, t.to("meta"))),
        (TypeError, r"student must be a tensor, got list", lambda: jsd([1.0], t)),
        (TypeError, r"teacher must be a tensor, got NoneType", lambda: jsd(s, None)),
        (TypeError, r"target must be a tensor, got int", lambda: jsd(s, t, 0)),
        (ValueError, r"target has shape \(3,\), expected \(4,\)", lambda: jsd(s, t, y[:3])),
        (TypeError, r"target must hold integer class indices, got torch.float32", lambda: jsd(s, t, y.float())),
        (ValueError, r"tvd: temperature is -1, expected a positive number", lambda: ops.tvd(s, t, temperature=-1)),
        (TypeError, r"cosine_distance: teacher must be a tensor, got int", lambda: ops.cosine_distance(s, 0)),
        (ValueError, r"kl_div: reduction is 'avg', expected one of mean, batch", lambda: kl_div(s, t, reduction="avg")),
        (TypeError, r"kl_div: log_target must be a bool, got int", lambda: kl_div(s, t, log_target=1)),
        (TypeError, r"kl_div: reverse must be a bool, got str", lambda: kl_div(s, t, reverse="yes")),
        (ValueError, r"kl_div: target has shape \(9,\), expected \(4, 9\) like input", lambda: kl_div(s, t[0])),
        (ValueError, r"kl_div: target requires a gradient, which", lambda: kl_div(s, learning)),
        (TypeError, r"kl_div: input must be floating on cpu, got torch.int64", lambda: kl_div(y, s)),
    ]


@pytest.mark.parametrize(("error", "message", "fn"), _bad_calls(), ids=lambda v: v if isinstance(v, str) else "")
def test_bad_input(error: type[Exception], message: str, fn: Callable[[], object]) -> None:
    with pytest.raises(error, match=message):
        fn()


def test_a_teacher_may_require_a_gradient_where_none_is_recorded() -> None:
    student, teacher = pair(2, 3, "cpu")
    with torch.no_grad():
        assert torch.equal(ops.jsd(student, teacher.requires_grad_()), ops.jsd(student, teacher.detach()))


# -- Modules and examples ----------------------------------------------------------------------------------------------
def test_modules() -> None:
    student, teacher = pair(4, 9, "cpu")
    target = torch.tensor([1, 0, 8, 0])
    module = liger.nn.JSDLoss(beta=0.1, temperature=2.0, ignore_index=0)
    assert repr(module) == "JSDLoss(beta=0.1, temperature=2.0, ignore_index=0)"
    expected = ops.jsd(student, teacher, target, beta=0.1, temperature=2.0, ignore_index=0)
    assert torch.equal(module(student, teacher, target), expected)
    assert torch.allclose(module(student, teacher, target, num_items=4), expected / 2)
    assert torch.equal(liger.nn.TVDLoss(temperature=2.0)(student, teacher), ops.tvd(student, teacher, temperature=2.0))
    assert torch.equal(liger.nn.CosineDistanceLoss()(student, teacher), ops.cosine_distance(student, teacher))
    kl_div = liger.nn.KLDivLoss(log_target=True, reduction="sum")
    assert repr(kl_div) == "KLDivLoss(log_target=True, reduction='sum')"
    assert torch.equal(kl_div(student, teacher), ops.kl_div(student, teacher, log_target=True, reduction="sum"))
    with pytest.raises(TypeError, match="'betta' is not an option of jsd.*did you mean 'beta'"):
        liger.nn.JSDLoss(betta=0.1)


@pytest.mark.parametrize("op", [*ROW_LOSSES, "kl_div"])
def test_example(op: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(load(registry().op(op).public), op, globs={})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 1
    assert result.failed == 0


def test_few_programs_scale_all_of_a_gradient(device: str) -> None:
    from liger.launch import ASSUMED, assume
    from liger_kernels_loss._scale_triton import scaled

    x, dy = torch.randn(50_000, device=device), torch.tensor(3.0, device=device)
    with assume(ASSUMED._replace(processors=1)):
        assert torch.equal(scaled(x, dy, False), 3.0 * x)
        expected = 3.0 * x
        assert torch.equal(scaled(x, dy, True), expected)
