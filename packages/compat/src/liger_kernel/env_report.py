"""What a bug report needs: `python -m liger_kernel.env_report`. The same as `liger doctor`."""

from __future__ import annotations

from liger.cli import app


def print_env_report() -> None:
    """Print versions, devices, plugins and problems."""
    app(["doctor"], standalone_mode=False)


if __name__ == "__main__":
    print_env_report()
