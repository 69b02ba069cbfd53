"""Share of tokens whose most likely prediction is the label, without the full logits."""

from __future__ import annotations

import torch
from torch import Tensor

from liger.launch import private_op

CHUNK_ELEMENTS = 1 << 26  # logits alive at a time: 128 MiB in bf16


def _fake(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, sign: float
) -> Tensor:
    return hidden.new_empty((), dtype=torch.float32)


@private_op("token_accuracy", _fake)
def token_accuracy(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, sign: float
) -> Tensor:
    """Accuracy over the kept rows, nan if there is none.

    Args:
        hidden: (N, H).
        weight, bias: the head, (V, H) and (V,).
        target: (N,) labels, already shifted.
        ignore_index: label of rows that do not count.
        sign: of the logit scale. Scaling by a positive number and soft-capping do not move the largest logit.

    Returns:
        () fp32; no gradient.
    """
    rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
    hits = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for part, labels in zip(torch.split(hidden.detach(), rows), torch.split(target, rows), strict=True):
        logits = torch.nn.functional.linear(part, weight.detach(), bias)
        best = (logits if sign > 0 else -logits).argmax(-1)
        hits += ((best == labels) & (labels != ignore_index)).sum()
    return hits / (target != ignore_index).sum()


def accuracy_of_logits(logits: Tensor, labels: Tensor, shift_labels: Tensor | None, ignore_index: int) -> Tensor:
    """The same from full logits (..., T, V)."""
    target = shifted(labels, shift_labels, ignore_index).to(logits.device)
    kept = target != ignore_index
    return ((logits.detach().argmax(-1) == target) & kept).sum() / kept.sum()


def shifted(labels: Tensor, shift_labels: Tensor | None, ignore_index: int) -> Tensor:
    """Labels (..., T) moved so that position t holds the token that t predicts; ``shift_labels`` are so already."""
    if shift_labels is not None:
        return shift_labels
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
