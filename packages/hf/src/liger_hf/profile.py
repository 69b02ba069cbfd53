"""What is known about a model type: answers, each with its evidence, and how they are printed."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

UNKNOWN = "unknown"


class Answer(NamedTuple):
    """One answer.

    Attributes:
        value: JSON data; None says that it is not known.
        evidence: a line of upstream's source, or the probe that shows it; why, where it is not known.
    """

    value: Any
    evidence: str

    def text(self) -> str:
        """The value in one line."""
        if self.value is None:
            return UNKNOWN
        if isinstance(self.value, str):
            return self.value
        if isinstance(self.value, list):
            return ", ".join(map(str, self.value)) or "none"
        if isinstance(self.value, Mapping) and not any(isinstance(v, (dict, list)) for v in self.value.values()):
            return ", ".join(f"{name}: {value}" for name, value in self.value.items()) or "none"
        return json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class Profile:
    """All answers about one model type."""

    model_type: str
    transformers: str
    answers: Mapping[str, Answer]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        answers = {name: answer._asdict() for name, answer in self.answers.items()}
        return {"model_type": self.model_type, "transformers": self.transformers, "answers": answers}

    def markdown(self) -> str:
        """A table to paste into an issue."""
        lines = [f"# {self.model_type} (transformers {self.transformers})", "", "| what | answer | evidence |"]
        lines.append("|---|---|---|")
        for name, answer in self.answers.items():
            cells = (name, answer.text(), answer.evidence)
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [f"{self.model_type} in transformers {self.transformers}"]
        for name, answer in self.answers.items():
            lines += [f"{name}: {answer.text()}", f"    {answer.evidence}"]
        return "\n".join(lines)


def line_of(thing: Any, pattern: str = "") -> tuple[str, str]:
    """The first line of the source of a class or function in which ``pattern`` is found, and ``file.py:12``.

    Raises:
        LookupError: no line has it.
    """
    thing = inspect.unwrap(thing) if not isinstance(thing, type) else thing
    lines, start = inspect.getsourcelines(thing)
    file = Path(inspect.getsourcefile(thing) or "?").name
    for at, line in enumerate(lines):
        if re.search(pattern, line):
            return line.strip(), f"{file}:{start + at}"
    raise LookupError(f"no line of {thing.__qualname__} has {pattern!r}")


def where(thing: Callable[..., Any] | type) -> str:
    """``file.py:12``, of a class or function."""
    return line_of(thing)[1]
