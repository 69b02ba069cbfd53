"""Who is compared: our Triton kernels, the reference in eager and compiled, and the peers that an op declares."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from liger.bench import MODES, Peer
from liger.bench.options import Options
from liger.bench.plan import Point
from liger.declare import Kernel, Op, load
from liger.errors import PluginError


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to compute an op.

    Attributes:
        name: what tables call it.
        fn: takes the tensors and options of the op.
        kernel: our declaration, if it is ours.
        overwrites, capture, modes: as of a `Peer`.
        compiled: by ``torch.compile``, which takes seconds.
    """

    name: str
    fn: Callable[..., Any]
    kernel: Kernel | None = None
    overwrites: bool = False
    capture: bool = True
    modes: tuple[str, ...] = MODES
    compiled: bool = False


def providers(point: Point, options: Options) -> list[Provider]:
    """All that are installed, serve the op and were not excluded by hand; ours first."""
    everyone = (*ours(point), *_torch(point.op, options.device), *_peers(point.op, options.device))
    return [p for p in everyone if not options.providers or p.name.partition("/")[0] in options.providers]


def ours(point: Point) -> Iterator[Provider]:
    """The kernel of the highest rank is "ours", others are "ours/<name>"."""
    for i, kernel in enumerate(point.kernels):
        fn = functools.partial(load(point.op.public), kernel=kernel.name)
        yield Provider(name=f"ours/{kernel.name}" if i else "ours", fn=fn, kernel=kernel)


def eager(op: Op) -> Provider:
    """The reference as it stands."""
    return Provider(name="eager", fn=load(op.reference))


def _torch(op: Op, device: str) -> Iterator[Provider]:
    yield eager(op)
    # inductor on a CPU would need a C++ compiler and say nothing about a GPU
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(load(op.reference), dynamic=False, backend=backend)
    yield Provider(name="torch.compile", fn=compiled, compiled=True)


def _peers(op: Op, device: str) -> Iterator[Provider]:
    for name, target in op.peers.items():
        peer = load(target)
        if not isinstance(peer, Peer):
            raise PluginError(f"{op.name}: peer {name!r}, {target}, is not made with @liger.bench.peer")
        if _installed(peer.module) and not (peer.cuda and device != "cuda"):
            yield Provider(name=name, fn=peer.fn, overwrites=peer.overwrites, capture=peer.capture, modes=peer.modes)


def _installed(module: str) -> bool:
    """Whether a peer is there. Where liger-compat is installed, ``liger_kernel`` is our own kernels by another name."""
    if module == "liger_kernel" and any(metadata.distributions(name="liger-compat")):
        return False
    return importlib.util.find_spec(module) is not None
