"""What `liger bench` can be asked. One parser, also where there is no typer; nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liger.bench import MODES
from liger.bench.models import config
from liger.declare import Kernel
from liger.registry import registry

OUT = Path("build/bench")  # of runs whose times are not to be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a run, checked; see `parser` for what they mean."""

    ops: tuple[str, ...] = ()
    out: Path | None = None
    kernels: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    seconds: float = 1800.0
    smoke: bool = False
    model: str | None = None
    tokens: int = 16384
    base: str | None = None
    ncu: bool = False

    @property
    def device(self) -> str:
        """``cpu`` for a smoke run, else ``cuda``."""
        return "cpu" if self.smoke else "cuda"

    @property
    def repetitions(self) -> int:
        """Interleaved repetitions of each measurement; an interval needs two."""
        return 2 if self.smoke else 5

    def chosen(self) -> dict[str, list[Kernel]]:
        """The Triton kernels to time by op, highest rank first."""
        found: dict[str, list[Kernel]] = {}
        for op in self.ops or registry().ops:
            kernels = [k for k in registry().kernels(op) if k.needs.interpreter]
            kernels = [k for k in kernels if not self.kernels or k.id in self.kernels]
            if kernels:
                found[op] = sorted(kernels, key=lambda k: -k.rank)
        return found


def names(text: str) -> tuple[str, ...]:
    """``a,b`` as a tuple.

    Raises:
        ArgumentTypeError: there is no name.
    """
    if found := tuple(part.strip() for part in text.split(",") if part.strip()):
        return found
    raise argparse.ArgumentTypeError(f"expected names with commas between them, got {text!r}")


def parser() -> argparse.ArgumentParser:
    """The parser of `liger bench`."""
    p = argparse.ArgumentParser(
        prog="liger bench",
        description="Verify every Triton kernel, then time it beside its peers.",
        epilog="liger bench compare OLD NEW: what became slower or larger between two results.",
    )
    add = p.add_argument
    add("ops", nargs="*", metavar="OP", help="ops to time; all by default")
    add("--out", type=Path, metavar="DIR", help="one JSON per op, table.md, plots; benchmarks/results/<gpu> by default")
    add("--kernels", type=names, default=(), metavar="OP/NAME,...", help="kernels of ours to time; all by default")
    add("--providers", type=names, default=(), metavar="NAME,...", help="ours, eager, torch.compile, names of peers")
    add("--modes", type=names, default=MODES, metavar="MODE,...", help=f"of {', '.join(MODES)}; all by default")
    add("--seconds", type=float, default=1800.0, help="what comes later is left out, compilation first; default 1800")
    add("--model", metavar="NAME|CONFIG", help="take sizes from a well-known model, or from a config.json")
    add("--tokens", type=int, default=16384, help="tokens of a step, with --model; default 16384")
    one = p.add_mutually_exclusive_group().add_argument
    one("--base", metavar="SHA", help="time our kernels of that commit and of this checkout in turn, nothing else")
    one("--ncu", action="store_true", help="profile one call of each kernel and mode with ncu, nothing else")
    add("--smoke", action="store_true", help="all of it in toy sizes on a CPU, in triton's interpreter")
    return p


def _refuse_ignored(given: Mapping[str, Any]) -> None:
    alone = "--base" if given["base"] else "--ncu" if given["ncu"] else ""
    ignored = {
        "tokens": "" if given["model"] else "without --model",
        "providers": alone and f"with {alone}",
        "seconds": alone and f"with {alone}",
        "out": "with --ncu" if given["ncu"] else "",
    }
    for name, where in ignored.items():
        if where and given[name] != parser().get_default(name):
            raise ValueError(f"--{name} would have no effect {where}; leave it out")


def parse(arguments: Sequence[str]) -> Options:
    """The options, or an error that lists what there is.

    Raises:
        ValueError: a name is unknown, or nothing is left to time.
        SystemExit: the command line is malformed.
    """
    given = vars(parser().parse_intermixed_args(arguments))
    _refuse_ignored(given)
    options = Options(**{**given, "ops": tuple(given["ops"])})
    known = {
        "op": (options.ops, set(registry().ops)),
        "kernel": (options.kernels, {k.id for op in registry().ops for k in registry().kernels(op)}),
        "provider": (options.providers, {"ours", "eager", "torch.compile", *_peers()}),
        "mode": (options.modes, set(MODES)),
    }
    for kind, (asked, there) in known.items():
        for name in asked:
            if name not in there:
                raise ValueError(f"there is no {kind} {name!r}; known: {', '.join(sorted(there))}")
    if options.smoke and options.model:
        raise ValueError("--smoke has toy sizes of its own: leave out --model")
    if options.model:
        config(options.model)
    if options.tokens < 1 or not options.seconds > 0:  # nan is not
        raise ValueError(f"--tokens {options.tokens} and --seconds {options.seconds} must be positive")
    if not options.chosen():
        asked_for = " ".join(arguments) or "every op"
        raise ValueError(f"nothing to time: no Triton kernel is registered for {asked_for}")
    _all_of_it(options)
    return options


def _all_of_it(options: Options) -> None:
    """Raise unless each op and kernel that was named is timed."""
    chosen = options.chosen()
    if dropped := set(options.ops) - chosen.keys():
        raise ValueError(f"no Triton kernel of {', '.join(sorted(dropped))} is among those chosen: leave the op out")
    if dropped := set(options.kernels) - {k.id for kernels in chosen.values() for k in kernels}:
        raise ValueError(f"{', '.join(sorted(dropped))}: no Triton kernel, or of an op that was not chosen")


def set_environment(smoke: bool) -> None:
    """Set what triton reads when it is first imported."""
    if smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as in the tests; triton 3.10 changes the default


def _peers() -> set[str]:
    return {name for op in registry().ops.values() for name in op.peers}
