"""What a patched model, its head and its loss function share during a forward."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from liger_hf import transform

SLOT = "_liger_slot"


class Slot:
    """The pending head call of one patched model; its forward, its head and its loss function share this object.

    Never a thread-local or a class default: dynamo's guards fail on those at the second call.
    """

    __slots__ = (
        "accuracy",
        "consumed",
        "floats",
        "hidden",
        "known",
        "open",
        "rowwise",
        "shape",
        "thread",
        "want_accuracy",
    )

    def __init__(self, known: transform.Known | None = None, floats: tuple[str, ...] = ()) -> None:
        self.known, self.floats = known, floats
        self.open = self.consumed = self.want_accuracy = False
        self.hidden: Tensor | None = None
        self.accuracy: Tensor | None = None
        self.shape: tuple[int, ...] = ()
        self.rowwise: tuple[Any, bool] | None = None  # of which head, with which adapters: whether it goes by rows
        self.thread = 0

    def __reduce__(self) -> tuple[type[Slot], tuple[None, tuple[str, ...]]]:
        return Slot, (None, self.floats)

    def enter(self, shape: tuple[int, ...], want_accuracy: bool = False) -> None:
        """Open the slot for one forward over labels of ``shape``."""
        if not torch.compiler.is_compiling():
            thread = threading.get_ident()
            if self.open and self.thread != thread:
                raise RuntimeError(
                    "a patched model was entered by a second thread while the first is in its forward; "
                    "give each thread its own model, or unpatch it (nn.DataParallel is not supported)"
                )
            self.thread = thread
        self.open, self.consumed, self.want_accuracy = True, False, want_accuracy
        self.hidden, self.accuracy, self.shape = None, None, shape

    def leave(self) -> None:
        """Forget everything."""
        self.open, self.hidden, self.accuracy = False, None, None
