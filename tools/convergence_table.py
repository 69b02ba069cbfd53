"""The table of a run of the convergence suite, as docs/convergence-<version of transformers>.md or where --out says.

python -m pytest tests/test_convergence.py --junitxml RUN.xml
python tools/convergence_table.py RUN.xml
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from xml.etree import ElementTree

from gpu_report import machine
from liger.testing.convergence import CHECKS, MODES

DOCS = Path(__file__).resolve().parent.parent / "docs"
CASES = [(dtype, mode) for dtype in CHECKS for mode in MODES]
CASE = re.compile(rf"\[(.+)-({'|'.join(CHECKS)})-({'|'.join(MODES)})\]")
HEAD = """# Training with and without Liger, transformers {transformers}

Written by `python tools/convergence_table.py` from a whole run of `tests/test_convergence.py`: {passed} trainings
passed, {failed} failed, {skipped} skipped, in {minutes:.0f} minutes. What is compared, and how near it must be, stands
in `packages/core/src/liger/testing/convergence.py`. A text model or tower without a head is trained with the model
around it.

Commit {sha}, device {device}; {versions}.

"""


def outcomes(runs: list[ElementTree.Element]) -> dict[str, dict[tuple[str, str], str]]:
    """Model type -> dtype and mode -> passed, or why not, from JUnit files."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for case in (case for run in runs for case in run.iter("testcase")):
        if (name := CASE.search(case.get("name", ""))) is not None:
            found.setdefault(name[1], {})[name[2], name[3]] = _outcome(case)
    return dict(sorted(found.items()))


def _outcome(case: ElementTree.Element) -> str:
    for kind, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (why := case.find(kind)) is not None:
            return f"{word}: {' '.join(why.get('message', '').replace('|', '/').split())[:160]}"
    return "passed"


def page(files: list[Path]) -> str:
    """The text of the table."""
    runs = [ElementTree.parse(file).getroot() for file in files]
    found, here = outcomes(runs), machine()
    words = [text.partition(":")[0] for cases in found.values() for text in cases.values()]
    seconds = sum(float(suite.get("time", 0)) for run in runs for suite in run.iter("testsuite"))
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items() if version)
    counts = {word: words.count(word) for word in ("passed", "failed", "skipped")}
    head = HEAD.format(
        transformers=here["versions"]["transformers"],
        **counts,
        minutes=seconds / 60,
        sha=here["sha"][:12],
        device="CPU" if here["device"] == "none" else here["device"],
        versions=versions,
    )
    columns = " | ".join(f"{dtype} {mode}" for dtype, mode in CASES)
    rows = "".join(
        f"| {name} | {' | '.join(cases.get(case, 'not run') for case in CASES)} |\n" for name, cases in found.items()
    )
    return f"{head}| type | {columns} |\n|{'---|' * (len(CASES) + 1)}\n{rows}"


def main() -> None:
    """Write the table; without --out in place of that of another version."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.xml", help="JUnit files that make one run together")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args()
    text = page(args.runs)
    if args.out is None:
        for old in DOCS.glob("convergence-*.md"):
            old.unlink()
        args.out = DOCS / f"convergence-{machine()['versions']['transformers']}.md"
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
