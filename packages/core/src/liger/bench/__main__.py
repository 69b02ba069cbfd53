"""``python -m liger.bench``."""

import sys

from liger.bench.main import main
from liger.errors import LigerError

try:
    sys.exit(main())
except (LigerError, ValueError, TypeError) as error:
    sys.exit(f"error: {error}")
