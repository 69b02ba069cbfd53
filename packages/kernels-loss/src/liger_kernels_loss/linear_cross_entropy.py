"""Linear cross-entropy: the loss of logits = hidden W^T + bias without ever holding all logits.

Formula and options: those of ``cross_entropy`` on z = transform(hidden W^T + bias); see ``transforms.py``. Source of
the method: the gradient of a row's loss needs that row's logits alone, so rows are taken in chunks and each chunk's
logits, loss and gradient live in one reused workspace.
Shapes: hidden (..., H), weight (V, H), bias (V,), target (...,), class_weight (V,); N is the number of rows.
Precision: logits are rounded to the inputs' dtype, as the head itself does; everything after is fp32 (fp64 for fp64).
dlogits is rounded to the inputs' dtype. The weight's gradient is rounded at most 4 times in the weight's dtype, else
summed in fp32, so its error does not depend on the number of chunks. The loss is fp32 (fp64 for fp64).

Gradients are made in the forward and multiplied by the upstream gradient in the backward, which rounds a second time
unless that is a power of two, 1 in plain training. The divisor of the mean is part of the first rounding; in fp16 its
power of two is not, nor are the largest weights and the scale of the logits, so that nothing underflows or overflows.
With reduction="none" each row has its own upstream gradient, not known before the backward: the chunks are computed
again there (a third more work), as in a second backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_flag, public, run
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._loss import (
    Loss,
    check_class_weight,
    check_options,
    check_target,
    checked_labels,
    row_results,
)
from liger_kernels_loss._result import CrossEntropyOutput, check_returns, check_token_weight, make_result
from liger_kernels_loss.cross_entropy import labels as make_labels
from liger_kernels_loss.transforms import head

OP = "linear_cross_entropy"


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_cross_entropy_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
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
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
) -> torch.Tensor | CrossEntropyOutput:
    """The definition: all logits at once. The last three options are about how the work is cut up; it is not."""
    del check_labels, accum_dtype, workspace_mb, compact
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    result = make_result(target, class_weight, token_weight, hidden, loss, reduction, num_items, tuple(returns))
    logits = head(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    return result.finish(row_results(logits, result.target, class_weight, loss, result.wants))


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    class_weight: torch.Tensor | None = None,
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
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    compact: bool = False,
    kernel: str | None = None,
) -> torch.Tensor | CrossEntropyOutput:
    """Cross-entropy of ``hidden @ weight.T + bias``, computed in chunks of rows.

    Args:
        hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight: (V, H), the head's weight. Under autocast hidden, weight and bias are cast as in
            ``torch.nn.functional.linear``; otherwise their dtypes must be equal.
        target: (...,) integers, not shifted; or (..., V) probabilities.
        bias: (V,) or None.
        class_weight: (V,) floating or None; as ``weight`` of ``torch.nn.functional.cross_entropy``.
        token_weight: (...,) floating or None: a factor of each row's loss.
        ignore_index, reduction, label_smoothing, softcap, logit_scale, temperature, z_loss, num_items, returns,
            check_labels: as in ``cross_entropy``.
        accum_dtype: the dtype in which the weight's gradient is summed over chunks: torch.float32 (also "float32"), or
            the weight's own however many chunks there are. None: the weight's own for at most 4 chunks and fp32
            beyond, always fp32 for fp16.
        workspace_mb: MiB for one chunk's logits; it sets the number of rows in a chunk, and with it what is wanted
            between least memory and highest speed. None: on an accelerator 512 MiB, up to 1280 if that keeps the
            weight's gradient at 4 chunks, and 1024 to 4096 rows; 64 MiB on a CPU.
        compact: leave ignored rows out before the head's product. This waits for the device if the target is on one.
            Not with probabilities, nor while compiling.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64): scalar, or (...,) for reduction="none". With ``returns`` a
        ``CrossEntropyOutput``.

    Raises:
        ValueError: shapes do not match, the weight is empty, or an option lies outside its range.
        TypeError: an argument is of the wrong type, dtypes differ, a tensor is not of the right kind or lies on
            another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_cross_entropy
        >>> hidden, weight = torch.ones(3, 4), torch.zeros(8, 4, requires_grad=True)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([1, 2, -100]))
        >>> loss.backward()
        >>> loss.detach()
        tensor(2.0794)
        >>> weight.grad[:3, 0]
        tensor([ 0.1250, -0.3750, -0.3750])
    """
    loss = Loss(ignore_index, label_smoothing, softcap, logit_scale, temperature, z_loss)
    loss = check_options(OP, loss, reduction, num_items)
    hidden, weight, bias = check_head(OP, hidden, weight, bias)
    target = check_target(OP, target, hidden, "hidden", weight.shape[0])
    class_weight = check_class_weight(OP, class_weight, hidden, weight.shape[0], "class_weight")
    check_token_weight(OP, token_weight, hidden, "hidden")
    check_flag(OP, "check_labels", check_labels)
    check_flag(OP, "compact", compact)
    if check_labels:
        target = checked_labels(target, weight.shape[0], ignore_index, OP)
    options = {
        **loss._asdict(),
        "reduction": reduction,
        "num_items": num_items,
        "returns": check_returns(OP, returns),
        "check_labels": check_labels,
        **check_chunking(OP, weight, accum_dtype, workspace_mb),
        "compact": compact,
    }
    sizes = {"H": weight.shape[1], "V": weight.shape[0]}
    tensors = hidden, weight, target, bias, class_weight, token_weight
    return run(OP, tensors, options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_cross_entropy_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Logits of magnitude about 1. Label 0 is frequent, so that ``ignore_index=0`` meets some rows.

    Variants beside those of the labels: "bias"; "softcap", Gemma 2's; "frozen head", in which only hidden needs a
    gradient.
    """
    hidden = torch.randn(N, H, generator=generator)
    weight = torch.randn(V, H, generator=generator) / H**0.5
    target = make_labels(N, V, generator, variant)
    if variant == "probabilities":
        target = torch.randn(N, V, generator=generator).softmax(-1)
    token_weight = torch.rand(N, generator=generator).to(device) if variant == "token weights" else None
    bias = torch.randn(V, generator=generator).to(device, dtype).requires_grad_() if variant == "bias" else None
    class_weight = 0.1 + torch.rand(V, generator=generator).to(device) if variant == "class weights" else None
    hidden = hidden.to(device, dtype).requires_grad_()
    weight = weight.to(device, dtype).requires_grad_(variant != "frozen head")
    options = {"softcap": 30.0} if variant == "softcap" else {}
    return (hidden, weight, target.to(device), bias, class_weight, token_weight), options


def linear_cross_entropy_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read, their gradients written; logits written, read twice, rewritten."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    rows = hidden.numel() // hidden.shape[-1]
    return {"full": 2 * hidden.nbytes + 2 * weight.nbytes + 4 * rows * weight.shape[0] * hidden.element_size()}


def linear_cross_entropy_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """A product of 2 N V H for the logits and one for each of the gradients of hidden and weight that is needed."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    products = 1 + hidden.requires_grad + weight.requires_grad
    return {"full": 2 * products * hidden.numel() * weight.shape[0]}
