"""Linear cross-entropy: the loss of logits = hidden W^T + bias without ever holding all logits.

Formula and options: those of ``cross_entropy`` on z = transform(hidden W^T + bias); see ``transforms.py``. Source of
the method: the gradient of a row's loss needs that row's logits alone, so rows are taken in chunks and each chunk's
logits, loss and gradient live in one reused workspace.
Shapes: hidden (..., H), weight (V, H), bias (V,), target (...,), class_weight (V,); N is the number of rows.
Precision: logits are rounded to the inputs' dtype, as the head itself does; everything after is fp32 (fp64 for fp64).
dlogits is rounded to the inputs' dtype. The weight's gradient is rounded at most 4 times in the weight's dtype, else
summed in fp32, so its error does not depend on the number of chunks. The loss is fp32 (fp64 for fp64).

Gradients are made in the forward and multiplied by the upstream gradient in the backward, which rounds a second time
unless that is a power of two, 1 in plain training. The divisor of the mean is part of the first rounding, its power of
two excepted, so that nothing underflows in fp16. With reduction="none" each row has its own upstream gradient, not
known before the backward: the chunks are computed again there (a third more work), as in a second backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_number, check_tensor, public, run
from liger_kernels_loss._loss import (
    Loss,
    check_class_weight,
    check_options,
    check_target,
    checked_labels,
    divide,
    divisor,
    row_losses,
)
from liger_kernels_loss.cross_entropy import labels as make_labels
from liger_kernels_loss.transforms import head, transform

OP = "linear_cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_cross_entropy_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
) -> torch.Tensor:
    """The definition: all logits at once. ``accum_dtype`` and ``workspace_mb`` are about chunks; there are none."""
    del check_labels, accum_dtype, workspace_mb
    labels = target.reshape(-1).long()
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    logits = head(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    rows = row_losses(transform(logits, softcap=softcap, logit_scale=logit_scale), labels, class_weight, loss)
    if reduction == "none":
        return rows.view(target.shape)
    return divide(rows.sum(), divisor(labels, class_weight, rows.dtype, ignore_index, reduction, num_items))


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    check_labels: bool = False,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Cross-entropy of ``hidden @ weight.T + bias``, computed in chunks of rows.

    Args:
        hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (V, H), the head's weight. Under autocast hidden, weight and bias are cast as in
            ``torch.nn.functional.linear``; otherwise their dtypes must be equal.
        target: (...,) integers, not shifted.
        bias: (V,) or None.
        class_weight: (V,) floating or None; as ``weight`` of ``torch.nn.functional.cross_entropy``.
        ignore_index, reduction, label_smoothing, softcap, logit_scale, z_loss, num_items, check_labels:
            as in ``cross_entropy``.
        accum_dtype: the dtype in which the weight's gradient is summed over chunks: torch.float32 (also "float32"), or
            the weight's own however many chunks there are. None: the weight's own for at most 4 chunks and fp32
            beyond, always fp32 for fp16.
        workspace_mb: MiB for one chunk's logits; it sets the number of rows in a chunk. None: up to 1024 MiB, 1024 to
            4096 rows on an accelerator, 64 MiB on CPU.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, the weight is empty, or an option lies outside its range.
        TypeError: an argument is of the wrong type, dtypes differ, a tensor is not of the right kind or lies on
            another device.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    check_options(OP, loss, reduction, num_items)
    _check_tensors(hidden, weight, bias)
    check_target(OP, target, hidden, "hidden")
    hidden, weight, bias = _autocast(hidden, weight, bias)
    _check_dtypes(hidden, weight, bias)
    accum_dtype = _check_chunking(weight, accum_dtype, workspace_mb)
    class_weight = check_class_weight(OP, class_weight, hidden, weight.shape[0], "class_weight")
    if check_labels:
        target = checked_labels(target, weight.shape[0], ignore_index, OP)
    options = {
        **loss._asdict(),
        "reduction": reduction,
        "num_items": num_items,
        "check_labels": check_labels,
        "accum_dtype": accum_dtype,
        "workspace_mb": workspace_mb,
    }
    sizes = {"H": weight.shape[1], "V": weight.shape[0]}
    return run(OP, (hidden, weight, target, bias, class_weight), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


def _check_tensors(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    for name, tensor in (("hidden", hidden), ("weight", weight), *((("bias", bias),) if bias is not None else ())):
        check_tensor(OP, name, tensor)
    if hidden.dim() == 0 or not hidden.dtype.is_floating_point:
        raise TypeError(
            f"{OP}: hidden must be floating with at least one dimension, got {hidden.dtype} {tuple(hidden.shape)}"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (not tensor.dtype.is_floating_point or tensor.device != hidden.device):
            raise TypeError(
                f"{OP}: {name} must be floating on {hidden.device} like hidden, got {tensor.dtype} on {tensor.device}"
            )
    if weight.numel() == 0:
        raise ValueError(
            f"{OP}: weight has shape {tuple(weight.shape)}, expected (V, {hidden.shape[-1]}) with V at least 1; "
            "an empty head weight is usually a sharded parameter that was not gathered"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{OP}: weight has shape {tuple(weight.shape)}, expected (V, {hidden.shape[-1]}) "
            f"from the last dimension of hidden {tuple(hidden.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{OP}: bias has shape {tuple(bias.shape)}, expected ({weight.shape[0]},) from weight")


def _autocast(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What autocast does to the arguments of ``torch.nn.functional.linear``; it leaves float64 alone."""
    device = hidden.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    hidden = hidden if hidden.dtype == torch.float64 else hidden.to(dtype)
    weight = weight if weight.dtype == torch.float64 else weight.to(dtype)
    if bias is not None and bias.dtype != torch.float64:
        bias = bias.to(dtype)
    return hidden, weight, bias


def _check_dtypes(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != hidden.dtype:
            raise TypeError(
                f"{OP}: {name} is {tensor.dtype} but hidden is {hidden.dtype}; expected equal dtypes outside autocast"
            )


def _check_chunking(
    weight: torch.Tensor, accum_dtype: torch.dtype | str | None, workspace_mb: float | None
) -> torch.dtype | None:
    if workspace_mb is not None:
        check_number(OP, "workspace_mb", workspace_mb, "None or a number")
    if workspace_mb is not None and not 0.0 < workspace_mb < float("inf"):
        raise ValueError(f"{OP}: workspace_mb is {workspace_mb!r}, expected None or a positive number")
    dtype = getattr(torch, accum_dtype, None) if isinstance(accum_dtype, str) else accum_dtype
    lower = dtype == torch.float32 and weight.dtype == torch.float64
    if (dtype is None and accum_dtype is not None) or lower or dtype not in (None, torch.float32, weight.dtype):
        expected = sorted({str(weight.dtype), "torch.float64" if lower else "torch.float32"})
        raise ValueError(f"{OP}: accum_dtype is {accum_dtype!r}, expected None or {' or '.join(expected)}")
    return dtype


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Logits of magnitude about 1. Label 0 is frequent, so that ``ignore_index=0`` meets some rows."""
    hidden = torch.randn(N, H, generator=generator)
    weight = torch.randn(V, H, generator=generator) / H**0.5
    target = make_labels(N, V, generator, variant)
    bias = torch.randn(V, generator=generator).to(device, dtype).requires_grad_() if variant == "bias" else None
    class_weight = 0.1 + torch.rand(V, generator=generator).to(device) if variant == "class weights" else None
    leaves = (t.to(device, dtype).requires_grad_() for t in (hidden, weight))
    return (*leaves, target.to(device), bias, class_weight), {}


def linear_cross_entropy_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read, their gradients written; logits written, read twice, rewritten."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    rows = hidden.numel() // hidden.shape[-1]
    return {"full": 2 * hidden.nbytes + 2 * weight.nbytes + 4 * rows * weight.shape[0] * hidden.element_size()}


def linear_cross_entropy_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Three products of 2 N V H."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    return {"full": 6 * hidden.numel() * weight.shape[0]}
