"""jsd and its gradient on logits that are at hand, in plain torch; ``jsd.py`` holds the formulas."""

from __future__ import annotations

import math

import torch

from liger_kernels_loss._chunks import block_rows


def torch_pair(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    factor: torch.Tensor | None,
    losses: torch.Tensor,
    beta: float,
    temperature: float,
    ignore_index: int,
    out: torch.Tensor | None,
) -> None:
    """Write the losses of student and teacher (n, V) into ``losses`` (n,), and dstudent into ``out``, if given.

    ``target`` (n,) says with ``ignore_index`` which rows are ignored. ``factor`` (n,) multiplies the gradient; None is
    1. ``out`` may be the student or the teacher.
    """
    size = block_rows(student)
    for start in range(0, student.shape[0], size):
        part = slice(start, start + size)
        lq, lp = (torch.log_softmax(t[part].to(losses.dtype).div(temperature), 1) for t in (student, teacher))
        loss, g = _terms(lq, lp, beta)
        ignored = None if target is None else target[part] == ignore_index
        losses[part] = loss if ignored is None else loss.masked_fill(ignored, 0.0)
        if out is not None:
            d = _gradient(lq, lp, g).div_(temperature)
            if factor is not None:
                d.mul_(factor[part, None])
            out[part] = d if ignored is None else d.masked_fill_(ignored[:, None], 0.0)


def _terms(lq: torch.Tensor, lp: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs (n, V) -> losses (n,), and g (n, V), of which the gradient is made; None for forward KL."""
    if beta == 0.0:
        return _expected(lp, lp - lq), None
    if beta == 1.0:
        g = lq - lp
        return _expected(lq, g), g
    m = torch.logaddexp(lp + math.log(beta), lq + math.log(1.0 - beta))
    g = (lq - m).mul_(1.0 - beta)
    return _expected(lp, lp - m).mul_(beta).add_(_expected(lq, g)), g


def _expected(logs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(n,): mean of the values under exp(logs); where that is 0 they have no part."""
    p = logs.exp()
    return p.mul(values).masked_fill_(p == 0.0, 0.0).sum(1)


def _gradient(lq: torch.Tensor, lp: torch.Tensor, g: torch.Tensor | None) -> torch.Tensor:
    """dloss/dz * temperature (n, V)."""
    q = lq.exp()
    if g is None:
        return q.sub_(lp.exp())
    return g.sub_(_expected(lq, g)[:, None]).mul_(q).masked_fill_(q == 0.0, 0.0)
