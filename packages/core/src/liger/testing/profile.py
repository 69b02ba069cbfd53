"""A kernel's profile is true: its tier, its gradients, and what it says to keep for the backward."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from liger.declare import Kernel
from liger.testing.behaviour import fail, prepare
from liger.testing.cases import Case, typical
from liger.testing.memory import alive

TIERS = ("elementwise", "reduction", "fused")


def profile(kernel: Kernel, device: str) -> None:
    """The kernel declares a profile; its tier, its gradients and what it says to save are true."""
    declared = kernel.profile
    if declared is None:
        fail(f"{kernel.id} declares no profile")
    if declared.tier not in TIERS:
        fail(f"tier is {declared.tier!r}, expected one of {', '.join(TIERS)}")
    case = typical(kernel)
    tensors, forward = prepare(case, device)
    named = dict(zip(case.arguments(), tensors, strict=False))
    wanted = [name for name, t in named.items() if t is not None and t.requires_grad]
    if missing := set(wanted) - set(declared.gradients):
        fail(f"the profile gives no gradient formula of {', '.join(sorted(missing))}")
    kept = _kept(forward)
    expected = [_size_of(text, named, case) for text in declared.saved]
    found = [(tuple(t.shape), t.dtype) for t in kept]
    if sorted(map(str, found)) != sorted(map(str, expected)):
        fail(f"the profile says {declared.saved} is saved, which is {expected}; found {found}")


def _kept(forward: Callable[[], Any]) -> list[torch.Tensor]:
    """Tensors of more than one element that are alive for the backward, beside outputs: each storage once."""
    packed: list[torch.Tensor] = []
    before = {id(t) for t in alive()}
    with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        outputs = forward()
    new = [t for t in alive() if id(t) not in before]
    mine = {o.untyped_storage().data_ptr() for o in outputs}
    unique = {t.untyped_storage().data_ptr(): t for t in (*new, *packed) if t.numel() > 1}
    return [t.detach() for pointer, t in unique.items() if pointer not in mine]


def _size_of(text: str, named: Mapping[str, Any], case: Case) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of ``"x"``, ``"dx like x"`` or ``"rstd (R,) float32"``."""
    if spec := re.fullmatch(r"\w+ \(([^)]*)\) (\w+)", text):
        words = [word.strip() for word in spec[1].split(",") if word.strip()]
        shape = tuple(math.prod(case.sizes.get(n) or int(n) for n in word.split(" * ")) for word in words)
        return shape, getattr(torch, spec[2])
    name = text.partition(" like ")[2] or text
    if name not in named:
        fail(f"saved names {text!r}: expected an argument, 'name like argument', or 'name (R, ...) dtype'")
    return tuple(named[name].shape), named[name].dtype


CHECKS: dict[str, Callable[[Kernel, str], None]] = {"profile": profile}
