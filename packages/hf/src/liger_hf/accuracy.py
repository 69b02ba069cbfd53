"""Share of tokens whose most likely prediction is the label, and which label a token has."""

from __future__ import annotations

import torch
from torch import Tensor


def accuracy_of_logits(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Accuracy over the kept tokens from full logits (..., T, V) and what each should predict; nan if there is none."""
    target = target.to(logits.device)
    kept = target != ignore_index
    return ((logits.detach().argmax(-1) == target) & kept).sum() / kept.sum()


def shifted(labels: Tensor | None, shift_labels: Tensor | None, ignore_index: int) -> Tensor:
    """Labels (..., T) moved so that position t holds the token that t predicts; ``shift_labels`` are so already."""
    if shift_labels is not None:
        return shift_labels
    assert labels is not None  # our own bug: no loss is computed without one of them
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
