"""Run the checks of a kernel that this machine can run, one after the other, up to the first that fails.

    python tools/first_failure.py rms_norm/triton cpu [PART]

Prints ``failed NAME: MESSAGE``. With PART only the checks with it in their names. Exit status: 0 if all pass, else 1.
"""

from __future__ import annotations

import os
import sys


def main(kernel: str, device: str, part: str = "") -> int:
    """Return the exit status."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        from liger.testing.interpreter import fix

        fix()
    from liger.testing.kernels import failures

    for name, error in failures(kernel, device, part):
        message = next(iter(str(error).splitlines()), "")
        print(f"failed {name}: {type(error).__name__}: {message}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
