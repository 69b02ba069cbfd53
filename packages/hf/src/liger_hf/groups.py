"""Names under which users switch ops on and off, as configurations of trainers have them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

from liger.registry import registry

GROUPS: dict[str, tuple[str, ...]] = {
    "rope": ("rope", "rope_complex", "mrope", "qk_norm_rope"),
    "cross_entropy": ("cross_entropy",),
    "fused_linear_cross_entropy": ("linear_cross_entropy",),
    "rms_norm": ("rms_norm", "gated_rms_norm"),
    "layer_norm": ("layer_norm", "cohere_norm"),
    "swiglu": ("silu_mul", "silu_mul_packed", "silu_mul_clamped", "silu_mul_clamped_packed"),
    "geglu": ("gelu_mul", "gelu_mul_packed"),
    "relu_squared": ("relu_squared",),
}
"""Name -> the ops whose fits it switches. The name of an op that is in no group stands for itself."""
LOSSES = ("cross_entropy", "fused_linear_cross_entropy")


def ops_of(names: Iterable[str]) -> set[str]:
    """The ops that names of groups and of ops stand for.

    Raises:
        ValueError: one is neither.
    """
    found: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in registry().ops:
            known = ", ".join([*GROUPS, *sorted(registry().ops.keys() - set().union(*GROUPS.values()))])
            raise ValueError(f"no module is called {name!r}; known: {known}")
        found |= set(GROUPS.get(name, (name,)))
    return found


def group_of(op: str) -> str:
    """The name that a user switches an op by."""
    return next((name for name, ops in GROUPS.items() if op in ops), op)
