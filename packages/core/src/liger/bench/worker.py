"""Our kernels of the revision that is on the import path, in a process of their own.

``python -m liger.bench.worker [--smoke]`` reads a JSON object per line and answers with one:
``{"declared": op}`` says how an op is tested, ``{"load": spec}`` verifies and measures memory, ``{"mode": name}``
readies, ``{"sample": 1}`` times one repetition, ``{"free": 1}`` gives memory back. A spec is what ``Point.spec`` gives.
``--profile SPEC``, where a spec has a "mode" too, makes one call between the marks of CUDA's profiler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from liger.bench.options import Options, set_environment
from liger.registry import registry

DECLARED = ("reference", "inputs", "options", "sizes", "mixed", "variants", "reduction")  # of an op


def command(smoke: bool, *arguments: str) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "liger.bench.worker", *(["--smoke"] if smoke else []), *arguments]


class Side:
    """One kernel at one point."""

    def __init__(self, spec: Mapping[str, Any], options: Options) -> None:
        from liger.bench.plan import Series, point
        from liger.bench.providers import ours

        kernels = [k for k in registry().kernels(spec["op"]) if k.id == spec["kernel"]]
        if not kernels:
            raise ValueError(f"there is no kernel {spec['kernel']}")
        series = Series("", spec["variant"], ())
        self.device = options.device
        self.point = point(registry().op(spec["op"]), kernels, series, dict(spec["sizes"]), options)
        self.provider = next(ours(self.point))
        self.inputs = self.point.make(self.device)
        self.runner: Any = None

    def verified(self) -> dict[str, float | None]:
        """Peaks in MiB by mode, once the results are known to be right."""
        from liger.bench.measure import arguments, peaks, release
        from liger.bench.providers import eager
        from liger.bench.verify import compare, contract, results

        assert self.provider.kernel is not None
        contract(self.provider.kernel, self.point, self.device)
        truth = results(eager(self.point.op).fn, self.inputs.leaves())
        compare(results(self.provider.fn, arguments(self.inputs, self.provider)), truth)
        del truth
        found = peaks(self.provider, self.inputs, self.device)
        release(self.device)  # the other side needs it
        return found

    def ready(self, mode: str) -> None:
        """Make what is sampled next."""
        from liger.bench.measure import make_runner, release

        self.runner = None
        release(self.device)
        self.runner = make_runner(self.provider, mode, self.inputs, self.device)
        self.runner.sample()

    def profile(self, mode: str) -> None:
        """One call between the profiler's marks, after one that compiles."""
        import torch

        from liger.bench.inputs import backward, forward, seeds

        fn, inputs = self.provider.fn, self.inputs
        given = seeds(forward(fn, inputs))
        for last in (False, True):
            outputs = None if mode != "backward" else forward(fn, inputs)
            if last and self.device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            outputs = outputs or forward(fn, inputs)
            if mode != "forward":
                backward(outputs, inputs, given)
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def serve(options: Options) -> None:
    """Answer until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no reply
    side: Side | None = None
    for line in sys.stdin:
        try:
            side, reply = answer(json.loads(line), side, options)
        except Exception as error:  # the driver says it and stops
            side, reply = None, {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        print(json.dumps(reply), file=replies, flush=True)


def answer(asked: Mapping[str, Any], side: Side | None, options: Options) -> tuple[Side | None, dict[str, Any]]:
    """Do one thing; the side there is from now on, and the reply."""
    from liger.bench.measure import release

    if "declared" in asked:
        op = registry().op(asked["declared"])
        return side, {name: repr(getattr(op, name)) for name in DECLARED}
    if "load" in asked:
        side = Side(asked["load"], options)
        return side, {"peaks": side.verified()}
    assert side is not None, "nothing is loaded"
    if "mode" in asked:
        side.ready(asked["mode"])
        return side, {"method": side.runner.method}
    if "sample" in asked:
        return side, {"ms": side.runner.repetition()}
    side.runner = None
    release(options.device)
    return None, {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve, or make the call that is profiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--profile", type=json.loads)
    given = parser.parse_args(arguments)
    options = Options(smoke=given.smoke)
    set_environment(given.smoke)
    from liger.bench.run import ready

    with ready(options):
        if given.profile:
            Side(given.profile, options).profile(given.profile["mode"])
        else:
            serve(options)


if __name__ == "__main__":
    main()
