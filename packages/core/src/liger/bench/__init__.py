"""Benchmarks: verify every kernel, then time it beside its peers.

    liger bench rms_norm              # the same as python -m liger.bench, which needs no typer
    liger bench compare OLD NEW       # did anything become slower or larger?

`options` says what can be asked, `plan` what is timed, `run` does it, `rows` says what must have come out, `report` and
`plots` show it, `compare` holds two results against each other, `base` times two commits in turn, `ncu` profiles. A
package declares its `Peer`s with this module, which like `options` imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["MODES", "Peer", "peer"]

MODES = ("forward", "backward", "full")
"""What is timed; "full" is a forward and a backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another library's way to compute an op, called with the op's tensors and options.

    Attributes:
        fn: imports the library when it is called; an ImportError is reported.
        module: what has to be installed, to import.
        cuda: it needs a GPU.
        overwrites: it writes into its arguments, so it gets copies of its own.
        capture: it can be captured in a CUDA graph; what waits for the device cannot.
        modes: where it compares; one that makes its gradients in the forward compares in "full" alone.
    """

    fn: Callable[..., Any]
    module: str
    cuda: bool = True
    overwrites: bool = False
    capture: bool = True
    modes: tuple[str, ...] = MODES


def peer(
    module: str, *, cuda: bool = True, overwrites: bool = False, capture: bool = True, modes: tuple[str, ...] = MODES
) -> Callable[[Callable[..., Any]], Peer]:
    """Decorate a function that ``Op.peers`` names; the arguments are the attributes of `Peer`."""

    def decorate(fn: Callable[..., Any]) -> Peer:
        return Peer(fn=fn, module=module, cuda=cuda, overwrites=overwrites, capture=capture, modes=modes)

    return decorate
