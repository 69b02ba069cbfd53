"""``liger_kernel.transformers.functional`` and the rotary embeddings beside it.

Here are those that differ from the functions of ``_functions`` and ``_loss_functions`` in name, order or default of an
argument; for the others ``_names.HOMES`` has those functions themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from liger import ops
from liger_kernel import _functions as f
from liger_kernel import _loss_functions as losses
from liger_kernel import _said
from liger_kernel._losses import CrossEntropyOutput, packed

OLD = "torch has replaced it by reduction"


def liger_fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    """Residual sum S = X + R, (..., H), and RMSNorm of it: (Y, S)."""
    return f.fused_add_rms_norm(X, R, W, eps, offset, casting_mode)


def liger_modulated_rms_norm(
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str = "llama",
    in_place: bool = True,
) -> Tensor:
    """RMSNorm of X (..., H) times ``1 + scale`` plus ``shift``."""
    return f.modulated_rms_norm(X, W, scale, shift, eps, offset, casting_mode)


def liger_cross_entropy(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Tensor | CrossEntropyOutput:
    """Cross-entropy of logits (rows, V): the loss, or a ``CrossEntropyOutput`` if more was asked for."""
    _said.idle("liger_cross_entropy", OLD, size_average=(size_average, None), reduce=(reduce, None))
    asked = (return_z_loss, return_token_accuracy, return_predicted_tokens)
    four = losses.cross_entropy(
        input, target, weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, *asked
    )
    return packed(four, *asked)


def liger_fused_linear_cross_entropy(
    input: Tensor,  # noqa: A002  (the peer's name)
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
    chunk_mem_const: int = 1,
) -> Tensor | CrossEntropyOutput:
    """Cross-entropy of ``input @ weight.T + bias`` without the full logits; results as of ``liger_cross_entropy``."""
    four = losses.linear_cross_entropy(
        input,
        weight,
        target,
        bias,
        ce_weight,
        ignore_index,
        lse_square_scale,
        label_smoothing,
        reduction,
        softcap,
        return_z_loss,
        accum_dtype,
        use_token_scaling,
        return_token_accuracy,
        return_predicted_tokens,
        chunk_mem_const=chunk_mem_const,
    )
    return packed(four, return_z_loss, return_token_accuracy, return_predicted_tokens)


def liger_jsd(
    input: Tensor,  # noqa: A002  (the peer's name)
    target: Tensor,
    shift_labels: Tensor | None = None,
    beta: float = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """Mean over rows of the divergence of log-probabilities (rows, V): student, teacher."""
    return losses.jsd(input, target, shift_labels, beta, ignore_index)


def liger_kl_div(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    size_average: bool = True,
    reduce: bool = True,
    reduction: str = "mean",
    log_target: bool = False,
    eps: float = 1e-10,
) -> Tensor:
    """KL(target || input) of log-probabilities input (rows, V) and probabilities target."""
    _said.idle("liger_kl_div", OLD, size_average=(size_average, True), reduce=(reduce, True))
    return losses.kl_div(input, target, reduction, log_target, eps)


def liger_tvd(
    input: Tensor,  # noqa: A002  (torch's name)
    target: Tensor,
    shift_labels: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Half the absolute difference of probabilities (rows, V)."""
    return losses.tvd(input, target, shift_labels, reduction, ignore_index)


def liger_sparsemax(
    input: Tensor,  # noqa: A002  (the peer's name)
    dim: int = -1,
) -> Tensor:
    """Sparsemax along ``dim``."""
    return f.sparsemax(input, dim)


# -- Rotary embeddings -------------------------------------------------------------------------------------------------
def liger_rotary_pos_emb_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated in fp32 and rounded back: q and k (T, N, D), cos and sin (T, D)."""
    batch = (q[None], k[None], cos[None], sin[None])
    turned = ops.rope(*batch, unsqueeze_dim=2, cast="fp32")
    return turned[0].squeeze(0), turned[1].squeeze(0)


def liger_rotary_pos_emb_gpt_oss(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated q (B, Nq, T, D) and k (B, Nk, T, D); cos and sin (1 or B, T, D / 2) or (T, D / 2): a column a pair."""
    return ops.rope(q, k, *f.batched(cos, sin), tables="pair")  # type: ignore[no-any-return]


def liger_llama4_text_rotary_pos_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated by complex numbers: xq and xk (B, T, N, D)."""
    return f.llama4_rope(xq, xk, freqs_cis)


def liger_llama4_vision_rotary_pos_emb(query: Tensor, key: Tensor, freqs_ci: Any) -> tuple[Tensor, Tensor]:
    """Rotated by complex numbers: query and key (B, T, N, D), freqs_ci (T, 1, D / 2) or (T, D / 2)."""
    return f.llama4_rope(query, key, freqs_ci.squeeze(-2) if freqs_ci.dim() == 3 else freqs_ci)
