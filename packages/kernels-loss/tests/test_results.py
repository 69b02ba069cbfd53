"""What the cross-entropies offer beyond torch's: weights of tokens, probabilities, temperature, and further results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from liger import ops
from liger.testing import assert_contract
from liger.testing.kernels import in_part
from liger_kernels_loss.cross_entropy import cross_entropy_reference
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_reference

PAIRS = [("cross_entropy", k) for k in ("reference", "triton")] + [
    ("linear_cross_entropy", k) for k in ("reference", "torch", "triton")
]
every_kernel = pytest.mark.parametrize(("op", "kernel"), PAIRS)
FUSED = [pair for pair in PAIRS if pair[1] != "reference"]
REFERENCES = {"cross_entropy": cross_entropy_reference, "linear_cross_entropy": linear_cross_entropy_reference}
ALL = ("token_loss", "z_loss", "entropy", "token_accuracy", "predictions")
VALUES: dict[str, Any] = {
    "ignore_index": 3,
    "reduction": "sum",
    "label_smoothing": 0.2,
    "softcap": 3.0,
    "logit_scale": -1.5,
    "temperature": 0.7,
    "z_loss": 0.05,
    "num_items": 11,
    "returns": ("token_loss", "entropy", "z_loss"),
    "class weights": None,
    "token weights": None,
    "probabilities": None,
}


def leaves(op: str, rows: int, classes: int, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Logits, or hidden states and a head."""
    shapes = [(rows, classes)] if op == "cross_entropy" else [(rows, 16), (classes, 16)]
    return [(torch.randn(*s) / (1 if len(shapes) == 1 else 2)).to(device, dtype).requires_grad_() for s in shapes]


def logits_of(inputs: list[Tensor]) -> Tensor:
    """In float64."""
    wide = [t.double() for t in inputs]
    return wide[0] if len(wide) == 1 else wide[0] @ wide[1].t()


def call(op: str, kernel: str, inputs: list[Tensor], target: Tensor, *weights: Tensor | None, **options: Any) -> Any:
    """The op with the class and token weights at their places."""
    bias = () if op == "cross_entropy" else (None,)
    return getattr(ops, op)(*inputs, target, *bias, *weights, kernel=kernel, **options)


def same(got: Tensor, expected: Tensor, inputs: list[Tensor], tolerance: float = 3e-6) -> None:
    """Value and every gradient, in relative Frobenius distance."""
    assert got.shape == expected.shape
    pairs = [(got, expected)]
    if expected.requires_grad:
        seed = torch.randn(expected.shape, dtype=torch.float64, device=expected.device)
        mine = torch.autograd.grad(got, inputs, seed.to(got.dtype), retain_graph=True)
        pairs += zip(mine, torch.autograd.grad(expected, inputs, seed, retain_graph=True), strict=True)
    for a, b in pairs:
        assert (a.double() - b.double()).norm() <= tolerance * b.double().norm()


# -- Options -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pair", [p for p in itertools.combinations(VALUES, 2) if in_part("-".join(p))], ids="-".join)
@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_options_in_pairs(op: str, kernel: str, pair: tuple[str, str], device: str) -> None:
    """Against the reference in float64, which the tests below compare with torch."""
    options = {name: VALUES[name] for name in pair if VALUES[name] is not None}
    target = torch.randint(0, 35, (6,))
    target[::3] = options.get("ignore_index", -100)
    target = torch.randn(6, 35).softmax(-1) if "probabilities" in pair else target
    bias = () if op == "cross_entropy" else (torch.randn(35, device=device).requires_grad_(),)
    class_weight = torch.rand(35).to(device) if "class weights" in pair else None
    token_weight = torch.rand(6).to(device) if "token weights" in pair else None
    inputs = [*leaves(op, 6, 35, device), target.to(device), *bias, class_weight, token_weight]

    def fn(*tensors: Tensor | None, **given: Any) -> Any:
        return getattr(ops, op)(*tensors, kernel=kernel, **given)

    assert_contract(fn, REFERENCES[op], inputs, options, reduction=35)


@pytest.mark.parametrize(("op", "kernel"), FUSED)
def test_a_saturated_softcap_keeps_its_slope(op: str, kernel: str, device: str) -> None:
    """1 - tanh^2 is what rounding leaves of it there."""
    inputs: list[Tensor | None] = [(t * 6).detach().requires_grad_() for t in leaves(op, 6, 203, device)]

    def fn(*tensors: Tensor | None, **given: Any) -> Any:
        return getattr(ops, op)(*tensors, kernel=kernel, **given)

    inputs.append(torch.randint(0, 203, (6,), device=device))
    assert_contract(fn, REFERENCES[op], inputs, {"softcap": 9.0, "logit_scale": 1.3}, reduction=203)


@every_kernel
def test_temperature_divides_after_the_softcap(op: str, kernel: str, device: str) -> None:
    inputs, target = leaves(op, 5, 19, device), torch.randint(0, 19, (5,), device=device)
    z = 2.0 * torch.tanh(1.3 * logits_of(inputs) / 2.0) / 0.5
    same(
        call(op, kernel, inputs, target, softcap=2.0, logit_scale=1.3, temperature=0.5),
        F.cross_entropy(z, target),
        inputs,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@every_kernel
def test_probabilities_are_torchs(
    op: str, kernel: str, reduction: str, weighted: bool, smoothing: float, device: str
) -> None:
    inputs, q = leaves(op, 6, 57, device), torch.randn(6, 57, device=device).softmax(-1)
    w = torch.rand(57, device=device) if weighted else None
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    expected = F.cross_entropy(logits_of(inputs), q.double(), None if w is None else w.double(), **options)
    same(call(op, kernel, inputs, q, w, **options), expected, inputs)


@pytest.mark.parametrize("classes", [1, 4097, 40961])
def test_probabilities_of_many_classes(classes: int, device: str) -> None:
    inputs = leaves("cross_entropy", 3, classes, device)
    one_hot = F.one_hot(torch.arange(3) % classes, classes).float().to(device)
    got = call("cross_entropy", "triton", inputs, one_hot)
    same(got, F.cross_entropy(logits_of(inputs), torch.arange(3, device=device) % classes), inputs)
    assert got >= 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@every_kernel
def test_token_weights(op: str, kernel: str, reduction: str, device: str) -> None:
    inputs, target = leaves(op, 6, 19, device), torch.tensor([1, -100, 3, 5, -100, 0], device=device)
    t, w = torch.rand(6, device=device), torch.rand(19, device=device)
    rows = F.cross_entropy(logits_of(inputs), target, w.double(), reduction="none") * t
    kept = (t * w[target.clamp(0)] * (target != -100)).sum()
    expected = {"mean": rows.sum() / kept, "sum": rows.sum(), "none": rows}[reduction]
    same(call(op, kernel, inputs, target, w, t, reduction=reduction), expected, inputs)


# -- Results -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@every_kernel
def test_returns(op: str, kernel: str, reduction: str, device: str) -> None:
    """Each result is what is written, and has the gradient of what is written, alone and added to the others."""
    inputs, target = leaves(op, 6, 37, device), torch.randint(0, 37, (2, 3), device=device)
    target[0, 1] = -100
    shaped = [inputs[0].view(2, 3, -1), *inputs[1:]]
    z, flat = logits_of(inputs) * 1.5, target.view(-1)
    options = {"reduction": reduction, "z_loss": 0.03, "logit_scale": 1.5, "returns": ALL}
    got = call(op, kernel, shaped, target, **options)
    kept = flat != -100
    lse = z.logsumexp(-1) * kept
    rows = F.cross_entropy(z, flat, reduction="none") + 0.03 * lse.square()
    entropy = -(z.softmax(-1) * z.log_softmax(-1)).sum(-1) * kept

    def reduced(t: Tensor) -> Tensor:
        return t.view(2, 3) if reduction == "none" else t.sum() / (kept.sum() if reduction == "mean" else 1)

    expected = (reduced(rows), rows.view(2, 3), reduced(0.03 * lse.square()), entropy.view(2, 3))
    for a, b in zip((got.loss, got.token_loss, got.z_loss, got.entropy), expected, strict=True):
        same(a, b, inputs)
    best = z.argmax(-1).masked_fill(~kept, -100)
    assert torch.equal(got.predictions, best.view(2, 3))
    assert got.token_accuracy == ((best == flat) & kept).sum() / kept.sum()
    assert not got.predictions.requires_grad
    mixed = sum(((k + 1) * t).sum() for k, t in enumerate(got[:4]))
    same(mixed, sum(((k + 1) * t).sum() for k, t in enumerate(expected)), inputs)  # type: ignore[arg-type]


@every_kernel
def test_what_is_not_asked_for_is_none(op: str, kernel: str, device: str) -> None:
    inputs, target = leaves(op, 3, 7, device), torch.tensor([0, 1, 2], device=device)
    assert isinstance(call(op, kernel, inputs, target), Tensor)
    got = call(op, kernel, inputs, target, returns=["entropy"], z_loss=0.1)
    assert [name for name, value in got._asdict().items() if value is not None] == ["loss", "entropy"]


@every_kernel
def test_predictions_are_the_first_of_equals(op: str, kernel: str, device: str) -> None:
    """Also beyond the first block of a row, under a softcap that makes large logits equal, and for negative scales."""
    inputs = leaves(op, 3, 5003, device)
    with torch.no_grad():
        if op == "cross_entropy":
            inputs[0].zero_()
            inputs[0][0, 4999], inputs[0][1, 700], inputs[0][1, 4800] = 3.0, 50.0, 51.0
        else:
            inputs[0].fill_(1.0)
            inputs[1].zero_()
            inputs[1][4800] = 1.0
    target = torch.zeros(3, dtype=torch.long, device=device)
    expected = (-logits_of(inputs)).argmax(-1)
    got = call(op, kernel, inputs, target, returns=["predictions"], softcap=1.0, logit_scale=-1.0)
    assert torch.equal(got.predictions, expected)
    expected = logits_of(inputs).argmax(-1)
    assert torch.equal(call(op, kernel, inputs, target, returns=["predictions"], softcap=1.0).predictions, expected)


@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_entropy_of_masked_and_certain_rows(kernel: str, device: str) -> None:
    z = torch.zeros(3, 9, device=device)
    z[0, 1:5], z[1, :], z[1, 2] = -float("inf"), -float("inf"), 0.0
    z[2, 3] = 1e4
    z.requires_grad_()
    got = call(
        "cross_entropy", kernel, [z], torch.tensor([0, 2, 3], device=device), returns=["entropy"], reduction="none"
    )
    assert torch.allclose(got.entropy, torch.tensor([5.0, 1.0, 1.0], device=device).log())
    (got.entropy.sum() + got.loss.sum()).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


# -- Ignored rows left out ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_compact_changes_nothing(kernel: str, reduction: str, device: str) -> None:
    inputs, target = leaves("linear_cross_entropy", 8, 37, device), torch.randint(0, 37, (8,), device=device)
    target[::2] = -100
    t = torch.rand(8, device=device)
    options = {"reduction": reduction, "z_loss": 0.1, "returns": ALL}
    whole, compact = (
        call("linear_cross_entropy", kernel, inputs, target, None, t, compact=c, **options) for c in (False, True)
    )
    for a, b in zip(compact[:4], whole[:4], strict=True):
        same(a, b.double(), inputs)
    assert torch.equal(compact.predictions, whole.predictions)
    assert compact.token_accuracy == whole.token_accuracy


@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_compact_makes_no_logits_of_ignored_rows(kernel: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from liger_kernels_loss import _chunked

    seen: list[int] = []
    inner = _chunked.head
    monkeypatch.setattr(_chunked, "head", lambda h, *args, **kwargs: seen.append(len(h)) or inner(h, *args, **kwargs))
    inputs, target = leaves("linear_cross_entropy", 8, 37, device), torch.full((8,), -100, device=device)
    target[5] = 1
    call("linear_cross_entropy", kernel, inputs, target, compact=True).backward()
    assert sum(seen) == 1


# -- The gradient in the place of the logits ---------------------------------------------------------------------------
def _step(inplace: bool, device: str, after: Callable[[Tensor], Any] = lambda z: None) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 8, device=device), torch.randn(33, 8, device=device, requires_grad=True)
    logits = hidden @ weight.t()
    loss = ops.cross_entropy(
        logits, torch.tensor([1, 2, -100, 4], device=device), inplace_backward=inplace, kernel="triton"
    )
    after(logits)
    loss.backward(retain_graph=True)
    assert weight.grad is not None
    return loss, weight.grad, logits


def test_inplace_backward_writes_the_gradient_over_the_logits(device: str) -> None:
    expected, gradient, _ = _step(False, device)
    loss, mine, logits = _step(True, device, lambda z: z.retain_grad())
    assert torch.equal(loss, expected)
    assert torch.equal(mine, gradient)
    assert logits.grad is not None
    assert torch.equal(logits, logits.grad)  # nothing is left of the logits


def test_the_forward_leaves_the_logits_alone(device: str) -> None:
    before: list[Tensor] = []
    _step(True, device, lambda z: before.extend([z.detach().clone(), z.detach().softmax(-1)]))
    assert torch.equal(before[0].softmax(-1), before[1])


def test_inplace_backward_refuses_a_second_use(device: str) -> None:
    loss, _, logits = _step(True, device)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()

    hidden, weight = torch.randn(4, 8, device=device), torch.randn(33, 8, device=device, requires_grad=True)
    logits = hidden @ weight.t()
    other = logits.square().sum()  # keeps the logits for its own backward
    loss = ops.cross_entropy(logits, torch.arange(4, device=device), inplace_backward=True, kernel="triton")
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


@pytest.mark.parametrize("kernel", ["reference", "triton"])
def test_inplace_backward_needs_logits_that_are_nobodys(kernel: str, device: str) -> None:
    z, target = torch.randn(4, 9, device=device, requires_grad=True), torch.arange(4, device=device)
    with pytest.raises(ValueError, match="leaf tensor"):
        ops.cross_entropy(z, target, inplace_backward=True, kernel=kernel)
    with pytest.raises(ValueError, match="contiguous"):
        ops.cross_entropy((z * 2).t().contiguous().t(), target, inplace_backward=True, kernel=kernel)


# -- Bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["cross_entropy", "linear_cross_entropy"])
def test_bad_input(op: str) -> None:
    inputs, target = leaves(op, 4, 9, "cpu"), torch.arange(4)

    def bad(error: type[Exception], message: str, *weights: Tensor | None, y: Tensor = target, **options: Any) -> None:
        with pytest.raises(error, match=f"{op}: {message}"):
            call(op, "reference", inputs, y, *weights, **options)

    bad(TypeError, "returns is 'entropy', expected a tuple or list", returns="entropy")
    bad(TypeError, "returns is None, expected a tuple or list", returns=None)
    bad(ValueError, "returns names 'logits', expected some of token_loss", returns=["entropy", "logits"])
    bad(ValueError, "temperature is 0.0, expected a finite positive", temperature=0.0)
    bad(ValueError, r"token_weight has shape \(3,\), expected \(4,\)", None, torch.ones(3))
    bad(TypeError, "token_weight must be floating", None, torch.ones(4, dtype=torch.long))
    bad(ValueError, "token_weight requires a gradient", None, torch.ones(4, requires_grad=True))
    bad(ValueError, r"target has shape \(4, 8\), expected \(4, 9\) for probabilities", y=torch.rand(4, 8))
    bad(ValueError, "target requires a gradient", y=torch.rand(4, 9, requires_grad=True))
    bad(TypeError, "check_labels must be a bool, got str", check_labels="no")
    flag = "inplace_backward" if op == "cross_entropy" else "compact"
    bad(TypeError, f"{flag} must be a bool, got int", **{flag: 0})
    bad(ValueError, "check_labels looks at class indices", y=torch.rand(4, 9), check_labels=True)
