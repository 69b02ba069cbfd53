"""Fail unless the distributions of this repository that are installed are exactly those named.

A package is tested with what it declares and nothing else of ours; otherwise an undeclared import would pass here and
break for a user. Each must come from a built wheel, so that a file missing from the wheel is missing here too.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions

PREFIX = "liger-"


def main(wanted: set[str]) -> str | None:
    """What is wrong, or None."""
    ours = {d.name: d for d in distributions() if d.name.startswith(PREFIX)}
    if extra := ours.keys() - wanted:
        return f"installed but not declared: {', '.join(sorted(extra))}"
    if missing := wanted - ours.keys():
        return f"declared but not installed: {', '.join(sorted(missing))}"
    editable = [name for name, d in ours.items() if any(f.name.startswith("_editable") for f in d.files or ())]
    return f"installed as editable, not from a wheel: {', '.join(sorted(editable))}" if editable else None


if __name__ == "__main__":
    sys.exit(main(set(sys.argv[1:])))
