"""Losses of policy optimisation, the formulas; ``_chunked.grpo`` has the peer's names and arguments.

Log-probabilities of the sampled tokens (B, T) come from ``liger.ops.linear_token_logprobs``, without the full logits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, distributed

CLIPPING = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
OTHERS = ("cispo", "sapo", "vespo")


class Policy(NamedTuple):
    """The options of a loss; TRL and the papers of each ``loss_type`` call them so.

    Attributes:
        loss_type: one of ``CLIPPING``, which differ in how tokens are averaged, or of ``OTHERS``.
        beta: weight of the KL divergence from the reference.
        epsilon_low, epsilon_high: a ratio is clipped to [1 - low, 1 + high]; by "cispo" to at most ``epsilon_high``.
        delta: what an unclipped ratio is at most, or None.
        importance_sampling_level: whether a ratio is a token's, or the geometric mean of an answer's ("sequence").
        max_completion_length: of "dr_grpo", tokens by which each answer is divided.
        use_bias_correction_kl: weigh the divergence of each token by its ratio.
        sapo_temperature_pos, sapo_temperature_neg: slopes of the gate of "sapo", by the sign of the advantage.
        vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg: the gamma weights of "vespo", likewise.
    """

    loss_type: str
    beta: float
    epsilon_low: float
    epsilon_high: float
    delta: float | None
    importance_sampling_level: str
    max_completion_length: int | None
    use_bias_correction_kl: bool
    sapo_temperature_pos: float
    sapo_temperature_neg: float
    vespo_k_pos: float
    vespo_lambda_pos: float
    vespo_k_neg: float
    vespo_lambda_neg: float

    def check(self) -> None:
        """Refuse what the loss is not defined for; called before anything is computed.

        Raises:
            ValueError: an unknown word, or an option that ``loss_type`` needs or cannot take.
        """
        if self.loss_type not in CLIPPING + OTHERS:
            raise ValueError(f"GRPO: loss_type is {self.loss_type!r}, Liger has {', '.join(CLIPPING + OTHERS)}")
        if self.importance_sampling_level not in ("token", "sequence"):
            raise ValueError(
                f"GRPO: importance_sampling_level is {self.importance_sampling_level!r}, expected 'token' or 'sequence'"
            )
        if self.importance_sampling_level == "sequence" and self.loss_type in OTHERS:
            raise ValueError(f"Sequence-level importance sampling is not supported for loss_type={self.loss_type!r}")
        if self.loss_type == "dr_grpo" and not self.max_completion_length:
            raise ValueError("GRPO: loss_type 'dr_grpo' needs max_completion_length")
        check_positive(self.sapo_temperature_pos, self.sapo_temperature_neg, self.delta)


def check_positive(sapo_temperature_pos: float, sapo_temperature_neg: float, delta: float | None) -> None:
    """Refuse slopes and a bound that are not above 0, whatever the ``loss_type``, as the peer does.

    Raises:
        ValueError: one is not.
    """
    for name, value in {**locals(), "delta": 1.0 if delta is None else delta}.items():
        if not value > 0:
            raise ValueError(f"GRPO: {name} must be positive, got {value}")


class Rollout(NamedTuple):
    """Sampled answers.

    Attributes:
        logps: log-probability of each token under the policy (B, T), with a gradient.
        old: those under the policy that sampled them (B, T).
        ref: those under the reference (B, T).
        mask: 1 for the tokens that count, 0 for padding (B, T).
        advantages: of each answer (B, 1).
        correction: what the losses of tokens are multiplied by (B, T) or (B, 1), for the sampler was not quite the old
            policy; or None.
    """

    logps: Tensor
    old: Tensor
    ref: Tensor
    mask: Tensor
    advantages: Tensor
    correction: Tensor | None


def policy_loss(p: Policy, r: Rollout, num_items: Tensor | float | None) -> tuple[Tensor, list[Tensor]]:
    """The loss; and means over tokens: of the divergence, if ``beta`` is not 0, and of whether a ratio was clipped."""
    log_ratio = r.logps - r.old
    if p.importance_sampling_level == "sequence":
        log_weight = (log_ratio * r.mask).sum(-1, keepdim=True) / r.mask.sum(-1, keepdim=True).clamp(min=1)
    else:
        log_weight = log_ratio
    weight = log_weight.exp()
    losses = -_objective(p, r, log_ratio, weight)
    if r.correction is not None and p.loss_type != "vespo":
        losses = losses * r.correction
    logged = []
    if p.beta:
        gap = r.ref - r.logps
        divergence = gap.exp() - gap - 1  # never negative, and right on average: Schulman's third estimate
        if p.use_bias_correction_kl:
            divergence = divergence * weight
        losses = losses + p.beta * divergence
        logged.append(_mean(divergence, r.mask))
    logged.append(_mean(_clipped(p, weight, r.advantages), r.mask))
    return _reduced(p, losses, r.mask, num_items), logged


def _objective(p: Policy, r: Rollout, log_ratio: Tensor, weight: Tensor) -> Tensor:
    """What is maximised, by token (B, T), or (B, 1) of whole answers."""
    if p.loss_type == "cispo":
        return weight.clamp(max=p.epsilon_high).detach() * r.advantages * r.logps
    if p.loss_type == "vespo":
        return _gamma_weights(p, r, log_ratio) * r.advantages * r.logps
    if p.loss_type == "sapo":
        slope = torch.where(r.advantages > 0, p.sapo_temperature_pos, p.sapo_temperature_neg)
        return torch.sigmoid(slope * (weight - 1)) * 4 / slope * r.advantages
    clipped = weight.clamp(1 - p.epsilon_low, 1 + p.epsilon_high)
    free = weight if p.delta is None else weight.clamp(max=p.delta)
    return torch.minimum(free * r.advantages, clipped * r.advantages)


@torch.no_grad()
def _gamma_weights(p: Policy, r: Rollout, log_ratio: Tensor) -> Tensor:
    """``w^k exp(lambda - lambda w)`` of each answer's whole ratio w (B, 1), which is 1 at w = 1."""
    least = math.log(1e-8)
    log_w = (log_ratio.clamp(-20, 20) * r.mask).sum(-1, keepdim=True)
    if r.correction is not None:
        each = r.correction if r.correction.shape[-1] == 1 else r.correction.where(r.mask > 0, 1.0)
        log_w = log_w + each.log().clamp(least, 20).sum(-1, keepdim=True)
    log_w = log_w.clamp(least, 20)
    gains = r.advantages >= 0
    k = torch.where(gains, p.vespo_k_pos, p.vespo_k_neg)
    rate = torch.where(gains, p.vespo_lambda_pos, p.vespo_lambda_neg).clamp(min=1e-4)
    return (rate + k * log_w - rate * log_w.exp()).exp()


def _clipped(p: Policy, weight: Tensor, advantages: Tensor) -> Tensor:
    """Whether clipping took the gradient of a token."""
    if p.loss_type in ("sapo", "vespo"):
        return torch.zeros_like(weight)
    above = (weight > (p.epsilon_high if p.loss_type == "cispo" else 1 + p.epsilon_high)) & (advantages > 0)
    below = (weight < 1 - p.epsilon_low) & (advantages < 0)
    return above if p.loss_type == "cispo" else above | below


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def _reduced(p: Policy, losses: Tensor, mask: Tensor, num_items: Tensor | float | None) -> Tensor:
    """The mean over tokens and answers that ``loss_type`` stands for."""
    lengths = mask.sum(-1, keepdim=True)
    if p.loss_type in ("grpo", "sapo"):
        return ((losses * mask).sum(-1, keepdim=True) / lengths.clamp(min=1)).mean()
    if p.loss_type == "luspo":
        return (losses * mask).sum(-1).mean()
    if p.loss_type == "bnpo":
        return _mean(losses, mask)
    total = (losses * mask).sum()
    if p.loss_type == "dr_grpo":
        assert p.max_completion_length
        return total / (mask.shape[0] * p.max_completion_length)
    return total / _tokens_of_a_process(mask, num_items)


def _tokens_of_a_process(mask: Tensor, num_items: Tensor | float | None) -> Tensor:
    """Tokens of all processes, given or counted, divided by their number: gradients are averaged over them later."""
    several = distributed.is_available() and distributed.is_initialized()
    processes = distributed.get_world_size() if several else 1
    if num_items is not None:
        count = torch.as_tensor(num_items, device=mask.device, dtype=mask.dtype)
    else:
        count = mask.sum()
        if processes > 1:
            distributed.all_reduce(count)
    return (count / processes).clamp(min=1)
