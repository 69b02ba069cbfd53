"""A kernel's profile is true: its tier, its gradients, and what it says to keep for the backward."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from liger.bench import MODES
from liger.declare import Kernel, load
from liger.testing.behaviour import fail, gradients, named, prepare
from liger.testing.cases import Case, make_cases, typical
from liger.testing.contract import flat, random_like
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
    if (wanted := _differentiated(kernel)) != set(declared.gradients):
        fail(
            f"the profile has gradient formulas of {', '.join(sorted(declared.gradients)) or 'nothing'}; the cases "
            f"differentiate {', '.join(sorted(wanted)) or 'nothing'}"
        )
    kept = _kept(forward)
    expected = [_size_of(text, named, case) for text in declared.saved]
    found = [(tuple(t.shape), t.dtype) for t in kept]
    if sorted(map(str, found)) != sorted(map(str, expected)):
        fail(f"the profile says {declared.saved} is saved, which is {expected}; found {found}")


def _differentiated(kernel: Kernel) -> set[str]:
    """Names of the arguments that require a gradient in some case; none for an op without gradients."""
    tensors, options = typical(kernel).make("cpu")
    found: set[str] = set()
    if not any(o.requires_grad for o in flat(load(typical(kernel).op.reference)(*tensors, **options))):
        return found
    for case in make_cases(kernel):
        tensors, _ = case.make("cpu")
        found |= {n for n, t in zip(case.arguments(), tensors, strict=False) if t is not None and t.requires_grad}
    return found


def moved_bytes(kernel: Kernel, device: str) -> None:
    """``Kernel.bytes`` names modes of the benchmarks, and at least what has to be read and written at all.

    At most four times that, unless products make something larger on the way (``Kernel.flops``).
    """
    if kernel.bytes is None:
        fail(f"{kernel.id} does not say how many bytes it moves")
    case = typical(kernel)
    tensors, options = case.make(device)
    outputs = flat(case.public()(*tensors, **options))
    made = gradients(outputs, tensors, random_like(outputs))
    moved = load(kernel.bytes)(tensors, options)
    if not moved or set(moved) - set(MODES):
        fail(f"{kernel.bytes} returns bytes for {', '.join(moved) or 'nothing'}, expected some of {', '.join(MODES)}")
    read = sum(t.nbytes for t in tensors if t is not None and t.requires_grad)
    written = {"forward": sum(o.nbytes for o in outputs), "backward": sum(g.nbytes for g in made if g is not None)}
    for mode, amount in moved.items():
        least = read + (sum(written.values()) if mode == "full" else written[mode])
        most = 4 * (least + sum(t.nbytes for t in tensors if t is not None))
        if amount < 0.9 * least or (amount > most and not kernel.flops):  # a loss, a row's label may be left out
            fail(f"{kernel.bytes} says {mode} moves {amount} bytes, expected about {least} to {most}")


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
        known = [n for word in words for n in word.split(" * ") if n in case.sizes or n.isdigit()]
        if len(known) < sum(len(word.split(" * ")) for word in words) or not isinstance(
            getattr(torch, spec[2], None), torch.dtype
        ):
            fail(f"saved says {text!r}: sizes are {', '.join(case.sizes)}, dtypes as in torch (float32)")
        shape = tuple(math.prod(case.sizes.get(n) or int(n) for n in word.split(" * ")) for word in words)
        return shape, getattr(torch, spec[2])
    name = text.partition(" like ")[2] or text
    if name not in named:
        fail(f"saved names {text!r}: expected an argument, 'name like argument', or 'name (R, ...) dtype'")
    return tuple(named[name].shape), named[name].dtype


CHECKS = named(profile, moved_bytes)
