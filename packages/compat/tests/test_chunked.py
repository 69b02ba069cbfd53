"""Losses of pairs and of distillation from hidden states and a head: the numbers of full logits, gradients included."""

import re

import pytest
import torch
from torch.nn.functional import cross_entropy, logsigmoid

from liger.testing.models import RELATIVE
from liger_kernel import _pairs, _said, chunked_loss
from liger_kernel.chunked_loss import functional
from liger_kernel.transformers import LigerFusedLinearJSD

H, V = 32, 53
GENERATOR = torch.Generator().manual_seed(0)
TARGET = torch.randint(0, V, (4, 6), generator=GENERATOR)
TARGET[0, 4:] = TARGET[3, 2] = -100
REF = torch.randn(4, 6, H, generator=GENERATOR), torch.randn(V, H, generator=GENERATOR)


def answers(hidden, head, bias=None, average=False):
    """Log-probability of each answer, and its logits, the slow way."""
    logits = hidden @ head.T + (0.0 if bias is None else bias)
    tokens = logits.log_softmax(-1).gather(-1, TARGET.clamp(min=0)[..., None])[..., 0] * (TARGET != -100)
    total = tokens.sum(-1)
    return (total / (TARGET != -100).sum(-1) if average else total), logits


def nll(logits):
    return cross_entropy(logits[:2].reshape(-1, V), TARGET[:2].reshape(-1))


def orpo(hidden, head, bias):
    logps, logits = answers(hidden, head, bias, average=True)
    odds = (logps - torch.log1p(-logps.exp())).unflatten(0, (2, 2))
    return nll(logits) - 0.1 * logsigmoid(odds[0] - odds[1]).mean()


def difference(logps):
    return logps[:2] - logps[2:]


def cpo(hidden, head, bias):
    logps, logits = answers(hidden, head, bias)
    z = 0.1 * difference(logps)
    return 0.7 * nll(logits) - (0.9 * logsigmoid(z) + 0.1 * logsigmoid(-z)).mean()


def simpo(hidden, head, bias):
    logps, logits = answers(hidden, head, bias, average=True)
    return nll(logits) - logsigmoid(0.1 * difference(logps) - 0.2).mean()


def dpo(hidden, head, bias):
    logps, _ = answers(hidden, head, bias)
    ref, _ = answers(*REF)
    return -logsigmoid(0.1 * difference(logps - ref)).mean()


LOSSES = {
    "orpo": (chunked_loss.LigerFusedLinearORPOLoss(), orpo, ()),
    "cpo": (chunked_loss.LigerFusedLinearCPOLoss(alpha=0.7, label_smoothing=0.1), cpo, ()),
    "simpo": (chunked_loss.LigerFusedLinearSimPOLoss(gamma=0.2), simpo, ()),
    "dpo": (chunked_loss.LigerFusedLinearDPOLoss(), dpo, REF),
}


def leaves():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*s, generator=generator).requires_grad_() for s in ((4, 6, H), (V, H), (V,))]


def same(actual, expected):
    assert actual.shape == expected.shape and (actual - expected).norm() <= RELATIVE * expected.norm()


@pytest.mark.parametrize(("loss", "definition", "more"), LOSSES.values(), ids=LOSSES)
def test_loss_and_gradients(loss, definition, more):
    ours, plain = leaves(), leaves()
    value, logged = loss(ours[1], ours[0], TARGET, ours[2], *more)  # the head comes first
    expected = definition(*plain)
    value.backward()
    expected.backward()
    same(value.detach(), expected.detach())
    for a, b in zip(ours, plain, strict=True):
        same(a.grad, b.grad)
    logps, logits = answers(*plain, average=type(loss).__name__.endswith(("ORPOLoss", "SimPOLoss")))
    chosen, rejected, chosen_mean, rejected_mean, *rest = logged
    same(torch.cat([chosen, rejected]), logps.detach())
    same(torch.stack([chosen_mean, rejected_mean]), logits.detach().unflatten(0, (2, 2)).mean((1, 2, 3)))
    assert len(rest) in (3, 5) and not any(t.requires_grad for t in logged)


RULES = {
    "hinge": lambda z, c, r: torch.relu(1 - z),
    "nca_pair": lambda z, c, r: -logsigmoid(c) - 0.5 * (logsigmoid(-c) + logsigmoid(-r)),
    "bco_pair": lambda z, c, r: -logsigmoid(c) - logsigmoid(-r),
    "sppo_hard": lambda z, c, r: (c / 0.1 - 5.0) ** 2 + (r / 0.1 + 5.0) ** 2,
    "apo_zero": lambda z, c, r: 1 - c.sigmoid() + r.sigmoid(),
    "apo_down": lambda z, c, r: c.sigmoid() + 1 - z.sigmoid(),
    "discopop": lambda z, c, r: -logsigmoid(z) * (1 - (z / 0.05).sigmoid()) + torch.exp(-z) * (z / 0.05).sigmoid(),
    "sigmoid": lambda z, c, r: -0.8 * logsigmoid(z) - 0.2 * logsigmoid(-z),
    "robust": lambda z, c, r: (0.2 * logsigmoid(-z) - 0.8 * logsigmoid(z)) / 0.6,
    "exo_pair": lambda z, c, r: (
        z.sigmoid() * (logsigmoid(z) - torch.tensor(0.8).log())
        + (-z).sigmoid() * (logsigmoid(-z) - torch.tensor(0.2).log())
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_kind_of_dpo(rule):
    hidden, head, bias = (t.detach() for t in leaves())
    smoothing = 0.2 if rule in ("sigmoid", "robust", "exo_pair") else 0.0
    loss = chunked_loss.LigerFusedLinearDPOLoss(loss_type=rule, label_smoothing=smoothing)
    value, logged = loss(head, hidden, TARGET, bias, *REF)
    c, r = (0.1 * (answers(hidden, head, bias)[0] - answers(*REF)[0])).split(2)
    same(value, RULES[rule](c - r, c, r).mean())
    same(torch.cat(logged[-2:]), torch.cat([c, r]))


def test_the_functions_take_the_peers_positional_arguments():
    hidden, head, bias = (t.detach() for t in leaves())
    args = (hidden, head, TARGET, bias)
    nll_target = TARGET.clone()
    nll_target[0, 0] = -100
    same(functional.liger_fused_linear_orpo(*args, -100, 0.1, True, None, True, 1)[0], orpo(hidden, head, bias))
    _, logged = chunked_loss.orpo_loss.LigerFusedLinearORPOFunction.apply(*args, -100, 0.1, True, nll_target)
    logits = answers(hidden, head, bias)[1][:2].reshape(-1, V)
    same(logged[4], cross_entropy(logits, nll_target[:2].reshape(-1)))
    assert functional.liger_fused_linear_simpo(*args)[1][4] == 0  # its module computes the NLL, its function does not
    same(
        functional.liger_fused_linear_cpo(*args, -100, 0.1, 0.7, 0.1, True, True, False, 1)[0], cpo(hidden, head, bias)
    )
    same(functional.liger_fused_linear_dpo(*args, *REF, None, -100, 0.1)[0], dpo(hidden, head, bias))


LIKED = torch.tensor([True, False, False, True])


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("kl", [None, torch.tensor(0.3)])
def test_answers_that_are_not_paired(reference, kl):
    loss = chunked_loss.LigerFusedLinearKTOLoss(beta=0.2, use_ref_model=reference)
    ours, plain = leaves(), leaves()
    value, logged = loss(*ours[:2], TARGET, ours[2], LIKED, *(REF if reference else (None, None)), None, kl)
    logps, logits = answers(*plain)
    ratio = logps - answers(*REF)[0] if reference else logps
    sign = torch.where(LIKED, 1.0, -1.0)
    expected = (1 - torch.sigmoid(0.2 * (ratio - (0.0 if kl is None else kl)) * sign)).mean()
    value.backward()
    expected.backward()
    same(value.detach(), expected.detach())
    for a, b in zip(ours, plain, strict=True):
        same(a.grad, b.grad)
    both = [x.detach()[kind].sum() for x in (logps, logits.flatten(1).sum(1), 0.2 * ratio) for kind in (LIKED, ~LIKED)]
    same(torch.stack(logged), torch.stack(both))
    with pytest.raises(ValueError, match="preference_labels were not given"):
        loss(*ours[:2], TARGET)
    with pytest.raises(ValueError, match=r"shape \(4, 1\), expected \(4,\)"):  # which would broadcast to (4, 4)
        loss(*ours[:2], TARGET, ours[2], LIKED[:, None], *(REF if reference else (None, None)))
    by_position = (TARGET, LIKED, ours[2], *(REF if reference else (None, None)), None, kl, -100, 0.2, True, reference)
    same(functional.liger_fused_linear_kto(*ours[:2], *by_position)[0].detach(), expected.detach())


def test_distillation():
    hidden, head, _ = (t.detach().reshape(-1, t.shape[-1]) for t in leaves())
    labels = TARGET.reshape(-1)
    teacher = REF[0].reshape(-1, H), REF[1]
    hard = cross_entropy(hidden @ head.T, labels)
    soft = LigerFusedLinearJSD(0.2, temperature=2.0)(hidden, head, *teacher, labels)
    options = {"weight_hard_loss": 0.3, "beta": 0.2, "temperature": 2.0}
    same(chunked_loss.LigerFusedLinearJSDLoss(**options)(hidden, head, *teacher, labels), 0.3 * hard + 0.5 * soft)
    parts = chunked_loss.LigerFusedLinearJSDLoss(**options, return_soft_hard_loss=True)(hidden, head, *teacher, labels)
    for a, b in zip(parts, (0.3 * hard + 0.5 * soft, soft, hard), strict=True):
        same(a, b)


def test_distillation_by_position():
    hidden, head, bias = (t.detach().reshape(-1, t.shape[-1]) for t in leaves())
    args = (hidden, head, REF[0].reshape(-1, H), REF[1], TARGET.reshape(-1), bias[0], None)
    expected = chunked_loss.LigerFusedLinearJSDLoss(0.3, beta=0.2)(*args)
    for function in (chunked_loss.jsd_loss.LigerFusedLinearJSDFunction.apply, functional.liger_fused_linear_jsd):
        same(function(*args, 0.3, 0.5, 0.2, -100, 1.0, True, 1024, False), expected)


def test_what_is_wrong_raises_and_what_does_nothing_is_said(monkeypatch):
    hidden, head, _ = (t.detach() for t in leaves())
    with pytest.warns(_said.CompatWarning, match="chunk_size=4 does nothing") as said:
        chunked_loss.LigerFusedLinearORPOLoss(chunk_size=4)(head, hidden, TARGET)
    assert said[0].filename == __file__
    with pytest.raises(ValueError, match="the batch is 3"):
        chunked_loss.LigerFusedLinearORPOLoss()(head, hidden[:3], TARGET[:3])
    with pytest.raises(ValueError, match="use_ref_model is True"):
        chunked_loss.LigerFusedLinearDPOLoss()(head, hidden, TARGET)
    monkeypatch.setattr(_pairs, "pairs", None)  # nothing is computed before
    monkeypatch.setattr(_pairs, "token_logprobs", None)
    with pytest.raises(ValueError, match="KTO: use_ref_model is True"):
        chunked_loss.LigerFusedLinearKTOLoss(use_ref_model=True)(hidden, head, TARGET, None, LIKED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "ipo"}, "DPO: Unsupported loss_type 'ipo', Liger has sigmoid, robust, discopop"),
        ({"loss_type": "hinge", "label_smoothing": 0.1}, "there is no label_smoothing for loss_type='hinge', got 0.1"),
        ({"loss_type": "exo_pair"}, "label_smoothing must be > 0 for loss_type='exo_pair'"),
        ({"loss_type": "exo_pair", "label_smoothing": 1.0}, "for loss_type='exo_pair', and below 1, got 1.0"),
        ({"loss_type": "robust", "label_smoothing": 0.5}, "label_smoothing must lie in [0.0, 0.5) for loss_type='rob"),
        ({"loss_type": "robust", "label_smoothing": -0.1}, "for loss_type='robust', got -0.1"),
        ({"loss_type": "discopop", "discopop_tau": 0.0}, "discopop_tau must be > 0 for loss_type='discopop', got 0.0"),
        ({"loss_type": "sppo_hard", "beta": 0.0}, "beta must be > 0 for loss_type='sppo_hard', got 0.0"),
    ],
)
def test_what_a_dpo_cannot_be_raises_before_and_in_a_call(monkeypatch, options, message):
    hidden, head, _ = (t.detach() for t in leaves())
    monkeypatch.setattr(_pairs, "pairs", None)  # nothing is computed before
    with pytest.raises(ValueError, match=re.escape(message)):
        chunked_loss.LigerFusedLinearDPOLoss(**options)
    with pytest.raises(ValueError, match=re.escape(message)):
        functional.liger_fused_linear_dpo(hidden, head, TARGET, use_ref_model=False, **options)
    loss = chunked_loss.LigerFusedLinearDPOLoss(use_ref_model=False)
    vars(loss).update(options)
    with pytest.raises(ValueError, match=re.escape(message)):
        loss(head, hidden, TARGET)
