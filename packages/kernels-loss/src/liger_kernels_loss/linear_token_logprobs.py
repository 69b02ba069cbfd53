"""Log-probability of each label under a head, with entropy and prediction, without ever holding all logits.

For a row with label y: z = transform(hidden W^T + bias), see ``transforms.py``; lse = log sum_c exp(z_c), and

    logprob = z_y - lse,    entropy = lse - sum_c p_c * z_c,    p = exp(z - lse)
    dlogprob/dz_c = [c = y] - p_c,    dentropy/dz_c = -p_c * (log p_c + entropy)

What preference and policy losses are made of: sums, ratios and masks of the results are plain torch. Source: the
definition; the chunks are those of ``linear_cross_entropy``.
Shapes: hidden (..., H), weight (V, H), bias (V,), target (...,); N is the number of rows.
Precision: logits are rounded to the inputs' dtype, as the head itself does; everything after is fp32 (fp64 for fp64). A
log-prob is never above 0. Gradients: those of ``linear_cross_entropy`` with reduction="none"; each row has its own
upstream gradients, so the backward computes the chunks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from liger.dispatch import check_flag, public, run
from liger_kernels_loss._chunked import Chunking
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._labels_chunked import rows_of
from liger_kernels_loss._loss import Loss, RowResults, Wants, check_options, check_target, checked_labels, row_results
from liger_kernels_loss._result import Result
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_inputs
from liger_kernels_loss.transforms import head

OP = "linear_token_logprobs"


class TokenLogprobs(NamedTuple):
    """Results for each token, of shape (...,).

    Attributes:
        logprobs: log p(label), fp32 (fp64 for fp64), at most 0; 0 where ignored. Differentiable.
        entropy: of p in nats, of the same dtype; 0 where ignored. Differentiable.
        predictions: int64, the most likely class, the first of equals; ``ignore_index`` where ignored.
        correct: bool, whether the prediction is the label; False where ignored.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    predictions: torch.Tensor
    correct: torch.Tensor


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_token_logprobs_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
) -> TokenLogprobs:
    """The definition: all logits at once. The last three options are about how the work is cut up; it is not."""
    del check_labels, accum_dtype, workspace_mb, compact
    loss = Loss(ignore_index, softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    labels = target.reshape(-1).long()
    logits = head(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    rows = row_results(logits, labels, None, loss, Wants(entropy=True, best=True))
    return _finish(rows, labels, ignore_index, target.shape)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
    kernel: str | None = None,
) -> TokenLogprobs:
    """Log-probability of each label under ``hidden @ weight.T + bias``, with entropy and prediction, in chunks of rows.

    Args:
        hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (V, H), the head's weight. Under autocast hidden, weight and bias are cast as in
            ``torch.nn.functional.linear``; otherwise their dtypes must be equal.
        target: (...,) integers, not shifted.
        bias: (V,) or None.
        ignore_index: rows with this label are not computed, and have no gradient.
        softcap, logit_scale, temperature, check_labels: as in ``cross_entropy``.
        accum_dtype, workspace_mb, compact: as in ``linear_cross_entropy``.
        kernel: choose a kernel by hand.

    Returns:
        ``TokenLogprobs``: logprobs, entropy, predictions and whether they are correct, each (...,).

    Raises:
        ValueError: shapes do not match, the weight is empty, or an option lies outside its range.
        TypeError: an argument is of the wrong type, dtypes differ, a tensor is not of the right kind or lies on
            another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_token_logprobs
        >>> hidden, weight = torch.ones(3, 4), torch.zeros(8, 4)
        >>> found = linear_token_logprobs(hidden, weight, torch.tensor([0, 2, -100]))
        >>> found.logprobs[:2], found.correct
        (tensor([-2.0794, -2.0794]), tensor([ True, False, False]))
    """
    loss = Loss(ignore_index, softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    loss = check_options(OP, loss, "none", None)
    hidden, weight, bias = check_head(OP, hidden, weight, bias)
    target = check_target(OP, target, hidden, "hidden", weight.shape[0], soft=False)
    check_flag(OP, "check_labels", check_labels)
    check_flag(OP, "compact", compact)
    if check_labels:
        target = checked_labels(target, weight.shape[0], ignore_index, OP)
    options = {
        "ignore_index": ignore_index,
        "softcap": loss.softcap,
        "logit_scale": loss.logit_scale,
        "temperature": loss.temperature,
        "check_labels": check_labels,
        **check_chunking(OP, weight, accum_dtype, workspace_mb),
        "compact": compact,
    }
    sizes = {"H": weight.shape[1], "V": weight.shape[0]}
    return run(OP, (hidden, weight, target, bias), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- In chunks ---------------------------------------------------------------------------------------------------------
def token_logprobs_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    ignore_index: int,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    check_labels: bool,
    accum_dtype: torch.dtype | None,
    workspace_mb: float | None,
    compact: bool,
) -> TokenLogprobs:
    """``linear_token_logprobs`` for a backend of ``_chunked.py``."""
    del check_labels
    flat, labels = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long().contiguous()
    loss = Loss(ignore_index, softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    result = Result(labels, None, None, target.shape, loss, "none", ("entropy", "predictions"))
    rows = rows_of(OP, flat, weight, bias, None, result, Chunking(backend, accum_dtype, workspace_mb), compact)[1]
    return _finish(rows, labels, ignore_index, target.shape)


def _finish(rows: RowResults, labels: torch.Tensor, ignore_index: int, shape: torch.Size) -> TokenLogprobs:
    assert rows.entropy is not None
    assert rows.best is not None
    correct = (rows.best == labels) & (labels != ignore_index)
    return TokenLogprobs(*[t.view(shape) for t in (-rows.loss, rows.entropy, rows.best, correct)])


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_token_logprobs_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Those of linear_cross_entropy, without weights."""
    tensors, options = linear_cross_entropy_inputs(device, dtype, N=N, H=H, V=V, generator=generator, variant=variant)
    return tensors[:4], options


def linear_token_logprobs_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read twice, their gradients written; logits written twice, read twice and three times."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    logits = hidden.numel() // hidden.shape[-1] * weight.shape[0] * hidden.element_size()
    return {
        "forward": hidden.nbytes + weight.nbytes + 2 * logits,
        "backward": 2 * (hidden.nbytes + weight.nbytes) + 4 * logits,
    }


def linear_token_logprobs_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """A product of 2 N V H in the forward, three in the backward."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    product = 2 * hidden.numel() * weight.shape[0]
    return {"forward": product, "backward": 3 * product, "full": 4 * product}
