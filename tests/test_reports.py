"""docs/reports.md: each report has a test, and each test that is named exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w./-]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize("file, name", NAMED, ids=[name for _, name in NAMED])
def test_it_exists(file, name):
    assert re.search(rf"(?m)^def {name}\(", (ROOT / file).read_text(encoding="utf-8"))


def test_every_report_has_one():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| report", "| case"))]
    assert len(rows) > 30 and all(re.search(r"\.py::\w+`", row) for row in rows)
