"""What one worker is asked to do, and what it answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

Side = Literal["unpatched", "patched"]
SIDES: tuple[Side, Side] = ("unpatched", "patched")
LOGIT_COPIES = 3
"""Tensors of tokens x vocabulary in fp32 that the unfused loss holds at its peak, in the backward pass: the log
probabilities it saved, their gradient, and the gradient of the logits. A soft cap saves its tanh as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One side of the demo.

    Attributes:
        subject: `smollm2`, or the model type of a mini.
        side: whether `liger.autopatch` is called.
        steps, tokens: the full fine-tune, whose losses are compared.
        memory_steps, memory_tokens: the run with only the head trained, whose memory is compared.
        device: None lets the worker take CUDA where there is any.
    """

    subject: str
    side: Side
    steps: int
    tokens: int
    memory_steps: int
    memory_tokens: int
    device: str | None = None
    seed: int = 0
    learning_rate: float = 3e-5

    def to_json(self) -> str:
        """One line, for the worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`."""
        return cls(**json.loads(text))

    @property
    def units(self) -> int:
        """Steps of the progress bar: loading counts as one."""
        return 1 + self.memory_steps + self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one worker measured. Memory is in bytes above the level after model and optimiser exist.

    Attributes:
        losses: of each step of the full fine-tune.
        memory_losses: of each step of the memory run.
        memory: peak of the memory run; None where the platform gives no way to measure.
        full_memory: peak of the full fine-tune, optimiser state included.
        tokens_per_second: of the full fine-tune, its first step left out.
        report: of `autopatch`, as data and as text; None on the unpatched side.
    """

    losses: list[float]
    memory_losses: list[float]
    memory: int | None
    full_memory: int | None
    memory_how: str
    tokens_per_second: float
    device: str
    model: str
    parameters: int
    vocabulary: int
    hidden: int
    softcap: bool
    versions: dict[str, str]
    report: dict[str, Any] | None = None
    report_text: str | None = None

    def logits_bytes(self, spec: Spec) -> int:
        """What the unfused loss holds of the memory run's logits at its peak."""
        return self.logit_copies * 4 * spec.memory_tokens * self.vocabulary

    @property
    def logit_copies(self) -> int:
        """How many tensors of that size these are."""
        return LOGIT_COPIES + self.softcap
