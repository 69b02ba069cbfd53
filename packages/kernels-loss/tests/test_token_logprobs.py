"""linear_token_logprobs and linear_logits_stats against log_softmax, and what policy losses make of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from liger import ops
from liger.testing import count_ops

KERNELS = ("reference", "torch", "triton")
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
TRANSFORM: dict[str, Any] = {"softcap": 4.0, "logit_scale": 1.5, "temperature": 0.6}


def make(rows: int, classes: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (rows, 16), head (classes, 16) and bias."""
    shapes = ((rows, 16), (classes, 16), (classes,))
    hidden, weight, bias = ((torch.randn(*s) / 2).to(device, dtype).requires_grad_() for s in shapes)
    return hidden, weight, bias


def log_p(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of the transformed logits, in float64."""
    z = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    return (4.0 * torch.tanh(z * 1.5 / 4.0) / 0.6).log_softmax(-1)


def close(a: Tensor, b: Tensor) -> bool:
    """Relative Frobenius distance."""
    return bool((a.double() - b.double()).norm() <= 3e-6 * b.double().norm())


@every_kernel
def test_is_log_softmax_of_the_logits(kernel: str, device: str) -> None:
    inputs = make(6, 203, device)
    target = torch.randint(0, 203, (2, 3), device=device)
    target[1, 0] = -100
    hidden, weight, bias = inputs
    got = ops.linear_token_logprobs(hidden.view(2, 3, 16), weight, target, bias, kernel=kernel, **TRANSFORM)
    kept, expected = target.view(-1) != -100, log_p(*inputs)
    logprobs = expected.gather(1, target.view(-1, 1).clamp(0)).squeeze(1) * kept
    entropy = -(expected.exp() * expected).sum(-1) * kept
    best = expected.argmax(-1)
    assert got.logprobs.shape == got.entropy.shape == got.predictions.shape == got.correct.shape == (2, 3)
    assert got.logprobs.dtype == got.entropy.dtype == torch.float32
    assert close(got.logprobs, logprobs.view(2, 3))
    assert close(got.entropy, entropy.view(2, 3))
    assert torch.equal(got.predictions.view(-1), best.masked_fill(~kept, -100))
    assert torch.equal(got.correct.view(-1), (best == target.view(-1)) & kept)
    w, v = torch.randn(2, 6, dtype=torch.float64, device=device)
    for a, b in ((1, 0), (0, 1), (1, 1)):
        mine = a * (got.logprobs.view(-1) * w).sum() + b * (got.entropy.view(-1) * v).sum()
        theirs = a * (logprobs * w).sum() + b * (entropy * v).sum()
        found = torch.autograd.grad(mine, inputs, retain_graph=True)
        for x, y in zip(found, torch.autograd.grad(theirs, inputs, retain_graph=True), strict=True):
            assert close(x, y)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [1, 97, 1025, 129919, 262147])
def test_c02_no_log_prob_above_0(kernel: str, classes: int, dtype: torch.dtype, device: str) -> None:
    """Also of labels with all the probability."""
    hidden, weight, _ = make(3, classes, device, dtype)
    with torch.no_grad():
        hidden.mul_(40.0)
        target = (hidden @ weight.t()).argmax(-1)
        got = ops.linear_token_logprobs(hidden, weight, target, kernel=kernel)
        expected = (hidden @ weight.t()).float().log_softmax(-1)
    assert got.logprobs.max() <= 0.0
    assert got.entropy.min() >= -1e-5
    assert torch.allclose(got.logprobs, expected.gather(1, target[:, None]).squeeze(1), atol=1e-5)


@every_kernel
def test_policy_gradient(kernel: str, device: str) -> None:
    """A clipped ratio with an entropy bonus, in plain torch on top."""
    inputs = make(8, 57, device)
    target = torch.randint(0, 57, (8,), device=device)
    old = torch.randn(8, device=device) - 4.0
    advantage = torch.randn(8, device=device)

    def policy(logprobs: Tensor, entropy: Tensor) -> Tensor:
        ratio = (logprobs - old).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() - 0.01 * entropy.mean()

    got = ops.linear_token_logprobs(*inputs[:2], target, inputs[2], kernel=kernel, **TRANSFORM)
    expected = log_p(*inputs)
    mine = policy(got.logprobs, got.entropy)
    theirs = policy(expected.gather(1, target[:, None]).squeeze(1), -(expected.exp() * expected).sum(-1))
    assert close(mine, theirs)
    for x, y in zip(torch.autograd.grad(mine, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        assert close(x, y)


@every_kernel
def test_stats(kernel: str, device: str) -> None:
    hidden, weight, bias = make(6, 203, device)
    with count_ops() as counts:
        got = ops.linear_logits_stats(hidden.view(2, 3, 16), weight, bias, kernel=kernel, **TRANSFORM)
    assert counts["linear_logits_stats", kernel] == 1
    expected = log_p(hidden, weight, bias)
    z = 4.0 * torch.tanh(F.linear(hidden, weight, bias).double() * 1.5 / 4.0) / 0.6
    assert close(got.lse, z.logsumexp(-1).view(2, 3))
    assert close(got.entropy, -(expected.exp() * expected).sum(-1).view(2, 3))
    assert close(got.top_logprob, expected.amax(-1).view(2, 3))
    assert torch.equal(got.predictions, expected.argmax(-1).view(2, 3))
    assert not any(t.requires_grad for t in got)


@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_compact_and_compile(kernel: str, device: str) -> None:
    hidden, weight, _ = make(6, 37, device)
    target = torch.tensor([1, -100, 3, -100, -100, 0], device=device)

    def loss(h: Tensor, w: Tensor, **options: Any) -> Tensor:
        found = ops.linear_token_logprobs(h, w, target, kernel=kernel, **options)
        return (found.logprobs + 0.1 * found.entropy).sum() + found.correct.sum()

    plain = loss(hidden, weight)
    for other in (
        loss(hidden, weight, compact=True),
        torch.compile(loss, backend="aot_eager", fullgraph=True)(hidden, weight),
    ):
        assert close(other, plain)
        found = torch.autograd.grad(other, (hidden, weight))
        for x, y in zip(found, torch.autograd.grad(plain, (hidden, weight), retain_graph=True), strict=True):
            assert close(x, y)


def test_bad_input() -> None:
    hidden, weight, _ = make(4, 9, "cpu")
    target = torch.arange(4)
    with pytest.raises(TypeError, match="linear_token_logprobs: target must hold integer class indices, got"):
        ops.linear_token_logprobs(hidden, weight, torch.rand(4, 9))
    with pytest.raises(ValueError, match="linear_token_logprobs: target has 1 of 4 labels outside"):
        ops.linear_token_logprobs(hidden, weight, target + 6, check_labels=True)
    with pytest.raises(TypeError, match="linear_token_logprobs: compact must be a bool, got str"):
        ops.linear_token_logprobs(hidden, weight, target, compact="no")
    with pytest.raises(ValueError, match="linear_token_logprobs: temperature"):
        ops.linear_token_logprobs(hidden, weight, target, temperature=-1.0)
    with pytest.raises(ValueError, match="linear_logits_stats: weight has shape"):
        ops.linear_logits_stats(hidden, weight[:, :3])
    found = ops.linear_token_logprobs(hidden, weight, target, kernel="torch").logprobs.sum()
    with pytest.raises(RuntimeError, match="linear_token_logprobs: this kernel has no second derivative"):
        torch.autograd.grad(found, hidden, create_graph=True)
