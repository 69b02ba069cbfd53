"""The losses of ``_chunked`` as modules: the options in the constructor, the head's weight first in a call."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from liger_kernel._chunked import Result, cpo, dpo, grpo, jsd, kto, orpo, simpo
from liger_kernel._losses import _Loss
from liger_kernel._pairs import check_dpo
from liger_kernel._policy import check_positive


class LigerFusedLinearORPOLoss(_Loss):
    """ORPO."""

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        chunk_size: int = 1,
    ) -> None:
        super().__init__(locals())

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> Result:
        """The head's weight (V, H) first, hidden states (2 B, T, H), labels (2 B, T)."""
        return orpo(_input, lin_weight, target, bias, nll_target=nll_target, **self.options)


class LigerFusedLinearCPOLoss(_Loss):
    """CPO."""

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> None:
        super().__init__(locals())

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Result:
        """The head's weight (V, H) first, hidden states (2 B, T, H), labels (2 B, T)."""
        return cpo(_input, lin_weight, target, bias, **self.options)


class LigerFusedLinearSimPOLoss(_Loss):
    """SimPO; its module computes the NLL by default and its function does not, as in the peer."""

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ) -> None:
        super().__init__(locals())

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Result:
        """The head's weight (V, H) first, hidden states (2 B, T, H), labels (2 B, T)."""
        return simpo(_input, lin_weight, target, bias, **self.options)


class LigerFusedLinearDPOLoss(_Loss):
    """DPO and its kin.

    Raises:
        ValueError: an unknown ``loss_type``, or a number that it cannot take.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
    ) -> None:
        super().__init__(locals())
        check_dpo(beta, loss_type, label_smoothing, discopop_tau)

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
    ) -> Result:
        """The head's weight (V, H) first, hidden states (2 B, T, H), labels (2 B, T), then the reference's."""
        return dpo(_input, lin_weight, target, bias, ref_input, ref_weight, ref_bias, **self.options)


class LigerFusedLinearKTOLoss(_Loss):
    """KTO. Takes the hidden states first, unlike those of pairs."""

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = False,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> None:
        super().__init__(locals())

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        preference_labels: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | float | None = None,
    ) -> Result:
        """Hidden states (B, T, H), head (V, H), labels (B, T), bias (V,), whether each answer was liked (B,)."""
        if preference_labels is None:
            raise ValueError("LigerFusedLinearKTOLoss: preference_labels were not given")
        ref = (ref_input, ref_weight, ref_bias)
        return kto(_input, lin_weight, target, preference_labels, bias, *ref, kl, **self.options)


class LigerFusedLinearGRPOLoss(_Loss):
    """GRPO and its kin. Takes the hidden states first.

    Raises:
        ValueError: ``sapo_temperature_pos``, ``sapo_temperature_neg`` or ``delta`` is not above 0.
    """

    def __init__(
        self,
        beta: float = 0.04,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
    ) -> None:
        super().__init__(locals())
        check_positive(sapo_temperature_pos, sapo_temperature_neg, delta)

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
    ) -> Result:
        """Hidden states (B, T, H), head (V, H), sampled tokens and their mask (B, T), advantages (B,)."""
        ref = (ref_per_token_logps, old_per_token_logps, ref_input, ref_weight, ref_bias)
        sampled = (selected_token_ids, attention_mask, advantages)
        last = {"num_items_in_batch": num_items_in_batch, **self.options}
        return grpo(_input, lin_weight, *sampled, bias, *ref, vllm_is_ratio=vllm_is_ratio, **last)


class LigerFusedLinearJSDLoss(_Loss):
    """Distillation: a share of cross-entropy with the labels, a share of the divergence from the teacher."""

    def __init__(
        self,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> None:
        super().__init__(locals())

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
    ) -> Any:
        """Hidden states (rows, H), heads (V, H), labels (rows,)."""
        heads = (student_input, student_weight, teacher_input, teacher_weight)
        return jsd(*heads, true_labels, student_bias, teacher_bias, **self.options)
