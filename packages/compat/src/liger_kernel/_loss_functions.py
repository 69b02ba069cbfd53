"""The losses as in ``_functions``: the peer's positional arguments, answered by ``liger.ops``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from liger import ops
from liger.numerics import acc
from liger_kernel import _said
from liger_kernel._functions import CHOSEN, OURS, applied

WORKSPACE = "pass options of liger.ops.linear_cross_entropy, as workspace_mb, to liger.options"
Result4 = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]
"""Loss, z-loss, token accuracy, predicted tokens."""


# -- Cross-entropy -----------------------------------------------------------------------------------------------------
def cross_entropy(
    _input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Result4:
    """Cross-entropy of logits (rows, V): loss, and z-loss, token accuracy and predicted tokens if asked for."""
    asked = _returns(return_z_loss, return_token_accuracy, return_predicted_tokens)
    options = _options(ignore_index, lse_square_scale, label_smoothing, reduction, softcap, asked)
    found = _found(partial(ops.cross_entropy, _input, target, weight), target, weight, options)
    return _four(found, target, ignore_index, reduction, return_token_accuracy, return_predicted_tokens)


def linear_cross_entropy(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    ce_impl: str | None = None,
    ce_mode: str | None = None,
    chunk_mem_const: int = 1,
    *,
    num_items: Tensor | float | None = None,
) -> Result4:
    """Cross-entropy of ``_input @ weight.T + bias`` without the full logits; results as of ``cross_entropy``.

    ``use_token_scaling`` multiplies each row's loss by the probability of its label, which has no gradient.
    ``num_items`` divides the sum over rows, of loss and z-loss, in place of what "mean" divides by.

    Raises:
        ValueError: ``chunk_mem_const``, which does nothing here, is no positive whole number.
    """
    _said.idle("linear_cross_entropy", CHOSEN, ce_impl=(ce_impl, None), ce_mode=(ce_mode, None))
    if isinstance(chunk_mem_const, bool) or not isinstance(chunk_mem_const, int) or chunk_mem_const < 1:
        raise ValueError(
            f"linear_cross_entropy: chunk_mem_const is {chunk_mem_const!r}, expected a whole number of at least 1"
        )
    _said.idle("linear_cross_entropy", WORKSPACE, chunk_mem_const=(chunk_mem_const, 1))
    asked = _returns(return_z_loss, return_token_accuracy, return_predicted_tokens)
    options = _options(ignore_index, lse_square_scale, label_smoothing, reduction, softcap, asked)
    options |= {"accum_dtype": accum_dtype, "num_items": num_items}
    if use_token_scaling:
        options |= _token_scaling(_input, weight, target, bias, ce_weight, options)
    call = partial(ops.linear_cross_entropy, _input, weight, target, bias, ce_weight)
    found = _found(call, target, ce_weight, options)
    return _four(found, target, ignore_index, reduction, return_token_accuracy, return_predicted_tokens)


def _options(
    ignore_index: int,
    lse_square_scale: float,
    label_smoothing: float,
    reduction: str,
    softcap: float | None,
    returns: tuple[str, ...],
) -> dict[str, Any]:
    """What both cross-entropies take, in the words of ``liger.ops``."""
    return {
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
        "softcap": softcap,
        "z_loss": lse_square_scale,
        "returns": returns,
    }


def _token_scaling(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ce_weight: Tensor | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Changed options: a row counts by its label's probability, and "mean" still divides by the unscaled weights."""
    shared = {name: options[name] for name in ("ignore_index", "softcap")}
    with torch.no_grad():
        logprobs = ops.linear_token_logprobs(hidden, weight, target, bias, **shared)
    scaling = {"token_weight": logprobs.logprobs.exp()}
    if options["reduction"] != "mean" or options["num_items"] is not None:
        return scaling
    return {**scaling, "reduction": "sum", "num_items": _weights(target, ce_weight, options["ignore_index"]).sum()}


def _weights(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """How much each row counts: 0 where ignored, else 1 or the weight of its class."""
    kept = target != ignore_index
    return kept if weight is None else acc(weight)[target.clamp(0, weight.shape[0] - 1).long()] * kept


def _found(call: Callable[..., Any], target: Tensor, weight: Tensor | None, options: dict[str, Any]) -> Any:
    """What our op returns, with the peer's mean, in which the sum of class weights does not divide the z-loss."""
    mean = options["reduction"] == "mean" and options.get("num_items") is None
    if weight is None or not options["z_loss"] or not mean:
        return call(**options)
    asked = options["returns"]
    rows = call(**{**options, "reduction": "none", "returns": (*asked, *({"z_loss"} - {*asked}))})
    z_loss = rows.z_loss.sum() / (target != options["ignore_index"]).sum()
    loss = (rows.loss - rows.z_loss).sum() / _weights(target, weight, options["ignore_index"]).sum() + z_loss
    return rows._replace(loss=loss, z_loss=z_loss) if asked else loss


def _returns(z_loss: bool, accuracy: bool, predictions: bool) -> tuple[str, ...]:
    """What to ask our op for."""
    asked = {"z_loss": z_loss, "token_accuracy": accuracy, "predictions": predictions or accuracy}
    return tuple(name for name, wanted in asked.items() if wanted)


def _four(found: Any, target: Tensor, ignore_index: int, reduction: str, accuracy: bool, predictions: bool) -> Result4:
    """Our result as the peer's four: accuracy by row where nothing is reduced, -1 predicted where ignored."""
    if isinstance(found, Tensor):
        return found, None, None, None
    ignored, best = target == ignore_index, found.predictions
    right = found.token_accuracy
    if accuracy and reduction == "none":
        right = ((best == target) & ~ignored).float()
    z_loss = None if found.z_loss is None else found.z_loss.detach()
    return found.loss, z_loss, right, best.masked_fill(ignored, -1) if predictions else None


def linear_scaled_cross_entropy(
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    temperature: float = 1.0,
    ignore_index: int = -100,
    m_tiles_per_cluster: int = 1,
    return_entropy: bool = False,
    selected_token_ids: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Negative log-probability of each label (rows,) at a temperature, and the entropy if asked for.

    Raises:
        NotImplementedError: ``selected_token_ids`` are given.
    """
    if selected_token_ids is not None:
        raise NotImplementedError("linear_scaled_cross_entropy: selected_token_ids has no kernel in Liger yet")
    _said.idle("linear_scaled_cross_entropy", OURS, m_tiles_per_cluster=(m_tiles_per_cluster, 1))
    found = ops.linear_token_logprobs(_input, weight, target, ignore_index=ignore_index, temperature=temperature)
    return (-found.logprobs, found.entropy) if return_entropy else -found.logprobs


@torch.no_grad()
def selective_log_softmax(
    logits: Tensor, input_ids: Tensor, temperature: float = 0.9, mask: Tensor | None = None
) -> Tensor:
    """Log-probability of each token under logits (B, L + 1, V), whose last are left out: (B, L) fp32, no gradient.

    Of ``input_ids``, and of ``mask``, the last L columns count; where the mask is 0 the result is 0.
    """
    length = logits.shape[1] - 1
    labels = input_ids[:, input_ids.shape[1] - length :]
    if mask is not None:
        labels = labels.masked_fill(mask[:, mask.shape[1] - length :] == 0, -100)
    return -ops.cross_entropy(logits[:, :-1], labels, reduction="none", temperature=temperature)  # type: ignore[no-any-return]


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    tp_group: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    label_smoothing_formula: str = "pytorch",
    label_smoothing_mode: str = "global",
) -> Tensor:
    """Loss of each token over logits (..., V of this rank), targets (...,) as global ids.

    Raises:
        NotImplementedError: smoothing by another formula than torch's over the whole vocabulary.
    """
    if label_smoothing and (label_smoothing_formula, label_smoothing_mode) != ("pytorch", "global"):
        raise NotImplementedError(
            f"vocab_parallel_cross_entropy: label smoothing by "
            f"{(label_smoothing_formula, label_smoothing_mode)}, Liger has ('pytorch', 'global')"
        )
    return ops.vocab_parallel_cross_entropy(  # type: ignore[no-any-return]
        vocab_parallel_logits,
        target,
        group=tp_group,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )


# -- Divergences -------------------------------------------------------------------------------------------------------
def jsd(
    _input: Tensor,
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
    jsd_impl: str | None = None,
    jsd_mode: str | None = None,
) -> Tensor:
    """Mean over kept rows, 0 without any, of the divergence of log-probabilities (rows, V): student, teacher.

    The teacher gets no gradient.
    """
    _said.idle("jsd", CHOSEN, jsd_impl=(jsd_impl, None), jsd_mode=(jsd_mode, None))
    mean = _mean(shift_labels, ignore_index)
    return ops.jsd(_input, target.detach(), shift_labels, beta=beta, ignore_index=ignore_index, **mean)  # type: ignore[no-any-return]


def _mean(labels: Tensor | None, ignore_index: int) -> dict[str, Any]:
    """Options for a mean that is 0 where all rows are ignored."""
    if labels is None:
        return {}
    return {"reduction": "sum", "num_items": (labels != ignore_index).sum().clamp(min=1)}


def linear_jsd(
    student_input: Tensor,
    student_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    shift_labels: Tensor | None = None,
    jsd_beta: float = 0.5,
    ignore_index: int = -100,
    temperature: float = 1.0,
    accum_dtype: torch.dtype | None = None,
    jsd_impl: str | None = None,
    jsd_mode: str | None = None,
) -> Tensor:
    """The same of two heads' logits, without the full logits."""
    _said.idle("linear_jsd", CHOSEN, jsd_impl=(jsd_impl, None), jsd_mode=(jsd_mode, None))
    return ops.linear_jsd(  # type: ignore[no-any-return]
        student_input,
        student_weight,
        teacher_input.detach(),
        teacher_weight.detach(),
        shift_labels,
        beta=jsd_beta,
        ignore_index=ignore_index,
        temperature=temperature,
        accum_dtype=accum_dtype,
        **_mean(shift_labels, ignore_index),
    )


def kl_div(
    y_pred: Tensor, y_true: Tensor, reduction: str = "batchmean", log_target: bool = False, eps: float = 1e-10
) -> Tensor:
    """KL(y_true || y_pred) of log-probabilities y_pred (rows, V) and probabilities y_true."""
    _said.idle("kl_div", "0 log 0 is 0 exactly", eps=(eps, 1e-10))
    return ops.kl_div(y_pred, y_true, reduction=reduction, log_target=log_target)  # type: ignore[no-any-return]


def tvd(
    p: Tensor,
    q: Tensor,
    shift_labels: Tensor | None = None,
    reduction: str = "batchmean",
    ignore_index: int = -100,
) -> Tensor:
    """Half the absolute difference of probabilities (rows, V); ``liger.ops.tvd`` takes logits instead and is fused."""
    kept = torch.ones_like(p[:, 0], dtype=torch.bool) if shift_labels is None else shift_labels != ignore_index
    terms = 0.5 * (acc(p) - acc(q)).abs() * kept[:, None]
    if reduction == "none":
        return terms
    rows = kept.sum()  # int64: a 16-bit dtype of p cannot count
    count = {"sum": torch.ones_like(rows), "batchmean": rows, "mean": rows * p.shape[-1]}
    if reduction not in count:
        raise ValueError(f"tvd: reduction is {reduction!r}, expected none or one of {', '.join(count)}")
    return terms.sum() / count[reduction]


LigerCrossEntropyFunction = applied("LigerCrossEntropyFunction", cross_entropy)
LigerFusedLinearCrossEntropyFunction = applied("LigerFusedLinearCrossEntropyFunction", linear_cross_entropy)
LigerFusedLinearScaledCrossEntropyFunction = applied(
    "LigerFusedLinearScaledCrossEntropyFunction", linear_scaled_cross_entropy
)
LigerVocabParallelCEFunction = applied("LigerVocabParallelCEFunction", vocab_parallel_cross_entropy)
LigerJSDFunction = applied("LigerJSDFunction", jsd)
LigerFusedLinearJSDFunction = applied("LigerFusedLinearJSDFunction", linear_jsd)
LigerKLDivLossFunction = applied("LigerKLDivLossFunction", kl_div)
LigerTVDLossFunction = applied("LigerTVDLossFunction", tvd)
