"""Losses of answers, the formulas; ``_chunked`` has the peer's names and arguments.

For those of pairs the first half of a batch is chosen and the second rejected; KTO takes answers that are not paired.
Each answer's log-probability comes from ``liger.ops.linear_token_logprobs``, without the full logits; means and sums of
logits come from those of hidden states and head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from liger import ops


class Pairs(NamedTuple):
    """What a loss of pairs is computed from, and what is logged beside it.

    Attributes:
        chosen, rejected: log-probability of each answer (B,), its tokens' sum or mean.
        ref_chosen, ref_rejected: the reference's (B,), or 0.0 without one.
        nll: mean over the tokens of the chosen answers, scalar; 0 where not asked for.
        logits: means of all logits of the chosen and of the rejected answers, two scalars without a gradient.
    """

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor | float
    ref_rejected: Tensor | float
    nll: Tensor
    logits: tuple[Tensor, Tensor]


Aux = tuple[Tensor, ...]


# -- From hidden states to pairs ---------------------------------------------------------------------------------------
def pairs(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    *,
    ref: tuple[Tensor, Tensor, Tensor | None] | None = None,
    nll: bool,
    nll_target: Tensor | None = None,
    average: bool,
    ignore_index: int,
) -> Pairs:
    """Hidden states (2 B, T, H), labels (2 B, T), not shifted here; ``nll_target`` as the labels or of the chosen half.

    Raises:
        ValueError: an odd batch.
    """
    if target.shape[0] % 2:
        raise ValueError(f"a preference loss takes chosen and rejected answers, but the batch is {target.shape[0]}")
    half = target.shape[0] // 2
    tokens = token_logprobs(hidden, weight, target, bias, ignore_index)
    reference: tuple[Tensor | float, ...] = (0.0, 0.0)
    if ref is not None:
        with torch.no_grad():
            ref_tokens = token_logprobs(*ref[:2], target, ref[2], ignore_index)
            reference = torch.split(answers(ref_tokens, target, average, ignore_index), half)
    chosen, rejected = torch.split(answers(tokens, target, average, ignore_index), half)
    loss = tokens.new_zeros(())
    if nll:
        labels = target[:half]
        if nll_target is not None:
            labels = nll_target[:half]
            tokens = token_logprobs(hidden[:half], weight, labels, bias, ignore_index)
        loss = -tokens[:half].sum() / (labels != ignore_index).sum()
    means = tuple(mean_logits(part, weight, bias) for part in torch.split(hidden, half))
    return Pairs(chosen, rejected, reference[0], reference[1], loss, (means[0], means[1]))


def token_logprobs(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int) -> Tensor:
    """Log-probability of each label (2 B, T), 0 where ignored."""
    return ops.linear_token_logprobs(hidden, weight, target, bias, ignore_index=ignore_index).logprobs  # type: ignore[no-any-return]


def answers(tokens: Tensor, target: Tensor, average: bool, ignore_index: int) -> Tensor:
    """Of each answer (2 B,): the sum over its tokens, or the mean."""
    total = tokens.sum(-1)
    return total / (target != ignore_index).sum(-1) if average else total


def mean_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Mean of all logits, which is that of the mean hidden state under the mean row of the head. No gradient."""
    with torch.no_grad():
        mean = hidden.reshape(-1, hidden.shape[-1]).float().mean(0) @ weight.float().mean(0)
        return mean if bias is None else mean + bias.float().mean()


# -- The losses of pairs -----------------------------------------------------------------------------------------------
def orpo(p: Pairs, beta: float) -> tuple[Tensor, Aux]:
    """Odds ratio (Hong et al. 2024), of mean log-probabilities."""
    odds = p.chosen - p.rejected - (torch.log1p(-p.chosen.exp()) - torch.log1p(-p.rejected.exp()))
    ratio = logsigmoid(odds)
    return -beta * ratio.mean(), (beta * p.chosen, beta * p.rejected, ratio.mean(), odds.mean())


def _smoothed(z: Tensor, label_smoothing: float) -> Tensor:
    """Mean of -log sigmoid(z), with a share ``label_smoothing`` of the labels the other way round."""
    return -((1 - label_smoothing) * logsigmoid(z) + label_smoothing * logsigmoid(-z)).mean()


def cpo(p: Pairs, beta: float, label_smoothing: float) -> tuple[Tensor, Aux]:
    """Contrastive preference (Xu et al. 2024)."""
    loss = _smoothed(beta * (p.chosen - p.rejected), label_smoothing)
    return loss, (beta * p.chosen, beta * p.rejected)


def simpo(p: Pairs, beta: float, label_smoothing: float, gamma: float) -> tuple[Tensor, Aux]:
    """SimPO (Meng et al. 2024), of mean log-probabilities."""
    loss = _smoothed(beta * (p.chosen - p.rejected) - gamma, label_smoothing)
    return loss, (beta * p.chosen, beta * p.rejected)


def dpo(p: Pairs, beta: float, loss_type: str, label_smoothing: float, discopop_tau: float) -> tuple[Tensor, Aux]:
    """DPO (Rafailov et al. 2023) and its kin, of options that ``check_dpo`` has seen."""
    chosen, rejected = p.chosen - p.ref_chosen, p.rejected - p.ref_rejected
    z = beta * (chosen - rejected)
    loss = DPO[loss_type](z, beta * chosen, beta * rejected, beta, label_smoothing, discopop_tau)
    return loss.mean(), (beta * chosen, beta * rejected)


def check_dpo(beta: float, loss_type: str, label_smoothing: float, discopop_tau: float) -> None:
    """Refuse options for which the loss is not defined; called before anything is computed.

    The phrases that the peer's errors have are in these too, for code that looks for them.

    Raises:
        ValueError: an unknown ``loss_type``, a number that it does not have, or one that makes it divide by 0.
    """
    if loss_type not in DPO:
        raise ValueError(f"DPO: Unsupported loss_type {loss_type!r}, Liger has {', '.join(DPO)}")
    why = f"for loss_type={loss_type!r}"
    if label_smoothing and loss_type not in ("sigmoid", "robust", "exo_pair"):
        raise ValueError(f"DPO: there is no label_smoothing {why}, got {label_smoothing}")
    if loss_type == "robust" and not 0 <= label_smoothing < 0.5:
        raise ValueError(f"DPO: label_smoothing must lie in [0.0, 0.5) {why}, got {label_smoothing}")
    if loss_type == "exo_pair" and not 0 < label_smoothing < 1:
        raise ValueError(f"DPO: label_smoothing must be > 0 {why}, and below 1, got {label_smoothing}")
    if loss_type == "discopop" and not discopop_tau > 0:
        raise ValueError(f"DPO: discopop_tau must be > 0 {why}, got {discopop_tau}")
    if loss_type == "sppo_hard" and not beta > 0:
        raise ValueError(f"DPO: beta must be > 0 {why}, got {beta}")


def _sigmoid(z: Tensor, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float) -> Tensor:
    return -(1 - smoothing) * logsigmoid(z) - smoothing * logsigmoid(-z)


def _robust(z: Tensor, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float) -> Tensor:
    return (smoothing * logsigmoid(-z) - (1 - smoothing) * logsigmoid(z)) / (1 - 2 * smoothing)


def _exo(z: Tensor, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float) -> Tensor:
    won, lost = torch.sigmoid(z), torch.sigmoid(-z)
    return won * (logsigmoid(z) - math.log1p(-smoothing)) + lost * (logsigmoid(-z) - math.log(smoothing))


def _discopop(z: Tensor, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float) -> Tensor:
    blend = torch.sigmoid(z / tau)
    return -logsigmoid(z) * (1 - blend) + torch.exp(-z) * blend


Rule = Callable[[Tensor, Tensor, Tensor, float, float, float], Tensor]
DPO: dict[str, Rule] = {
    "sigmoid": _sigmoid,
    "robust": _robust,
    "discopop": _discopop,
    "exo_pair": _exo,
    "hinge": lambda z, c, r, b, e, t: torch.relu(1 - z),
    "nca_pair": lambda z, c, r, b, e, t: -logsigmoid(c) - 0.5 * logsigmoid(-c) - 0.5 * logsigmoid(-r),
    "bco_pair": lambda z, c, r, b, e, t: -logsigmoid(c) - logsigmoid(-r),
    "sppo_hard": lambda z, c, r, b, e, t: (c / b - 0.5 / b) ** 2 + (r / b + 0.5 / b) ** 2,
    "apo_zero": lambda z, c, r, b, e, t: 1 - torch.sigmoid(c) + torch.sigmoid(r),
    "apo_down": lambda z, c, r, b, e, t: torch.sigmoid(c) + 1 - torch.sigmoid(z),
}
"""Loss of each pair (B,) from z = c - r, c and r (times beta), beta, label smoothing and tau."""


# -- Answers that are not paired ---------------------------------------------------------------------------------------
def kto(ratio: Tensor, liked: Tensor, kl: Tensor | float, beta: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """KTO (Ethayarajh et al. 2024) of log-ratios to the reference (B,); the loss, and sums of rewards of both kinds."""
    sign = torch.where(liked, 1.0, -1.0)
    loss = 1 - torch.sigmoid(beta * (ratio - kl) * sign)
    return loss.mean(), by_kind(beta * ratio, liked)


def by_kind(values: Tensor, liked: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the answers that were liked, and over the others."""
    return (values * liked).sum(), (values * ~liked).sum()


def sums_of_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sum over tokens and classes of each answer's logits (B,), from those of hidden states and head. No gradient."""
    with torch.no_grad():
        total = hidden.float().sum(1) @ weight.float().sum(0)
        return total if bias is None else total + hidden.shape[1] * bias.float().sum()
