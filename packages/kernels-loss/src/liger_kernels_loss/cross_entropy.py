"""Cross-entropy over the last dimension, with the transforms that language-model heads put between logits and loss.

For a row with label y: z = transform(logits), lse = log sum_c exp(z_c), s = label_smoothing, w = class weights,

    loss = (1 - s) * w_y * (lse - z_y) + s / V * sum_c w_c * (lse - z_c) + z_loss * lse^2
    dloss/dz_c = p_c * ((1 - s) * w_y + s / V * sum w + 2 * z_loss * lse) - s / V * w_c - [c = y] * (1 - s) * w_y

and 0 where y = ignore_index. For a row with probabilities q instead, and q' = (1 - s) * q + s / V,

    loss = sum_c w_c * q'_c * (lse - z_c) + z_loss * lse^2
    dloss/dz_c = p_c * (sum_c w_c * q'_c + 2 * z_loss * lse) - w_c * q'_c

Source: ``torch.nn.functional.cross_entropy``; the term with z_loss is that of Chowdhery et al. 2022, "PaLM", section 5.
It is not weighted by class.
Shapes: logits (..., V), target (...,) or (..., V), weight (V,), token_weight (...,); N is the number of rows.
Precision: all of it in fp32 (fp64 for fp64), as if the logits were upcast first; the gradient is rounded once to the
logits' dtype. The loss is fp32 (fp64 for fp64). A log-prob is never above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_flag, check_tensor, public, run
from liger_kernels_loss._loss import (
    Loss,
    check_class_weight,
    check_options,
    check_target,
    checked_labels,
    row_results,
)
from liger_kernels_loss._result import CrossEntropyOutput, check_returns, check_token_weight, make_result

OP = "cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def cross_entropy_reference(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
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
    inplace_backward: bool = False,
) -> torch.Tensor | CrossEntropyOutput:
    """The definition, in plain torch. ``check_labels`` and ``inplace_backward`` are not about values."""
    del check_labels, inplace_backward
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    result = make_result(target, weight, token_weight, logits, loss, reduction, num_items, tuple(returns))
    return result.finish(row_results(logits.reshape(-1, logits.shape[-1]), result.target, weight, loss, result.wants))


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    token_weight: torch.Tensor | None = None,
    *,
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
    inplace_backward: bool = False,
    kernel: str | None = None,
) -> torch.Tensor | CrossEntropyOutput:
    """Cross-entropy over the last dimension. The logits are only read, unless ``inplace_backward`` says otherwise.

    Args:
        logits: (..., V), floating; any leading shape, any strides, 0 rows included.
        target: (...,) integers: class indices or ``ignore_index``, not shifted. Or (..., V) floating: probabilities,
            which should add up to 1 in each row; no row is ignored then, give it a ``token_weight`` of 0.
        weight: (V,) floating or None: class weights. "mean" then divides by the sum of the kept rows' weights.
        token_weight: (...,) floating or None: a factor of each row's loss. "mean" then divides by the sum of the kept
            rows' weights, multiplied by those of their classes.
        ignore_index: rows with this label have loss 0 and gradient 0 and do not count in the mean.
        reduction: "mean" over the kept rows, "sum", or "none". If every row is ignored the mean is nan, as in torch,
            the sum is 0, and all gradients are 0.
        label_smoothing: in [0, 1]; the part of the target that is spread over all classes.
        softcap: logits become softcap * tanh(logits / softcap), after the scale.
        logit_scale: factor of the logits.
        temperature: divisor of the logits, after the softcap.
        z_loss: coefficient of lse^2, added to each kept row's loss.
        num_items: divides the sum over rows, in place of what "mean" divides by; a number or a tensor of one element
            on any device (a copy from an accelerator to the CPU waits for it). Not with "none". 0 gives inf, or nan if
            every row is ignored, and gradients that are not finite, except for 0 in ignored rows: as in torch.
        returns: what to return besides the loss, in a ``CrossEntropyOutput``: some of "token_loss", "z_loss",
            "entropy", "token_accuracy" and "predictions".
        check_labels: look for labels outside [0, V) and raise; this waits for the device. Without it such a label gives
            nan from the Triton kernel and torch's own error from the reference.
        inplace_backward: let the backward write the gradient into the logits, which saves a tensor of their size. They
            must be the result of another operation, dense, and are lost then: autograd raises where something else
            needs them, and a second backward raises. The reference ignores it.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 logits): scalar, or (...,) for reduction="none". With ``returns`` a
        ``CrossEntropyOutput``.

    Raises:
        ValueError: shapes do not match, an option lies outside its range, or a label does (``check_labels``).
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import cross_entropy
        >>> logits, target = torch.zeros(3, 8), torch.tensor([1, 2, -100])
        >>> cross_entropy(logits, target)
        tensor(2.0794)
        >>> cross_entropy(logits, target, returns=["entropy"]).entropy
        tensor([2.0794, 2.0794, 0.0000])
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    loss = check_options(OP, loss, reduction, num_items)
    classes = check_logits(OP, logits)
    target = check_target(OP, target, logits, "logits", classes)
    weight = check_class_weight(OP, weight, logits, classes, "weight")
    check_token_weight(OP, token_weight, logits, "logits")
    check_flag(OP, "check_labels", check_labels)
    check_flag(OP, "inplace_backward", inplace_backward)
    if check_labels:
        target = checked_labels(target, classes, ignore_index, OP)
    if inplace_backward:
        _check_writable(logits)
    options = {
        **loss._asdict(),
        "reduction": reduction,
        "num_items": num_items,
        "returns": check_returns(OP, returns),
        "check_labels": check_labels,
        "inplace_backward": inplace_backward,
    }
    tensors = logits, target, weight, token_weight
    return run(OP, tensors, options, sizes={"V": classes}, kernel=kernel)  # type: ignore[no-any-return]


def check_logits(op: str, logits: torch.Tensor) -> int:
    """The number of classes, at least one."""
    check_tensor(op, "logits", logits)
    if logits.dim() == 0 or not logits.dtype.is_floating_point:
        raise TypeError(
            f"{op}: logits must be floating with at least one dimension, got {logits.dtype} {tuple(logits.shape)}"
        )
    if logits.shape[-1] == 0:
        raise ValueError(f"{op}: logits have shape {tuple(logits.shape)}, expected at least one class")
    return logits.shape[-1]


def _check_writable(logits: torch.Tensor) -> None:
    """Only what another operation made for us can become its own gradient."""
    if logits.requires_grad and logits.is_leaf:
        raise ValueError(
            f"{OP}: inplace_backward=True would overwrite a leaf tensor that requires a gradient; expected logits made "
            "by another operation, or inplace_backward=False"
        )
    if not logits.is_contiguous():
        raise ValueError(
            f"{OP}: inplace_backward=True needs contiguous logits, got strides {logits.stride()} for shape "
            f"{tuple(logits.shape)}"
        )


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn. Label 0 is frequent, so that ``ignore_index=0`` meets some rows."""
    size = torch.tensor([1.0, 1e-3, 1e3])[torch.arange(N) % 3, None]
    logits = (torch.randn(N, V, generator=generator) * size).to(device, dtype).requires_grad_()
    target = labels(N, V, generator, variant).to(device)
    if variant == "probabilities":
        target = torch.randn(N, V, generator=generator).softmax(-1).to(device)
    weight = 0.1 + torch.rand(V, generator=generator) if variant == "class weights" else None
    token_weight = torch.rand(N, generator=generator).to(device) if variant == "token weights" else None
    return (logits, target, weight if weight is None else weight.to(device), token_weight), {}


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
    """Read the logits and write their gradient in the forward; the backward has nothing left to do."""
    logits = tensors[0]
    assert logits is not None
    return {"full": 2 * logits.nbytes}
