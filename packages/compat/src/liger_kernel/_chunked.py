"""``liger_kernel.chunked_loss``: losses from hidden states and a head, with the peer's names and positional arguments.

Each returns the loss and a tuple of numbers to log, which have no gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from liger import ops
from liger_kernel import _pairs, _policy, _said
from liger_kernel._functions import applied

Result = tuple[Tensor, tuple[Tensor, ...]]


def _idle(where: str, compiled: bool, chunk_size: int, default: int = 1) -> None:
    why = "liger.ops cut the work up; their options are set with liger.options"
    _said.idle(where, why, compiled=(compiled, True), chunk_size=(chunk_size, default))


def _result(loss: Tensor, aux: _pairs.Aux, p: _pairs.Pairs, alpha: float = 1.0) -> Result:
    """The whole loss; log-probabilities (B,) of both answers, means of their logits, NLL, and what the loss adds."""
    logged = (p.chosen, p.rejected, *p.logits, p.nll, *aux)
    return loss + alpha * p.nll, tuple(value.detach() for value in logged)


# -- Functions ---------------------------------------------------------------------------------------------------------
def orpo(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    beta: float = 0.1,
    compute_nll_loss: bool = True,
    nll_target: Tensor | None = None,
    compiled: bool = True,
    chunk_size: int = 1,
) -> Result:
    """ORPO of hidden states (2 B, T, H), head (V, H) and labels (2 B, T)."""
    _idle("ORPO", compiled, chunk_size)
    p = _pairs.pairs(
        _input,
        weight,
        target,
        bias,
        nll=compute_nll_loss,
        nll_target=nll_target,
        average=True,
        ignore_index=ignore_index,
    )
    return _result(*_pairs.orpo(p, beta), p)


def cpo(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    beta: float = 0.1,
    alpha: float = 1.0,
    label_smoothing: float = 0.0,
    compute_nll_loss: bool = True,
    compiled: bool = True,
    average_log_prob: bool = False,
    chunk_size: int = 1,
) -> Result:
    """CPO; shapes as of ``orpo``."""
    _idle("CPO", compiled, chunk_size)
    p = _pairs.pairs(
        _input,
        weight,
        target,
        bias,
        nll=compute_nll_loss,
        average=average_log_prob,
        ignore_index=ignore_index,
    )
    return _result(*_pairs.cpo(p, beta, label_smoothing), p, alpha)


def simpo(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    beta: float = 0.1,
    alpha: float = 1.0,
    label_smoothing: float = 0.0,
    compute_nll_loss: bool = False,
    compiled: bool = True,
    gamma: float = 0.5,
    chunk_size: int = 1,
) -> Result:
    """SimPO; shapes as of ``orpo``."""
    _idle("SimPO", compiled, chunk_size)
    p = _pairs.pairs(
        _input,
        weight,
        target,
        bias,
        nll=compute_nll_loss,
        average=True,
        ignore_index=ignore_index,
    )
    return _result(*_pairs.simpo(p, beta, label_smoothing, gamma), p, alpha)


def dpo(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    ignore_index: int = -100,
    beta: float = 0.1,
    compute_nll_loss: bool = False,
    compiled: bool = True,
    use_ref_model: bool = True,
    average_log_prob: bool = False,
    chunk_size: int = 1,
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
    discopop_tau: float = 0.05,
    alpha: float = 1.0,
) -> Result:
    """DPO and its kin; shapes as of ``orpo``, the reference's hidden states and head beside them.

    Raises:
        ValueError: ``use_ref_model`` without a reference, an unknown ``loss_type``, or a number that it cannot take.
    """
    _idle("DPO", compiled, chunk_size)
    _pairs.check_dpo(beta, loss_type, label_smoothing, discopop_tau)
    ref = (*_reference("DPO", ref_input, ref_weight), ref_bias) if use_ref_model else None
    p = _pairs.pairs(
        _input,
        weight,
        target,
        bias,
        ref=ref,
        nll=compute_nll_loss,
        average=average_log_prob,
        ignore_index=ignore_index,
    )
    return _result(*_pairs.dpo(p, beta, loss_type, label_smoothing, discopop_tau), p, alpha)


def kto(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    preference_labels: Tensor,
    bias: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    kl: Tensor | float | None = None,
    ignore_index: int = -100,
    beta: float = 0.1,
    compiled: bool = True,
    use_ref_model: bool = True,
    average_log_prob: bool = False,
    chunk_size: int = 1,
) -> Result:
    """KTO of hidden states (B, T, H), head (V, H), labels (B, T) and whether each answer was liked (B,).

    Logged are sums over the answers of either kind: log-probabilities, logits, rewards.

    Raises:
        ValueError: ``use_ref_model`` without a reference, or ``preference_labels`` of another shape.
    """
    _idle("KTO", compiled, chunk_size)
    ref = (*_reference("KTO", ref_input, ref_weight), target, ref_bias) if use_ref_model else None
    if preference_labels.shape != target.shape[:1]:
        found, expected = tuple(preference_labels.shape), tuple(target.shape[:1])
        raise ValueError(f"KTO: preference_labels has shape {found}, expected {expected}, one for each answer")
    counts = (target, average_log_prob, ignore_index)
    logps = _pairs.answers(_pairs.token_logprobs(_input, weight, target, bias, ignore_index), *counts)
    ratio = logps
    if ref is not None:
        with torch.no_grad():
            tokens = _pairs.token_logprobs(*ref, ignore_index)
        ratio = logps - _pairs.answers(tokens, *counts)
    liked = preference_labels.bool()
    loss, rewards = _pairs.kto(ratio, liked, 0.0 if kl is None else kl, beta)
    logits = _pairs.sums_of_logits(_input, weight, bias)
    logged = (*_pairs.by_kind(logps, liked), *_pairs.by_kind(logits, liked), *rewards)
    return loss, tuple(value.detach() for value in logged)


def _reference(name: str, hidden: Tensor | None, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Hidden states and head of the reference, which ``use_ref_model`` needs."""
    if hidden is None or weight is None:
        raise ValueError(f"{name}: use_ref_model is True, but ref_input or ref_weight was not given")
    return hidden, weight


def grpo(
    _input: Tensor,
    weight: Tensor,
    selected_token_ids: Tensor,
    attention_mask: Tensor,
    advantages: Tensor,
    bias: Tensor | None = None,
    ref_per_token_logps: Tensor | None = None,
    old_per_token_logps: Tensor | None = None,
    ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None,
    ref_bias: Tensor | None = None,
    beta: float = 0.04,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    loss_type: str = "dapo",
    max_completion_length: int | None = None,
    importance_sampling_level: str = "token",
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    temperature: float = 1.0,
    compiled: bool = True,
    use_ref_model: bool = True,
    chunk_size: int = 1,
    vllm_is_ratio: Tensor | None = None,
    delta: float | None = None,
    use_bias_correction_kl: bool = False,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
    num_items_in_batch: Tensor | float | None = None,
) -> Result:
    """GRPO and its kin, of hidden states (B, T, H), head (V, H), sampled tokens and their mask (B, T), advantages (B,).

    Logged are means over tokens: of the divergence from the reference, unless ``beta`` is 0, and of clipped ratios.

    Raises:
        ValueError: shapes that do not match, ``use_ref_model`` without a reference, an option that ``loss_type``
            needs or cannot take.
    """
    policy = _policy.Policy(**{name: value for name, value in locals().items() if name in _policy.Policy._fields})
    policy.check()
    _idle("GRPO", compiled, chunk_size)
    if loss_type in _policy.OTHERS:
        _said.idle("GRPO", f"{loss_type!r} clips no ratio from two sides", delta=(delta, None))
    shape = selected_token_ids.shape
    _check_shape("attention_mask", attention_mask, shape)
    _check_shape("advantages", advantages, shape[:1])
    for name, given in (("old_per_token_logps", old_per_token_logps), ("ref_per_token_logps", ref_per_token_logps)):
        if given is not None:
            _check_shape(name, given, shape)
    if vllm_is_ratio is not None:
        _check_shape("vllm_is_ratio", vllm_is_ratio, shape, (shape[0], 1), shape[:1])
        vllm_is_ratio = vllm_is_ratio.reshape(shape[0], -1)
    tokens = functools.partial(_tokens, ids=selected_token_ids, temperature=temperature)
    logps = tokens(_input, weight, bias)
    old = logps.detach() if old_per_token_logps is None else old_per_token_logps
    ref = logps.detach() if ref_per_token_logps is None else ref_per_token_logps
    if beta and ref_input is not None and ref_per_token_logps is not None:
        _said.once("GRPO: Using ref_per_token_logps; ref_input, which was given too, does nothing")
    elif beta and use_ref_model and ref_per_token_logps is None:
        with torch.no_grad():
            ref = tokens(*_reference("GRPO", ref_input, ref_weight), ref_bias)
    rollout = _policy.Rollout(logps, old, ref, attention_mask.to(logps.dtype), advantages.unsqueeze(1), vllm_is_ratio)
    loss, logged = _policy.policy_loss(policy, rollout, num_items_in_batch)
    return loss, tuple(value.detach() for value in logged)


def _check_shape(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    if tensor.shape not in shapes:
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"GRPO: {name} has shape {tuple(tensor.shape)}, expected {expected}")


def _tokens(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, temperature: float) -> Tensor:
    """Log-probability of each sampled token (B, T); hidden states may be (B T, H)."""
    hidden = hidden.reshape(*ids.shape, hidden.shape[-1])
    return ops.linear_token_logprobs(hidden, weight, ids, bias, temperature=temperature).logprobs  # type: ignore[no-any-return]


def jsd(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    true_labels: Tensor,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    weight_hard_loss: float = 0.5,
    weight_soft_loss: float = 0.5,
    beta: float = 0.5,
    ignore_index: int = -100,
    temperature: float = 1.0,
    compiled: bool = True,
    chunk_size: int = 1024,
    return_soft_hard_loss: bool = False,
) -> Any:
    """Distillation of hidden states (rows, H), heads (V, H), labels (rows,): the loss, and its terms if asked for."""
    _idle("JSD", compiled, chunk_size, 1024)
    teacher = (teacher_input.detach(), teacher_weight.detach())
    biases = (student_bias, None if teacher_bias is None else teacher_bias.detach())
    both = (student_input, student_weight, *teacher, true_labels, *biases)
    options = {"beta": beta, "ignore_index": ignore_index, "temperature": temperature}
    total = weight_hard_loss + weight_soft_loss
    if total and not return_soft_hard_loss:
        return total * ops.linear_jsd(*both, hard_weight=weight_hard_loss / total, **options)
    hard = ops.linear_cross_entropy(student_input, student_weight, true_labels, student_bias, ignore_index=ignore_index)
    soft = ops.linear_jsd(*both, **options)
    loss = weight_hard_loss * hard + weight_soft_loss * soft
    return (loss, soft.detach(), hard.detach()) if return_soft_hard_loss else loss


LigerFusedLinearORPOFunction = applied("LigerFusedLinearORPOFunction", orpo)
LigerFusedLinearCPOFunction = applied("LigerFusedLinearCPOFunction", cpo)
LigerFusedLinearSimPOFunction = applied("LigerFusedLinearSimPOFunction", simpo)
LigerFusedLinearDPOFunction = applied("LigerFusedLinearDPOFunction", dpo)
LigerFusedLinearKTOFunction = applied("LigerFusedLinearKTOFunction", kto)
LigerFusedLinearGRPOFunction = applied("LigerFusedLinearGRPOFunction", grpo)
JSDFunction = applied("LigerFusedLinearJSDFunction", jsd)
