"""Cross-entropy over the last dimension, with the transforms that language-model heads put between logits and loss.

For a row with label y: z = transform(logits), lse = log sum_c exp(z_c), s = label_smoothing, w = class weights,

    loss = (1 - s) * w_y * (lse - z_y) + s / V * sum_c w_c * (lse - z_c) + z_loss * lse^2
    dloss/dz_c = p_c * ((1 - s) * w_y + s / V * sum w + 2 * z_loss * lse) - s / V * w_c - [c = y] * (1 - s) * w_y

and 0 where y = ignore_index. Source: the first two terms are ``torch.nn.functional.cross_entropy``; the third is the
z-loss of Chowdhery et al. 2022, "PaLM", section 5. It is not weighted by class.
Shapes: logits (..., V), target (...,), weight (V,); N is the number of rows.
Precision: all of it in fp32 (fp64 for fp64), as if the logits were upcast first; the gradient is rounded once to the
logits' dtype. The loss is fp32 (fp64 for fp64). A log-prob is never above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_tensor, public, run
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
from liger_kernels_loss.transforms import transform

OP = "cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    check_labels: bool = False,
) -> torch.Tensor:
    """The definition, in plain torch. ``check_labels`` is a check of the public function."""
    del check_labels
    labels = target.reshape(-1).long()
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    z = transform(logits.reshape(-1, logits.shape[-1]), softcap=softcap, logit_scale=logit_scale)
    rows = row_losses(z, labels, weight, loss)
    if reduction == "none":
        return rows.view(target.shape)
    return divide(rows.sum(), divisor(labels, weight, rows.dtype, ignore_index, reduction, num_items))


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    z_loss: float = 0.0,
    num_items: int | float | torch.Tensor | None = None,
    check_labels: bool = False,
    kernel: str | None = None,
) -> torch.Tensor:
    """Cross-entropy over the last dimension. The logits are only read.

    Args:
        logits: (..., V), floating; any leading shape, any strides, 0 rows included.
        target: (...,) integers: class indices or ``ignore_index``, not shifted.
        weight: (V,) floating or None: class weights. "mean" then divides by the sum of the kept rows' weights.
        ignore_index: rows with this label have loss 0 and gradient 0 and do not count in the mean.
        reduction: "mean" over the kept rows, "sum", or "none". If every row is ignored the mean is nan, as in torch,
            the sum is 0, and all gradients are 0.
        label_smoothing: in [0, 1]; the part of the target that is spread over all classes.
        softcap: logits become softcap * tanh(logits / softcap), after the scale.
        logit_scale: factor of the logits.
        z_loss: coefficient of lse^2, added to each kept row's loss.
        num_items: divides the sum over rows, in place of what "mean" divides by; a number or a tensor of one element
            on any device (a copy from an accelerator to the CPU waits for it). Not with "none". 0 gives inf, or nan if
            every row is ignored, and gradients that are not finite, except for 0 in ignored rows: as in torch.
        check_labels: look for labels outside [0, V) and raise; this waits for the device. Without it such a label gives
            nan from the Triton kernel and torch's own error from the reference.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 logits): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, an option lies outside its range, or a label does (``check_labels``).
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, z_loss)
    check_options(OP, loss, reduction, num_items)
    check_tensor(OP, "logits", logits)
    if logits.dim() == 0 or not logits.dtype.is_floating_point:
        raise TypeError(
            f"{OP}: logits must be floating with at least one dimension, got {logits.dtype} {tuple(logits.shape)}"
        )
    classes = logits.shape[-1]
    if classes == 0:
        raise ValueError(f"{OP}: logits have shape {tuple(logits.shape)}, expected at least one class")
    check_target(OP, target, logits, "logits")
    weight = check_class_weight(OP, weight, logits, classes, "weight")
    if check_labels:
        target = checked_labels(target, classes, ignore_index, OP)
    options = {**loss._asdict(), "reduction": reduction, "num_items": num_items, "check_labels": check_labels}
    return run(OP, (logits, target, weight), options, sizes={"V": classes}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn. Label 0 is frequent, so that ``ignore_index=0`` meets some rows."""
    size = torch.tensor([1.0, 1e-3, 1e3])[torch.arange(N) % 3, None]
    logits = (torch.randn(N, V, generator=generator) * size).to(device, dtype).requires_grad_()
    target = labels(N, V, generator, variant)
    weight = 0.1 + torch.rand(V, generator=generator) if variant == "class weights" else None
    return (logits, target.to(device), weight if weight is None else weight.to(device)), {}


def labels(rows: int, classes: int, generator: torch.Generator, variant: str) -> torch.Tensor:
    """Random labels (rows,), on the CPU."""
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[1::3] = 0
    if variant == "ignored rows":
        target[::2] = -100
    if variant == "all ignored":
        target[:] = -100
    return target


def cross_entropy_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read the logits; read them again, write their gradient."""
    logits = tensors[0]
    assert logits is not None
    return {"forward": logits.nbytes, "backward": 2 * logits.nbytes}
