"""Distillation from a teacher of whom only the k most likely classes of each row are stored, without all logits.

With log q = log_softmax((hidden W^T + bias) / T), the teacher's log-probs l_1..l_k at the classes c_1..c_k of the row
and p_i = exp(l_i)

    tail="ignore":  loss = sum_i p_i (l_i - log q_{c_i})
                    dloss/dz_c = (q_c * sum_i p_i - p_c) / T,  p_c = 0 outside the k classes
    tail="lump":    the same plus P (log P - log Q),  P = max(0, 1 - sum_i p_i),  Q = sum of q_c outside the k classes
                    dloss/dz_c = (q_c - p_c) / T in the k classes (sum_i p_i + P is 1), q_c (1 - P / Q) / T outside

and 0 where the target is ``ignore_index``. A term with p_i = 0 or P = 0 is 0. "lump" is the forward KL of the two
distributions over k + 1 classes, at most the KL over all V and 0 for an exact student; "ignore" is the part of the sum
over V that is known, which can be negative and has its least value where q is p renormalised.
Source: the definitions; the chunks are those of ``linear_cross_entropy``.
Shapes: hidden (..., H), weight (V, H), bias (V,), topk_logprobs and topk_indices (..., k), target (...,); N is the
number of rows. Nothing of the size of N * V exists, of the teacher nothing of V.
Precision: logits are rounded to the inputs' dtype, as the head itself does; everything after is fp32 (fp64 for fp64).
dlogits is rounded to the inputs' dtype, with "lump" outside the k classes twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_tensor, public, run
from liger.numerics import acc
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._loss import check_target, stat_dtype
from liger_kernels_loss._pairs import NumItems, check_frozen, reduce_rows
from liger_kernels_loss.cross_entropy import labels as make_labels
from liger_kernels_loss.linear_jsd import check_soft
from liger_kernels_loss.transforms import head

OP = "linear_topk_kl"
TAILS = ("ignore", "lump")


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_topk_kl_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    topk_logprobs: torch.Tensor,
    topk_indices: torch.Tensor,
    target: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    tail: str = "ignore",
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
) -> torch.Tensor:
    """The definition: all logits at once. The last two options are about how the work is cut up; it is not."""
    del accum_dtype, workspace_mb
    logits = head(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    log_q = torch.log_softmax(acc(logits) / temperature, -1).view(*hidden.shape[:-1], weight.shape[0])
    indices, log_p = topk_indices.long(), topk_logprobs.to(log_q.dtype)
    rows = _known(log_p, log_q.gather(-1, indices)).sum(-1)
    if tail == "lump" and indices.shape[-1] < weight.shape[0]:
        rest = (1.0 - log_p.exp().sum(-1)).clamp(min=0.0)
        log_rest = log_q.scatter(-1, indices, -torch.inf).logsumexp(-1)
        rows = rows + _known(rest.log(), log_rest)
    return reduce_rows(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items)


def _known(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    p = log_p.exp()
    return (p * (log_p - log_q)).masked_fill(p == 0.0, 0.0)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_topk_kl(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    topk_logprobs: torch.Tensor,
    topk_indices: torch.Tensor,
    target: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    tail: str = "ignore",
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Forward KL from a teacher's stored top-k log-probs to a head, computed in chunks of rows.

    Args:
        hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (V, H), the student's head. Under autocast hidden, weight and bias are cast as in
            ``torch.nn.functional.linear``; otherwise their dtypes must be equal.
        topk_logprobs: (..., k), floating, of any such dtype: log-probs of the teacher over all V classes, as they were
            stored; -inf for a class of probability 0. They may not require a gradient.
        topk_indices: (..., k) integers in [0, V), the classes; those of a row are distinct.
        target: (...,) integers or None: rows with ``ignore_index`` have loss 0 and gradient 0 and do not count in the
            mean. Not shifted; other values mean nothing here.
        bias: (V,) or None.
        tail: what is made of the other classes, whose probability under the teacher is P = 1 - sum(exp(topk_logprobs)).
            "ignore": nothing, the loss is the sum over the k classes with the probabilities as given; it can be
            negative. "lump": they are one more class with probability P; with k = V there are none.
        temperature: positive; divides the student's logits. The log-probs must be the teacher's at this temperature.
        ignore_index, reduction, num_items: as in ``jsd``.
        accum_dtype, workspace_mb: as in ``linear_cross_entropy``.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, the weight is empty, an option lies outside its range, or the log-probs
            require a gradient.
        TypeError: an argument is of the wrong type, dtypes differ, a tensor is not of the right kind or lies on
            another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_topk_kl
        >>> hidden, weight = torch.ones(1, 4), torch.zeros(8, 4, requires_grad=True)
        >>> known, classes = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[3, 5]])
        >>> loss = linear_topk_kl(hidden, weight, known, classes, tail="lump")
        >>> loss.backward()
        >>> loss.detach()
        tensor(0.5918)
        >>> weight.grad[[0, 3, 5], 0]
        tensor([ 0.0833, -0.3750, -0.1250])
    """
    hidden, weight, bias = check_head(OP, hidden, weight, bias)
    _check_topk(hidden, weight, topk_logprobs, topk_indices)
    if target is not None:
        target = check_target(OP, target, hidden, "hidden", weight.shape[0], soft=False)
    check_choice(OP, "tail", tail, TAILS)
    options = {
        "tail": tail,
        **check_soft(OP, temperature, ignore_index, reduction, num_items),
        **check_chunking(OP, weight, accum_dtype, workspace_mb),
    }
    sizes = {"H": weight.shape[1], "V": weight.shape[0], "k": topk_indices.shape[-1]}
    tensors = hidden, weight, topk_logprobs, topk_indices, target, bias
    return run(OP, tensors, options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


def _check_topk(
    hidden: torch.Tensor, weight: torch.Tensor, topk_logprobs: torch.Tensor, topk_indices: torch.Tensor
) -> None:
    """The teacher's tensors, of which values are not looked at: TypeError or ValueError."""
    for name, tensor in (("topk_logprobs", topk_logprobs), ("topk_indices", topk_indices)):
        check_tensor(OP, name, tensor)
        if tensor.device != hidden.device:
            raise TypeError(f"{OP}: {name} is on {tensor.device}, expected {hidden.device} like hidden")
    if not topk_logprobs.dtype.is_floating_point:
        raise TypeError(f"{OP}: topk_logprobs must be floating, got {topk_logprobs.dtype}")
    indices = topk_indices.dtype
    if indices.is_floating_point or indices.is_complex or indices == torch.bool:
        raise TypeError(f"{OP}: topk_indices must hold integer class indices, got {indices}")
    check_frozen(OP, "topk_logprobs", topk_logprobs)
    leading, classes = tuple(hidden.shape[:-1]), weight.shape[0]
    k = topk_indices.shape[-1] if topk_indices.dim() else 0
    if tuple(topk_indices.shape) != (*leading, k) or not 1 <= k <= classes:
        raise ValueError(
            f"{OP}: topk_indices has shape {tuple(topk_indices.shape)}, expected {leading} from hidden and 1 to "
            f"{classes} classes"
        )
    if topk_logprobs.shape != topk_indices.shape:
        raise ValueError(
            f"{OP}: topk_logprobs has shape {tuple(topk_logprobs.shape)}, expected {tuple(topk_indices.shape)} like "
            f"topk_indices"
        )


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_topk_kl_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, k: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Up to k classes, evenly apart from a random one on, of about nine tenths of the probability."""
    leaves = [torch.randn(N, H, generator=generator), torch.randn(V, H, generator=generator) / H**0.5]
    k = min(k, V)
    first = torch.randint(0, V, (N, 1), generator=generator)
    indices = (first + torch.arange(k) * (V // k)) % V
    logprobs = torch.log_softmax(2 * torch.randn(N, k, generator=generator), -1) - 0.1
    target = None if variant == "no target" else make_labels(N, V, generator, variant).to(device)
    bias = torch.randn(V, generator=generator).to(device, dtype).requires_grad_() if variant == "bias" else None
    teacher = logprobs.to(device, stat_dtype(torch.empty(0, dtype=dtype))), indices.to(device)
    return (*(t.to(device, dtype).requires_grad_() for t in leaves), *teacher, target, bias), {}


def linear_topk_kl_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read, their gradients written; logits written, read twice, rewritten."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    rows = hidden.numel() // hidden.shape[-1]
    return {"full": 2 * hidden.nbytes + 2 * weight.nbytes + 4 * rows * weight.shape[0] * hidden.element_size()}


def linear_topk_kl_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Three products of 2 N V H."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    return {"full": 6 * hidden.numel() * weight.shape[0]}
