"""Finds out what lies between head and loss by feeding known logits through upstream's own forward."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from liger.errors import PatchRefused
from liger_hf import stub

TOKENS = 3


class Transform(NamedTuple):
    """``logits -> softcap * tanh(logits * scale / softcap)``, or ``logits * scale`` without a soft cap."""

    scale: float
    softcap: float | None


class _Reached(Exception):
    def __init__(self, logits: Tensor, labels: Any, vocab_size: Any, kwargs: dict[str, Any]) -> None:
        self.logits, self.labels, self.vocab_size, self.kwargs = logits, labels, vocab_size, kwargs


def _record(logits: Any = None, labels: Any = None, vocab_size: Any = None, **kwargs: Any) -> NoReturn:
    raise _Reached(logits, labels, vocab_size, kwargs)


def find(model: Any, vocab: int, width: int) -> Transform:
    """Return the transform of a causal LM with a head of shape (vocab, width).

    Raises:
        PatchRefused: upstream does anything else between head and loss, with the reason.
    """
    generator = torch.Generator().manual_seed(0)
    grid = torch.randn(1, TOKENS, vocab, generator=generator) * 20
    grid[0, 0, 0], grid[0, 1, 0], grid[0, 2, 0] = 1e-3, 1e6, -1e6
    labels = torch.arange(TOKENS)[None] % vocab
    calls: list[tuple[int, ...]] = []

    def head(hidden: Tensor) -> Tensor:
        calls.append(tuple(hidden.shape))
        return grid.clone()

    reached = _run(model, torch.zeros(1, TOKENS, width), head, labels)
    if calls != [(1, TOKENS, width)]:
        raise PatchRefused(f"its forward calls the head with shapes {calls}, expected [{(1, TOKENS, width)}]")
    if reached.labels is not labels or reached.kwargs.get("shift_labels") is not None:
        raise PatchRefused("its forward changes the labels before the loss function")
    if reached.vocab_size != vocab:
        raise PatchRefused(f"it passes vocab_size={reached.vocab_size} to the loss, the head has {vocab} rows")
    return _identify(grid, reached.logits.float())


def _run(model: Any, hidden: Tensor, head: Any, labels: Tensor) -> _Reached:
    try:
        with torch.no_grad():
            stub.run(model, hidden, head=head, loss=_record, labels=labels)
    except _Reached as reached:
        return reached
    except PatchRefused:
        raise
    except Exception as error:
        raise PatchRefused(f"a probe of its forward failed with {type(error).__name__}: {error}") from error
    raise PatchRefused("its forward does not call self.loss_function")


def _identify(grid: Tensor, found: Tensor) -> Transform:
    if found.shape != grid.shape:
        raise PatchRefused(f"its forward reshapes the logits from {tuple(grid.shape)} to {tuple(found.shape)}")
    scale = (found[0, 0, 0] / grid[0, 0, 0]).item()
    scale = 1.0 if abs(scale - 1) < 1e-4 else scale
    if torch.allclose(found, grid * scale, rtol=1e-4, atol=1e-4):
        return Transform(scale, None)
    softcap = found[0, 1, 0].item()
    if softcap > 0 and torch.allclose(
        found, softcap * torch.tanh(grid * (scale / softcap)), rtol=1e-3, atol=1e-3 * softcap
    ):
        return Transform(scale, softcap)
    raise PatchRefused("what its forward does between head and loss is neither a scale nor a soft cap")
