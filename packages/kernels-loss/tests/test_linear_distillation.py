"""linear_jsd, linear_kl and linear_topk_kl: against torch's own losses in float64; memory, chunks, compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import liger
from liger import ops
from liger.testing import check_compile, no_sync, opcheck

CHUNKED = ("torch", "triton")
every_kernel = pytest.mark.parametrize("kernel", ["reference", *CHUNKED])
each_chunked = pytest.mark.parametrize("kernel", CHUNKED)
SMALL = 2e-3  # MiB: some rows of 57 classes


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that an operation makes, and whether one has a shape; views and ``out=`` excepted."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in (*args, *(kwargs or {}).values()) if isinstance(t, Tensor)}
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, t.nbytes)
                self.shapes.add(tuple(t.shape))
        return out


class Heads:
    """Two heads with biases, labels of which every third is -100, and the teacher's k most likely classes."""

    def __init__(self, rows: int, classes: int, device: str, dtype: torch.dtype = torch.float32, k: int = 5) -> None:
        shapes = ((rows, 16), (classes, 16), (classes,), (rows, 24), (classes, 24), (classes,))
        made = [(torch.randn(*shape) / 2).to(device, dtype) for shape in shapes]
        self.leaves = tuple(t.requires_grad_() for t in made[:3])
        self.teacher = tuple(made[3:])
        self.target = torch.randint(0, classes, (rows,), device=device)
        self.target[::3] = -100
        self.logits = F.linear(*self.wide(self.teacher))
        self.topk = self.logits.log_softmax(-1).topk(k)

    @staticmethod
    def wide(head: Sequence[Tensor]) -> list[Tensor]:
        return [t.detach().double() for t in head]

    def jsd(self, op: str = "linear_jsd", **options: Any) -> Tensor:
        """The op under test; ``target=None`` leaves the target out."""
        hidden, weight, bias = self.leaves
        target = options.pop("target", self.target)
        tensors = (hidden, weight, *self.teacher[:2], target, bias, self.teacher[2])
        return getattr(ops, op)(*tensors, **options)  # type: ignore[no-any-return]

    def top(self, **options: Any) -> Tensor:
        """linear_topk_kl."""
        hidden, weight, bias = self.leaves
        target = options.pop("target", self.target)
        known = self.topk.values.to(hidden.dtype if hidden.dtype == torch.float64 else torch.float32)
        return ops.linear_topk_kl(hidden, weight, known, self.topk.indices, target, bias, **options)  # type: ignore[no-any-return]

    def check(self, loss: Tensor, rows: Callable[[Tensor], Tensor], tolerance: float, reduction: str = "mean") -> None:
        """The loss and all gradients against ``rows(student logits)``, the losses of all rows in float64."""
        wide = [t.requires_grad_() for t in self.wide(self.leaves)]
        kept = rows(F.linear(*wide)) * (self.target != -100)
        truth = {"none": kept, "sum": kept.sum(), "mean": kept.sum() / (self.target != -100).sum()}[reduction]
        dy = torch.randn(truth.shape, dtype=torch.float64, device=truth.device) if truth.dim() else truth.new_ones(())
        assert loss.dtype == (torch.float64 if self.leaves[0].dtype == torch.float64 else torch.float32)
        assert close(loss, truth, tolerance)
        found = torch.autograd.grad(loss, self.leaves, dy.to(loss.dtype))
        for a, b in zip(found, torch.autograd.grad(truth, wide, dy), strict=True):
            assert close(a, b, tolerance)


def close(a: Tensor, b: Tensor, tolerance: float = 3e-6) -> bool:
    """Relative Frobenius distance."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm()) <= tolerance * float(b.norm())


def divergence(z: Tensor, t: Tensor, beta: float, temperature: float) -> Tensor:
    """(n,), of logits, by torch's own kl_div."""
    logs = [(x / temperature).log_softmax(-1) for x in (z, t)]
    if beta in (0.0, 1.0):
        q, p = logs if beta == 0.0 else logs[::-1]
        return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    q, p = logs
    m = ((1 - beta) * q.exp() + beta * p.exp()).log()
    each = [F.kl_div(m, x, reduction="none", log_target=True).sum(-1) for x in (p, q)]
    return beta * each[0] + (1 - beta) * each[1]


def known_part(z: Tensor, heads: Heads, tail: str, temperature: float) -> Tensor:
    """(n,): forward KL over the teacher's k classes, and over the rest as one class."""
    q, (log_p, at) = (z / temperature).softmax(-1), heads.topk
    loss = (log_p.exp() * (log_p - q.gather(-1, at).log())).sum(-1)
    if tail == "ignore":
        return loss
    rest_p = 1 - log_p.exp().sum(-1)
    return loss + rest_p * (rest_p.log() - q.scatter(-1, at, 0.0).sum(-1).log())


# -- Meaning -----------------------------------------------------------------------------------------------------------
@every_kernel
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_jsd_is_the_divergence_of_the_logits(beta: float, reduction: str, kernel: str, device: str) -> None:
    heads = Heads(9, 57, device)
    for hard_weight, temperature in ((0.0, 1.0), (0.3, 2.0)):
        options = {"beta": beta, "temperature": temperature, "hard_weight": hard_weight, "reduction": reduction}
        loss = heads.jsd(**options, workspace_mb=SMALL, kernel=kernel)

        def rows(z: Tensor, share: float = hard_weight, temperature: float = temperature) -> Tensor:
            hard = F.cross_entropy(z, heads.target, reduction="none", ignore_index=-100)
            return (1 - share) * divergence(z, heads.logits, beta, temperature) + share * hard

        heads.check(loss, rows, 3e-6, reduction)


@every_kernel
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("tail", ["ignore", "lump"])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_topk_kl_is_the_sum_over_the_known_classes(k: int, tail: str, reduction: str, kernel: str, device: str) -> None:
    heads = Heads(9, 57, device, k=k)
    options = {"tail": tail, "temperature": 2.0, "reduction": reduction, "workspace_mb": SMALL}
    loss = heads.top(**options, kernel=kernel)
    heads.check(loss, lambda z: known_part(z, heads, tail, 2.0), 5e-6, reduction)


@every_kernel
def test_topk_kl_with_all_classes_is_kl(kernel: str, device: str) -> None:
    heads = Heads(9, 57, device, k=57)
    for tail in ("ignore", "lump"):
        heads.check(heads.top(tail=tail, kernel=kernel), lambda z: divergence(z, heads.logits, 0.0, 1.0), 1e-5)


@every_kernel
def test_topk_kl_of_classes_with_probability_0(kernel: str, device: str) -> None:
    """A class of -inf is a class that the teacher excludes: no part in the loss, and none in what is lumped."""
    heads = Heads(9, 57, device, k=3)
    heads.topk.values[:, 2] = -torch.inf
    loss = heads.top(tail="lump", reduction="none", kernel=kernel)
    assert loss.isfinite().all()

    def rows(z: Tensor) -> Tensor:
        q, (log_p, at) = z.softmax(-1), heads.topk
        rest = 1 - log_p.exp().sum(-1)
        known = (log_p[:, :2].exp() * (log_p[:, :2] - q.gather(-1, at[:, :2]).log())).sum(-1)
        return known + rest * (rest.log() - q.scatter(-1, at, 0.0).sum(-1).log())

    heads.check(loss, rows, 5e-6, "none")


@every_kernel
@pytest.mark.parametrize("reverse", [False, True])
def test_kl_is_jsd_at_its_ends(reverse: bool, kernel: str, device: str) -> None:
    heads = Heads(5, 57, device)
    options = {"temperature": 1.5, "hard_weight": 0.2, "reduction": "sum", "kernel": kernel}
    one, other = heads.jsd("linear_kl", reverse=reverse, **options), heads.jsd(beta=float(reverse), **options)
    assert torch.equal(one, other)
    found = (torch.autograd.grad(loss, heads.leaves) for loss in (one, other))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@every_kernel
@pytest.mark.parametrize("beta", [0.5, 0.1])
def test_c17_loud_ignored_rows(beta: float, kernel: str, device: str) -> None:
    """The mean over the three rows that are kept, with the teacher in its role; heads of ones hand logits through."""
    student, teacher = torch.randn(8, 11) * 0.3, torch.randn(8, 11) * 3
    student[:5] *= 40
    student, teacher = student.to(device).requires_grad_(), teacher.to(device)
    target = torch.tensor([-100] * 5 + [1, 2, 3], device=device)
    eye = torch.eye(11, device=device)
    options = {"beta": beta, "temperature": 2.0, "kernel": kernel}
    loss = ops.linear_jsd(student, eye, teacher, eye, target, **options)
    rows = divergence(student[5:].double(), teacher[5:].double(), beta, 2.0)
    assert close(loss, rows.mean())
    (gradient,) = torch.autograd.grad(loss, student)
    assert not gradient[:5].any()
    assert close(gradient, torch.autograd.grad(rows.mean(), student)[0])
    swapped = divergence(teacher[5:].double(), student[5:].double(), beta, 2.0).mean()
    assert beta == 0.5 or not close(loss, swapped, 0.1)


# -- Rows that are ignored, or absent ----------------------------------------------------------------------------------
@every_kernel
@pytest.mark.parametrize("form", ["jsd", "hard", "top", "lump"])
def test_no_row_is_kept_and_no_row(form: str, kernel: str, device: str) -> None:
    def call(heads: Heads, **options: Any) -> Tensor:
        if form in ("top", "lump"):
            return heads.top(tail="lump" if form == "lump" else "ignore", kernel=kernel, **options)
        return heads.jsd(hard_weight=0.3 if form == "hard" else 0.0, kernel=kernel, **options)

    for rows in (4, 0):
        heads = Heads(rows, 57, device)
        heads.target[:] = -100
        for reduction, isnan in (("mean", True), ("sum", False)):
            loss = call(heads, reduction=reduction)
            assert loss.isnan() if isnan else loss == 0
            assert not any(g.any() for g in torch.autograd.grad(loss, heads.leaves))
        assert call(heads, reduction="none").shape == (rows,)
        assert not call(heads, reduction="none").any()


@each_chunked
def test_num_items_and_no_target(kernel: str, device: str) -> None:
    heads = Heads(6, 57, device)
    for call in (heads.jsd, heads.top):
        every = call(target=None, reduction="none", kernel=kernel)
        for divisor, options in ((6, {}), (4, {"num_items": 4}), (5, {"num_items": torch.tensor(5)})):
            assert close(call(target=None, kernel=kernel, **options), every.sum() / divisor)


# -- What is frozen, and memory ----------------------------------------------------------------------------------------
@each_chunked
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("only", range(3))
def test_what_is_frozen_costs_nothing(only: int, reduction: str, kernel: str, device: str) -> None:
    heads = Heads(5, 57, device)
    shape = tuple(heads.leaves[only].shape)
    for call in (lambda: heads.jsd(hard_weight=0.3, reduction=reduction, kernel=kernel).sum(),
                 lambda: heads.top(reduction=reduction, kernel=kernel).sum()):  # fmt: skip
        expected = torch.autograd.grad(call(), heads.leaves)
        for i, t in enumerate(heads.leaves):
            t.requires_grad_(i == only)
        with Largest() as made:
            (found,) = torch.autograd.grad(call(), heads.leaves[only])
        assert torch.equal(found, expected[only])
        assert shape in made.shapes
        assert ((57, 16) in made.shapes) == (only == 1)
        for t in heads.leaves:
            t.requires_grad_()


@each_chunked
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_never_all_logits(reduction: str, kernel: str, device: str) -> None:
    """Both heads' logits of a chunk fit into the workspace; nothing else is as large as the logits of all rows."""
    heads = Heads(72, 301, device)
    options = {"reduction": reduction, "workspace_mb": 0.04, "kernel": kernel}
    for call in (lambda: heads.jsd(hard_weight=0.3, **options), lambda: heads.top(tail="lump", **options)):
        with Largest() as made:
            call().sum().backward()
        assert made.bytes <= 0.04 * 2**20 < 72 * 301 * 4 / 2
    with Largest() as made:
        heads.jsd(**options)
    assert made.bytes <= 0.02 * 2**20


@each_chunked
@pytest.mark.parametrize("chunks", [1, 4, 32])
def test_c04_head_gradient_does_not_depend_on_the_chunks(chunks: int, kernel: str, device: str) -> None:
    heads = Heads(64, 64, device, torch.bfloat16)
    wide = [t.requires_grad_() for t in heads.wide(heads.leaves)]
    true = torch.autograd.grad(divergence(F.linear(*wide), heads.logits, 0.5, 1.0).mean(), wide)
    loss = heads.jsd(target=None, workspace_mb=64 / chunks * 64 * 4 / 2**20, kernel=kernel)
    found = torch.autograd.grad(loss, heads.leaves)
    assert close(found[1], true[1], 0.008)  # differences of probabilities magnify the rounding of the logits
    assert close(found[0], true[0], 0.008)


# -- Dtypes ------------------------------------------------------------------------------------------------------------
@each_chunked
@pytest.mark.parametrize("hard_weight", [0.0, 0.3])
def test_heads_of_two_dtypes(hard_weight: float, kernel: str, device: str) -> None:
    heads = Heads(9, 57, device, torch.bfloat16)
    heads.teacher = tuple(t.float() for t in heads.teacher)
    options: dict[str, Any] = {"hard_weight": hard_weight, "temperature": 2.0, "workspace_mb": SMALL}
    loss, expected = (heads.jsd(kernel=k, **options) for k in (kernel, "reference"))
    assert close(loss, expected, 1e-5)
    found = (torch.autograd.grad(x, heads.leaves) for x in (loss, expected))
    assert all(close(a, b, 0.01) for a, b in zip(*found, strict=True))


@each_chunked
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrow_teacher_does_not_round_the_students_gradient(narrow: torch.dtype, kernel: str, device: str) -> None:
    """Divided by many items it would even be 0 in fp16."""
    heads = Heads(9, 57, device)
    heads.teacher = tuple(t.to(narrow) for t in heads.teacher)
    options: dict[str, Any] = {"hard_weight": 0.3, "num_items": 10**7, "workspace_mb": SMALL}
    found, expected = (torch.autograd.grad(heads.jsd(kernel=k, **options), heads.leaves) for k in (kernel, "reference"))
    assert all(close(a, b, 1e-5) for a, b in zip(found, expected, strict=True))


@each_chunked
def test_fp16_keeps_small_gradients(kernel: str, device: str) -> None:
    """Divided by many items they are below the smallest fp16 number, 6e-8, until a gradient scaler's factor arrives."""
    heads = Heads(9, 57, device, torch.float16)
    wide = [t.requires_grad_() for t in heads.wide(heads.leaves)]
    kept = heads.target != -100
    for loss, rows in (
        (heads.jsd(num_items=64_000, kernel=kernel), divergence(F.linear(*wide), heads.logits, 0.5, 1.0)),
        (heads.top(num_items=64_000, tail="lump", kernel=kernel), known_part(F.linear(*wide), heads, "lump", 1.0)),
    ):
        found = torch.autograd.grad(65536.0 * loss, heads.leaves)
        true = torch.autograd.grad(65536.0 * rows[kept].sum() / 64_000, wide, retain_graph=True)
        assert all(close(a, b, 3e-3) for a, b in zip(found, true, strict=True))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_float64_is_exact(reduction: str) -> None:
    heads = Heads(5, 9, "cpu", torch.float64, k=3)
    options: dict[str, Any] = {"reduction": reduction, "workspace_mb": 2e-4, "temperature": 1.5, "kernel": "torch"}

    def set_leaves(call: Callable[..., Tensor], **more: Any) -> Callable[..., Tensor]:
        def fn(*leaves: Tensor) -> Tensor:
            heads.leaves = leaves
            return call(**options, **more)

        return fn

    for beta in (0.0, 0.3, 1.0):
        assert torch.autograd.gradcheck(set_leaves(heads.jsd, beta=beta, hard_weight=0.4), heads.leaves)
    for tail in ("ignore", "lump"):
        assert torch.autograd.gradcheck(set_leaves(heads.top, tail=tail), heads.leaves)


@each_chunked
def test_autocast(kernel: str, device: str) -> None:
    """Each head as ``linear`` under autocast."""
    heads = Heads(9, 57, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = heads.jsd(hard_weight=0.3, kernel=kernel)
        top = heads.top(kernel=kernel)
    narrow = Heads(1, 57, device, torch.bfloat16)
    narrow.leaves = tuple(t.detach().bfloat16() for t in heads.leaves)
    narrow.teacher = tuple(t.bfloat16() for t in heads.teacher)
    narrow.target, narrow.topk = heads.target, heads.topk
    assert torch.equal(loss, narrow.jsd(hard_weight=0.3, kernel=kernel))
    assert torch.equal(top, narrow.top(kernel=kernel))
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(loss + top, heads.leaves))


# -- Devices, compilation, graph ---------------------------------------------------------------------------------------
@each_chunked
def test_no_sync(kernel: str, device: str) -> None:
    heads = Heads(6, 57, device)
    every = ({"num_items": torch.tensor(4, device=device)}, {"reduction": "none"}, {"workspace_mb": SMALL})
    with no_sync():
        for options in every:
            heads.jsd(hard_weight=0.3, kernel=kernel, **options).sum().backward()
            heads.top(tail="lump", kernel=kernel, **options).sum().backward()


@each_chunked
@pytest.mark.parametrize(
    "options",
    [{"beta": 0.0, "hard_weight": 0.3, "num_items": 5}, {"reduction": "none", "workspace_mb": SMALL}],
    ids=("reduced", "none"),
)
def test_compile(options: dict[str, Any], kernel: str, device: str) -> None:
    """Lengths that are one chunk and lengths that are many: at most two graphs."""
    calls = []
    for rows in (5, 5, 20, 11):
        heads = Heads(rows, 57, device, torch.bfloat16)
        hidden, weight, bias = heads.leaves
        calls.append(([hidden, weight, *heads.teacher[:2], heads.target, bias, heads.teacher[2]], options))

    def fn(*tensors: Tensor, **kwargs: Any) -> Tensor:
        return ops.linear_jsd(*tensors, kernel=kernel, **kwargs)  # type: ignore[no-any-return]

    assert check_compile(fn, calls) <= 2
    opcheck(fn, *calls[0])


@each_chunked
def test_second_derivative_is_refused(kernel: str, device: str) -> None:
    heads = Heads(4, 57, device)
    for name, loss in (
        ("linear_jsd", heads.jsd(kernel=kernel)),
        ("linear_kl", heads.jsd("linear_kl", kernel=kernel)),
        ("linear_topk_kl", heads.top(kernel=kernel)),
    ):
        with pytest.raises(RuntimeError, match=f"{name}: this kernel has no second derivative"):
            torch.autograd.grad(loss, heads.leaves, create_graph=True)


# -- Bad input ---------------------------------------------------------------------------------------------------------
def _bad_calls() -> list[tuple[type[Exception], str, Callable[[], object]]]:
    h, w, g, u = torch.randn(4, 3), torch.randn(9, 3), torch.randn(4, 5), torch.randn(9, 5)
    y, learning = torch.zeros(4, dtype=torch.long), torch.randn(9, 5, requires_grad=True)
    known, at = torch.randn(4, 2).log_softmax(-1), torch.arange(8).view(4, 2)
    jsd, top = ops.linear_jsd, ops.linear_topk_kl
    return [
        (ValueError, r"linear_jsd: beta is 1.5, expected", lambda: jsd(h, w, g, u, beta=1.5)),
        (ValueError, r"linear_jsd: temperature is 0, expected", lambda: jsd(h, w, g, u, temperature=0)),
        (ValueError, r"'batchmean', expected .*'mean' is over rows", lambda: jsd(h, w, g, u, reduction="batchmean")),
        (ValueError, r"hard_weight is 1.5, expected a number in \[0, 1\]", lambda: jsd(h, w, g, u, y, hard_weight=1.5)),
        (ValueError, r"hard_weight is 0.5 but target is None; pass", lambda: jsd(h, w, g, u, hard_weight=0.5)),
        (ValueError, r"teacher_weight requires a gradient, .*detach\(\)", lambda: jsd(h, w, g, learning)),
        (ValueError, r"teacher_weight has 8 classes and student_weight 9; expected", lambda: jsd(h, w, g, u[:8])),
        (ValueError, r"teacher_hidden has shape \(3, 5\), expected the leading", lambda: jsd(h, w, g[:3], u)),
        (ValueError, r"student_weight has shape \(9, 5\), expected \(V, 3\)", lambda: jsd(h, u, g, u)),
        (ValueError, r"teacher_weight has shape \(9, 3\), expected \(V, 5\)", lambda: jsd(h, w, g, w)),
        (TypeError, r"teacher_weight is torch.float32 but teacher_hidden is", lambda: jsd(h, w, g.bfloat16(), u)),
        (TypeError, r"teacher_hidden is on meta", lambda: jsd(h, w, g.to("meta"), u.to("meta"))),
        (TypeError, r"student_hidden must be a tensor, got NoneType", lambda: jsd(None, w, g, u)),
        (ValueError, r"target has shape \(3,\), expected \(4,\)", lambda: jsd(h, w, g, u, y[:3])),
        (TypeError, r"linear_kl: reverse must be a bool, got int", lambda: ops.linear_kl(h, w, g, u, reverse=1)),
        (ValueError, r"linear_topk_kl: tail is 'drop', expected", lambda: top(h, w, known, at, tail="drop")),
        (TypeError, r"topk_indices must hold integer class indices, got", lambda: top(h, w, known, known)),
        (TypeError, r"topk_logprobs must be floating, got torch.int64", lambda: top(h, w, at, at)),
        (ValueError, r"topk_indices has shape \(3, 2\), expected \(4,\)", lambda: top(h, w, known, at[:3])),
        (ValueError, r"topk_indices has shape \(4, 0\), expected .* 1 to 9", lambda: top(h, w, known, at[:, :0])),
        (ValueError, r"topk_logprobs has shape \(4, 1\), expected \(4, 2\)", lambda: top(h, w, known[:, :1], at)),
        (ValueError, r"topk_logprobs requires a gradient", lambda: top(h, w, known.clone().requires_grad_(), at)),
    ]


@pytest.mark.parametrize(("error", "message", "fn"), _bad_calls(), ids=lambda v: v if isinstance(v, str) else "")
def test_bad_input(error: type[Exception], message: str, fn: Callable[[], object]) -> None:
    with pytest.raises(error, match=message):
        fn()


def test_a_teacher_may_require_a_gradient_where_none_is_recorded() -> None:
    heads = Heads(4, 9, "cpu")
    expected = heads.jsd()
    with torch.no_grad():
        heads.teacher = tuple(t.requires_grad_() for t in heads.teacher)
        assert torch.equal(heads.jsd(), expected)


def test_module() -> None:
    heads = Heads(4, 9, "cpu")
    hidden, weight, bias = heads.leaves
    module = liger.nn.LinearJSDLoss(beta=0.1, temperature=2.0)
    assert repr(module) == "LinearJSDLoss(beta=0.1, temperature=2.0)"
    tensors = (hidden, weight, *heads.teacher[:2], heads.target, bias, heads.teacher[2])
    assert torch.equal(module(*tensors), heads.jsd(beta=0.1, temperature=2.0))
    assert torch.equal(module(*tensors, num_items=9), heads.jsd(beta=0.1, temperature=2.0, num_items=9))
