"""``liger_kernel.chunked_loss``: losses from hidden states and a head, with the peer's names and positional arguments.

Each returns the loss and a tuple of numbers to log, which have no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liger import ops
from liger_kernel import _pairs, _said
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
        NotImplementedError: an unknown ``loss_type``.
        ValueError: ``use_ref_model`` without a reference, or a number that ``loss_type`` cannot take.
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
JSDFunction = applied("LigerFusedLinearJSDFunction", jsd)
