"""Linear cross-entropy with a head whose rows, one for each class, lie on the ranks of a process group.

Formula, options and precision: those of ``linear_cross_entropy`` with the rows of all ranks in rank order. Hidden is
the same on all ranks. A rank works through its own columns of the logits in chunks of rows, which are the same on all
ranks; in each they gather a few numbers a row (``_vocab_parallel_rows.py``) and make the gradient at once.
Shapes: hidden (..., H), weight (columns of this rank, H), bias (columns of this rank,), target (...,) or (..., columns
of this rank), class_weight (columns of this rank,); V is the number of all classes, N that of rows.
Precision: a rank's part of hidden's gradient is rounded to its dtype, and summed over the ranks in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from liger.dispatch import check_flag, public, run
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._loss import Loss, check_class_weight, check_options, check_target, checked_labels, is_soft
from liger_kernels_loss._result import CrossEntropyOutput, check_returns, check_token_weight
from liger_kernels_loss._shards import all_columns, find_shards, summed_gradient
from liger_kernels_loss.cross_entropy import cross_entropy_reference
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_inputs
from liger_kernels_loss.transforms import head

OP = "vocab_parallel_linear_cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def vocab_parallel_linear_cross_entropy_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
    group: dist.ProcessGroup | str | None = None,
    shards: Sequence[int] | None = None,
    reduce_hidden_gradient: bool = True,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    returns: Sequence[str] = (),
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
) -> torch.Tensor | CrossEntropyOutput:
    """The definition: gather all columns of the logits. The last three options are about how the work is cut up."""
    del accum_dtype, workspace_mb, compact
    lead, H = hidden.shape[:-1], hidden.shape[-1]
    found = find_shards(OP, group, shards, rows=lead.numel(), hidden=H, like=weight[:, 0])
    hidden = summed_gradient(hidden, found, OP) if reduce_hidden_gradient else hidden
    logits = head(hidden.reshape(-1, H), weight, bias).view(*lead, weight.shape[0])
    return cross_entropy_reference(
        all_columns(logits, found, OP),
        all_columns(target, found, OP) if is_soft(target) else target,
        None if class_weight is None else all_columns(class_weight, found, OP),
        token_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        softcap=softcap,
        logit_scale=logit_scale,
        temperature=temperature,
        z_loss=z_loss,
        num_items=num_items,
        returns=returns,
        check_labels=check_labels,
    )


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def vocab_parallel_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
    group: dist.ProcessGroup | str | None = None,
    shards: Sequence[int] | None = None,
    reduce_hidden_gradient: bool = True,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    returns: Sequence[str] = (),
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
    kernel: str | None = None,
) -> torch.Tensor | CrossEntropyOutput:
    """Cross-entropy of ``hidden @ weight.T + bias``, where each rank of a process group has some rows of the weight.

    All ranks call it together, with the same hidden, options, targets and token weights, and get the same results; then
    all call backward, or none. What requires a gradient must also be the same on all ranks.

    Args:
        hidden: (..., H), floating, the same on all ranks. Its gradient is that of the whole loss on each of them.
        weight: (columns of this rank, H), this rank's part of the head's weight; at least one row, and ranks may hold
            different numbers of them. Autocast and dtypes as in ``linear_cross_entropy``.
        target: (...,) integers: classes of the whole vocabulary or ``ignore_index``, not shifted. Or floating (...,
            columns of this rank): its columns of the probabilities.
        bias: (columns of this rank,) or None.
        class_weight: class weights of this rank's columns, or None.
        token_weight: (...,) floating or None: a factor of each row's loss.
        group, shards: as in ``vocab_parallel_cross_entropy``.
        reduce_hidden_gradient: False leaves hidden's gradient as what this rank's columns contribute; its sum over the
            ranks is the caller's, who may scatter it at once.
        ignore_index, reduction, label_smoothing, softcap, logit_scale, temperature, z_loss, num_items, returns,
            check_labels: as in ``vocab_parallel_cross_entropy``.
        accum_dtype, compact: as in ``linear_cross_entropy``.
        workspace_mb: as in ``linear_cross_entropy``, for the rank that holds the most columns.
        kernel: choose a kernel by hand; the same on all ranks. The reference gathers all logits, and waits.

    Returns:
        As ``linear_cross_entropy``.

    Raises:
        ValueError: shapes do not match, the weight is empty, an option lies outside its range, ``shards`` do not fit,
            or ranks disagree in H, the number of rows or the dtype (if they are asked for their columns).
        TypeError: an argument is of the wrong type, dtypes differ, a tensor is not of the right kind or lies on
            another device.
        RuntimeError: a second derivative is asked for.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import vocab_parallel_linear_cross_entropy
        >>> hidden, weight = torch.ones(3, 4), torch.zeros(8, 4, requires_grad=True)
        >>> loss = vocab_parallel_linear_cross_entropy(hidden, weight, torch.tensor([1, 2, -100]), group="self")
        >>> loss.backward()
        >>> loss.detach()
        tensor(2.0794)
        >>> weight.grad[:3, 0]
        tensor([ 0.1250, -0.3750, -0.3750])
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    loss = check_options(OP, loss, reduction, num_items)
    hidden, weight, bias = check_head(OP, hidden, weight, bias)
    columns, H = weight.shape
    target = check_target(OP, target, hidden, "hidden", columns)
    class_weight = check_class_weight(OP, class_weight, hidden, columns, "class_weight")
    check_token_weight(OP, token_weight, hidden, "hidden")
    found = find_shards(OP, group, shards, rows=hidden.shape[:-1].numel(), hidden=H, like=weight[:, 0])
    check_flag(OP, "check_labels", check_labels)
    check_flag(OP, "reduce_hidden_gradient", reduce_hidden_gradient)
    check_flag(OP, "compact", compact)
    if check_labels:
        target = checked_labels(target, found.classes, ignore_index, OP)
    options = {
        "group": found.group,
        "shards": found.sizes,
        "reduce_hidden_gradient": reduce_hidden_gradient,
        **loss._asdict(),
        "reduction": reduction,
        "num_items": num_items,
        "returns": check_returns(OP, returns),
        "check_labels": check_labels,
        **check_chunking(OP, weight, accum_dtype, workspace_mb),
        "compact": compact,
    }
    tensors = hidden, weight, target, bias, class_weight, token_weight
    # the widest shard: all ranks must choose the same kernel, or they would wait for each other
    return run(OP, tensors, options, sizes={"H": H, "V": max(found.sizes)}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def vocab_parallel_linear_cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """As those of ``linear_cross_entropy``, for a process that holds all columns."""
    tensors, _ = linear_cross_entropy_inputs(device, dtype, N=N, H=H, V=V, generator=generator, variant=variant)
    return tensors, {"shards": (V,)} if variant == "shards" else {}
