"""The command: `liger bench ...` and `python -m liger.bench ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from liger.bench.options import parse, set_environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked and return the exit status.

    Raises:
        ValueError: an option is wrong, or something that it needs is not there.
        LigerError: a declaration is.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["compare"]:
        from liger.bench.compare import main as compare

        return compare(words[1:])
    options = parse(words)
    set_environment(options.smoke)  # before anything imports triton
    if options.ncu:
        from liger.bench.ncu import run as profile

        return profile(options)
    if options.base:
        from liger.bench.base import run as both

        return both(options)
    from liger.bench.run import run

    return run(options)
