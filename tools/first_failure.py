"""Run the checks of a kernel one after the other, up to the first that fails.

    python tools/first_failure.py rms_norm/triton cpu

Prints each check's name before it runs, then ``failed NAME: MESSAGE``. Exit status: 0 if all pass, else 1.
"""

from __future__ import annotations

import os
import sys
from typing import cast


def main(kernel: str, device: str) -> int:
    """Return the exit status."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        from liger.testing.interpreter import fix

        fix()
    from liger.testing import Check, checks

    for parameter in checks(kernel):
        check = cast("Check", parameter.values[0])
        print(check.name, flush=True)
        try:
            check(device)
        except Exception as error:
            message = next(iter(str(error).splitlines()), "")
            print(f"failed {check.name}: {type(error).__name__}: {message}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
