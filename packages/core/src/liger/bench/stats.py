"""Quantiles, and how sure a ratio of two times is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's t, two-sided 95 %, 1 to 9 degrees


class Ratio(NamedTuple):
    """A ratio of two times and its 95 % interval."""

    value: float
    low: float
    high: float

    def within(self, part: float) -> bool:
        """Whether it may be 1: "within 2 %" is ``within(0.02)``, the interval reaching into 0.98 to 1.02."""
        return self.low <= 1 + part and self.high >= 1 - part

    def __str__(self) -> str:
        """``1.03 (1.01-1.05)``."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio of the medians of interleaved repetitions.

    The interval is Student's, of the logarithms of the ratios within each repetition, in which both met the same clock.
    """
    value = statistics.median(ours) / statistics.median(theirs)
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if len(logs) < 2:
        return Ratio(value, 0.0, math.inf)
    half = T95[min(len(logs) - 2, len(T95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(value, value * math.exp(-half), value * math.exp(half))


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p20, p50, p80."""
    if len(values) == 1:
        return (values[0],) * 3
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]
