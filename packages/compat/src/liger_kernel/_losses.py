"""The losses as modules, and the loss of a causal LM from hidden states."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from liger_hf.accuracy import shifted
from liger_kernel import _loss_functions as f


@dataclass
class CrossEntropyOutput:
    """A loss and what was asked for beside it.

    Attributes:
        loss: scalar, or (rows,) where nothing is reduced.
        z_loss: its part ``lse_square_scale * lse^2``, reduced in the same way.
        token_accuracy: share of rows whose prediction is the label, or (rows,).
        predicted_tokens: (rows,) int64, -1 where ignored.
    """

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


def packed(four: f.Result4, *asked: bool | None) -> Tensor | CrossEntropyOutput:
    """The loss alone, unless more was asked for."""
    return CrossEntropyOutput(*four) if any(asked) else four[0]


class _Loss(nn.Module):
    """A loss whose options are what its constructor was given: attributes, which may be set later too."""

    asks = ("return_z_loss", "return_token_accuracy", "return_predicted_tokens")

    def __init__(self, given: dict[str, Any]) -> None:
        """``given`` is ``locals()`` of the constructor: its arguments, and what is no option."""
        super().__init__()
        self._names = tuple(name for name in given if name not in ("self", "__class__"))
        for name in self._names:
            setattr(self, name, given[name])

    @property
    def options(self) -> dict[str, Any]:
        """Name -> value now."""
        return {name: getattr(self, name) for name in self._names}

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())

    def result(self, four: f.Result4) -> Tensor | CrossEntropyOutput:
        """The loss alone, unless more was asked for."""
        return packed(four, *(self.options[name] for name in self.asks))


class LigerCrossEntropyLoss(_Loss):
    """Cross-entropy of logits (rows, V); options as of ``LigerCrossEntropyFunction``."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        super().__init__(locals())

    def forward(self, _input: Tensor, target: Tensor) -> Tensor | CrossEntropyOutput:
        """Logits (rows, V), labels (rows,)."""
        return self.result(f.cross_entropy(_input, target, **self.options))


class LigerFusedLinearCrossEntropyLoss(_Loss):
    """The same of a head and hidden states, without the full logits."""

    def __init__(
        self,
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
    ) -> None:
        super().__init__(locals())

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor | CrossEntropyOutput:
        """The head's weight (V, H) first, hidden states (rows, H), labels (rows,), bias (V,)."""
        return self.result(f.linear_cross_entropy(_input, lin_weight, target, bias, **self.options))


class LigerVocabParallelCrossEntropy(_Loss):
    """Cross-entropy over a process group, each rank with some columns of the logits.

    Raises:
        ValueError: a reduction: as in the peer the loss is that of each token.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        label_smoothing_formula: str = "pytorch",
        label_smoothing_mode: str = "global",
    ) -> None:
        if reduction != "none":
            raise ValueError(f"LigerVocabParallelCrossEntropy: reduction is {reduction!r}, expected 'none'")
        super().__init__(locals())

    def forward(self, vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any = None) -> Tensor:
        """Logits (..., V of this rank), labels (...,) as global ids."""
        options = {name: value for name, value in self.options.items() if name != "reduction"}
        return f.vocab_parallel_cross_entropy(vocab_parallel_logits, target, tp_group, **options)


class LigerJSD(_Loss):
    """Divergence of log-probabilities, student first."""

    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None:
        super().__init__(locals())

    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        """(rows, V), (rows, V), labels (rows,) -> scalar."""
        return f.jsd(log_q, log_p, shift_labels, **self.options)


class LigerFusedLinearJSD(_Loss):
    """The same of two heads and their hidden states."""

    def __init__(
        self,
        jsd_beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        accum_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(locals())

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (rows, H) and heads (V, H) of student and teacher, labels (rows,) -> scalar."""
        heads = (student_input, student_weight, teacher_input, teacher_weight)
        return f.linear_jsd(*heads, shift_labels, **self.options)


class LigerKLDIVLoss(nn.KLDivLoss):
    """``torch.nn.KLDivLoss``; the peer's ``eps`` comes first."""

    def __init__(self, eps: float = 1e-10, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor:
        """Log-probabilities (rows, V), probabilities (rows, V)."""
        return f.kl_div(y_pred, y_true, self.reduction, self.log_target, self.eps)


class LigerTVDLoss(_Loss):
    """Half the absolute difference of probabilities."""

    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100) -> None:
        super().__init__(locals())

    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor:
        """(rows, V), (rows, V), labels (rows,)."""
        return f.tvd(p, q, shift_labels, **self.options)


# -- The loss of a causal LM -------------------------------------------------------------------------------------------
_HEAD_OPTIONS = tuple(inspect.signature(f.linear_cross_entropy).parameters)[3:]


def fixed_fused_linear_cross_entropy(
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    target: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    final_logit_softcapping: float | None = None,
    accum_dtype: torch.dtype | None = None,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    **kwargs: Any,
) -> Tensor | CrossEntropyOutput:
    """Loss of hidden states (rows, H); with ``num_items_in_batch`` the sum over rows divided by it.

    Of ``kwargs`` those count that ``LigerFusedLinearCrossEntropyFunction`` has; the others are a model's.

    Raises:
        TypeError: a ``reduction``, which follows from ``num_items_in_batch``.
    """
    if "reduction" in kwargs:
        raise TypeError(
            f"fixed_fused_linear_cross_entropy: reduction={kwargs['reduction']!r} was given, but it follows from "
            "num_items_in_batch; use liger_fused_linear_cross_entropy for another one"
        )
    options = {name: value for name, value in kwargs.items() if name in _HEAD_OPTIONS}
    four = f.linear_cross_entropy(
        hidden_states,
        lm_head_weight,
        target,
        ignore_index=ignore_index,
        softcap=final_logit_softcapping,
        accum_dtype=accum_dtype,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
        num_items=num_items_in_batch,
        **options,
    )
    return packed(four, return_token_accuracy, return_predicted_tokens, options.get("return_z_loss"))


def LigerForCausalLMLoss(  # noqa: N802  (the peer's name)
    hidden_states: Tensor,
    lm_head_weight: Tensor,
    labels: Tensor | None,
    hidden_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    final_logit_softcapping: float | None = None,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
    **kwargs: Any,
) -> Tensor | CrossEntropyOutput:
    """Loss of hidden states (B, T, H) and labels (B, T), which are shifted here unless ``shift_labels`` are given.

    Raises:
        ValueError: neither labels nor ``shift_labels`` are given.
        TypeError: as ``fixed_fused_linear_cross_entropy``.
    """
    if labels is None and shift_labels is None:
        raise ValueError("LigerForCausalLMLoss: expected labels or shift_labels, both are None")
    return fixed_fused_linear_cross_entropy(
        hidden_states.reshape(-1, hidden_size),
        lm_head_weight,
        shifted(labels, shift_labels, ignore_index).reshape(-1).to(hidden_states.device),
        num_items_in_batch,
        ignore_index,
        final_logit_softcapping,
        return_token_accuracy=return_token_accuracy,
        return_predicted_tokens=return_predicted_tokens,
        **kwargs,
    )


def unpack_cross_entropy_result(
    result: Tensor | CrossEntropyOutput,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Loss, z-loss, accuracy and predictions of either form."""
    if isinstance(result, CrossEntropyOutput):
        return result.loss, result.z_loss, result.token_accuracy, result.predicted_tokens
    return result, None, None, None
