"""Cross-entropy over a vocabulary whose columns lie on the ranks of a process group.

Formula, options and precision: those of ``cross_entropy`` on the columns of all ranks in rank order. Each rank has the
same loss and further results, and the gradient of its own columns. Source of the method: Shoeybi et al. 2019,
"Megatron-LM", section 3. Here a rank sends a few numbers a row (4 in float32, up to 9 with options) and receives those
of all, in one collective each call; ``_vocab_parallel_rows.py`` says which.
Shapes: logits (..., columns of this rank), target (...,) or (..., columns of this rank), weight (columns of this
rank,), token_weight (...,); V is the number of all classes, N that of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from liger.dispatch import check_flag, public, run
from liger_kernels_loss._loss import Loss, check_class_weight, check_options, check_target, checked_labels, is_soft
from liger_kernels_loss._result import CrossEntropyOutput, check_returns, check_token_weight
from liger_kernels_loss._shards import all_columns, find_shards
from liger_kernels_loss.cross_entropy import check_logits, cross_entropy_inputs, cross_entropy_reference

OP = "vocab_parallel_cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def vocab_parallel_cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
    group: dist.ProcessGroup | str | None = None,
    shards: Sequence[int] | None = None,
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
) -> torch.Tensor | CrossEntropyOutput:
    """The definition: gather the columns of all ranks, then ``cross_entropy``."""
    found = find_shards(OP, group, shards, rows=target.shape.numel(), hidden=0, like=logits)
    weight = None if weight is None else all_columns(weight, found, OP)
    target = all_columns(target, found, OP) if is_soft(target) else target
    return cross_entropy_reference(
        all_columns(logits, found, OP),
        target,
        weight,
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
def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
    group: dist.ProcessGroup | str | None = None,
    shards: Sequence[int] | None = None,
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
    kernel: str | None = None,
) -> torch.Tensor | CrossEntropyOutput:
    """Cross-entropy over the columns of all ranks of a process group.

    All ranks call it together, with the same options, rows, targets and token weights, and get the same results; then
    all call backward, or none. The gradient is that of this rank's columns: do not divide it by the number of ranks.

    Args:
        logits: (..., columns of this rank), floating; at least one column. Ranks may hold different numbers of them.
        target: (...,) integers: classes of the whole vocabulary or ``ignore_index``. Or floating, shaped as the logits:
            this rank's columns of the probabilities.
        weight: class weights of this rank's columns, or None.
        token_weight: as in ``cross_entropy``.
        group: a process group or its name; "self" if this process holds all columns. None: the default group if
            ``torch.distributed`` is initialised, otherwise "self".
        shards: the number of columns of each rank, in rank order. None: the group is asked in the first call for each
            number of columns that this rank has, which waits for the device, and the answer is kept. Give them if ranks
            may disagree in what was asked before: two heads that are equally large on one rank but not on another.
        ignore_index, reduction, label_smoothing, softcap, logit_scale, temperature, z_loss, num_items, returns: as in
            ``cross_entropy``.
        check_labels: look for labels outside [0, V) and raise; this waits for the device. Without it such a label gives
            nan; from the reference torch's own error.
        kernel: choose a kernel by hand; the same on all ranks. The reference gathers all columns, and waits.

    Returns:
        As ``cross_entropy``.

    Raises:
        ValueError: shapes do not match, an option lies outside its range, a label does (``check_labels``), ``shards``
            do not fit, or ranks disagree in the number of rows or the dtype (if they are asked for their columns).
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        RuntimeError: a second derivative is asked for.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import vocab_parallel_cross_entropy
        >>> logits, target = torch.zeros(3, 8), torch.tensor([1, 2, -100])
        >>> vocab_parallel_cross_entropy(logits, target, group="self")
        tensor(2.0794)
        >>> vocab_parallel_cross_entropy(logits, target, group="self", returns=["predictions"]).predictions
        tensor([   0,    0, -100])
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    loss = check_options(OP, loss, reduction, num_items)
    columns = check_logits(OP, logits)
    target = check_target(OP, target, logits, "logits", columns)
    weight = check_class_weight(OP, weight, logits, columns, "weight")
    check_token_weight(OP, token_weight, logits, "logits")
    found = find_shards(OP, group, shards, rows=logits.shape[:-1].numel(), hidden=0, like=logits)
    check_flag(OP, "check_labels", check_labels)
    if check_labels:
        target = checked_labels(target, found.classes, ignore_index, OP)
    options = {
        "group": found.group,
        "shards": found.sizes,
        **loss._asdict(),
        "reduction": reduction,
        "num_items": num_items,
        "returns": check_returns(OP, returns),
        "check_labels": check_labels,
    }
    tensors = logits, target, weight, token_weight
    # the widest shard: all ranks must choose the same kernel, or they would wait for each other
    return run(OP, tensors, options, sizes={"V": max(found.sizes)}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def vocab_parallel_cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """As those of ``cross_entropy``, for a process that holds all columns."""
    tensors, _ = cross_entropy_inputs(device, dtype, N=N, V=V, generator=generator, variant=variant)
    return tensors, {"shards": (V,)} if variant == "shards" else {}


def vocab_parallel_cross_entropy_bytes(
    tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]
) -> dict[str, int]:
    """Read the logits for the statistics, and again for the gradient, which is written."""
    logits = tensors[0]
    assert logits is not None
    return {"forward": logits.nbytes, "backward": 2 * logits.nbytes, "full": 3 * logits.nbytes}
