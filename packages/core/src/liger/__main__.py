"""``python -m liger``."""

from liger.cli import main

main()
