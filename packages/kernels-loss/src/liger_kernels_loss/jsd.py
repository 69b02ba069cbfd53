"""Generalized Jensen-Shannon divergence between the distributions of a teacher and a student, from their logits.

With q = softmax(student / T), p = softmax(teacher / T), m = beta * p + (1 - beta) * q, the loss of a row is

    beta * KL(p || m) + (1 - beta) * KL(q || m)      for 0 < beta < 1
    KL(p || q) = sum p (log p - log q)               for beta = 0: forward KL
    KL(q || p) = sum q (log q - log p)               for beta = 1: reverse KL

    dloss/dstudent_c = q_c / T * (g_c - sum q g),  g = (1 - beta) * (log q - log m), or log q - log p for beta = 1;
                       (q_c - p_c) / T for beta = 0

and 0 where the target is ``ignore_index``. A term with p = 0 or q = 0 before its logarithm is 0.
Source: Agarwal et al. 2024, "On-Policy Distillation of Language Models", equation 1, with TRL's meaning of beta and its
limits at 0 and 1, which are not those of the formula between (those are 0). Not multiplied by T^2.
Shapes: student and teacher (..., V), target (...,); N is the number of rows.
Precision: all of it in fp32 (fp64 for fp64), as if the logits were upcast first; the gradient is rounded once to the
student's dtype. The loss is fp32 (fp64 for fp64).
"""

from __future__ import annotations

import math

import torch

from liger.dispatch import public, run
from liger_kernels_loss._pairs import NumItems, check_beta, check_rows, check_temperature, kept_logits, reduce_rows

OP = "jsd"


# -- Reference ---------------------------------------------------------------------------------------------------------
def jsd_reference(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
) -> torch.Tensor:
    """The definition, in plain torch."""
    q, p = (torch.log_softmax(kept_logits(t, target, ignore_index) / temperature, -1) for t in (student, teacher))
    if beta == 0.0:
        rows = _divergence(p, q)
    elif beta == 1.0:
        rows = _divergence(q, p)
    else:
        nowhere = (p == -torch.inf) & (q == -torch.inf)  # where logaddexp has no derivative
        m = torch.logaddexp(*(t.masked_fill(nowhere, 0.0) + math.log(w) for t, w in ((p, beta), (q, 1.0 - beta))))
        rows = beta * _divergence(p, m) + (1.0 - beta) * _divergence(q, m)
    return reduce_rows(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items)


def _divergence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """KL(A || B) of log-probabilities a, b (..., V) -> (...,)."""
    probability = a.exp()
    return (probability * (a - b).masked_fill(probability == 0.0, 0.0)).sum(-1)


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def jsd(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """Distillation loss: forward KL (beta=0), reverse KL (beta=1), or the Jensen-Shannon divergence between them.

    Args:
        student: (..., V) floating: logits, or log-probabilities, which are logits too. They are only read.
        teacher: (..., V) floating, of any such dtype; it may not require a gradient. Its gradient is the student's of
            ``jsd(teacher, student.detach(), beta=1 - beta)``.
        target: (...,) integers or None: rows with ``ignore_index`` have loss 0 and gradient 0 and do not count in the
            mean, whatever their logits are. Not shifted; other values mean nothing here.
        beta: in [0, 1].
        temperature: positive; divides the logits of both. The loss is not multiplied by its square.
        ignore_index: see ``target``.
        reduction: "mean" over the kept rows, "sum", or "none". If every row is ignored the mean is nan, the sum is 0,
            and all gradients are 0.
        num_items: divides the sum over rows, in place of what "mean" divides by; a number or a tensor of one element.
            Not with "none".
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64 logits): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, an option lies outside its range, or the teacher requires a gradient.
        TypeError: an argument is of the wrong type, or a tensor is not of the right kind or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> student = torch.tensor([[0.0, 1.0], [0.0, 0.0]], requires_grad=True)
        >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 9.0]])
        >>> labels = torch.tensor([1, -100])  # the second row is ignored
        >>> loss = liger.ops.jsd(student, teacher, labels, beta=0.0, temperature=2.0)
        >>> loss
        tensor(0.1225, grad_fn=<DivBackward0>)
        >>> loss.backward()
        >>> student.grad
        tensor([[-0.1225,  0.1225],
                [ 0.0000,  0.0000]])
    """
    target = check_rows(OP, student, teacher, target, ignore_index, reduction, num_items)
    options = {
        "beta": check_beta(OP, beta),
        "temperature": check_temperature(OP, temperature),
        "ignore_index": ignore_index,
        "reduction": reduction,
        "num_items": num_items,
    }
    return run(OP, (student, teacher, target), options, sizes={"V": student.shape[-1]}, kernel=kernel)  # type: ignore[no-any-return]
