"""Run liger-kernel's own public test-suite against liger-compat, and tell each difference from a fault.

    python tools/peer_suite.py                                     every file
    python tools/peer_suite.py test/ops test/transformers/test_rope.py      these folders and files
    python tools/peer_suite.py --sdist FOLDER --write              of an unpacked sdist; write docs/peer-suite.md

The suite is that of the version whose interface liger-compat answers, from the published sdist, and runs as it is: a
process for each file, in a folder that holds nothing but the sdist's `test`. `peer_suite.toml` holds the known
differences. A test that fails without an entry there, and an entry that covers no failing test, are exit status 1.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

from liger_kernel._utils import infer_device
from repo import ROOT, packages

DIFFERENCES = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "peer-suite.md"
PEER = "liger-kernel"
VERSION = packages()["liger-compat"].settings["version-prefix"]
TESTS = "test"  # the folder in the sdist
SECONDS = 1800  # of one file
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
HEAD = """# liger-kernel's own tests

The public test-suite of liger-kernel {version}, as published, against liger-compat: {passed} tests pass, {skipped} are
skipped by the suite itself, {differ} differ. A file that could not be imported counts as one test.

Written by `python tools/peer_suite.py --write`{part}, in {minutes:.0f} minutes, on {day}.
Commit {sha}, device {device}; {versions}.

"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one test, or, if it could not be imported, to a whole file.

    Attributes:
        test: node id of pytest: `test/transformers/test_rope.py::test_correctness[...]`.
        status: "passed", "skipped" or "failed".
        message: why it did not pass, in one line.
    """

    test: str
    status: str
    message: str = ""

    @property
    def file(self) -> str:
        """Path of its file, below the sdist's folder."""
        return self.test.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Difference:
    """Tests that are known not to pass.

    Attributes:
        tests: regular expression, searched for in node ids.
        reason: what differs, or is missing, in the words of a user.
        device: kind of device, as "cpu", where it is so; everywhere if "".
    """

    tests: str
    reason: str
    device: str = ""

    def covers(self, outcome: Outcome) -> bool:
        """Whether this entry is about that test."""
        return re.search(self.tests, outcome.test) is not None


# -- The suite ---------------------------------------------------------------------------------------------------------
def fetch(into: Path) -> Path:
    """Download and unpack the sdist. Nothing of it is installed, but pip asks its setup.py, which imports torch."""
    command = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", PEER)
    subprocess.run([sys.executable, *command, "--dest", str(into), f"{PEER}=={VERSION}"], check=True)
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def files(suite: Path, chosen: Iterable[str]) -> list[str]:
    """Test files, of chosen folders and files or all, as paths below the suite's folder.

    Raises:
        ValueError: if there is none in one that was chosen.
    """
    found: set[str] = set()
    for word in chosen:
        path = suite / word
        tests = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        if not tests:
            raise ValueError(f"{word}: no file of tests in the suite, whose folders are {_folders(suite)}")
        found |= {test.relative_to(suite).as_posix() for test in tests}
    return sorted(found)


def _folders(suite: Path) -> str:
    return ", ".join(sorted({path.parent.relative_to(suite).as_posix() for path in suite.rglob("test_*.py")}))


def run(suite: Path, file: str, *arguments: str) -> list[Outcome]:
    """The outcomes of one file's tests, in a process of its own; without any, one of the file itself."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "run.xml"
        words = ("-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", str(suite), f"--junitxml={xml}")
        command = [sys.executable, "-m", "pytest", *words, *arguments, file]
        try:
            done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [Outcome(file, FAILED, f"took longer than {SECONDS} s")]
        found = outcomes(file, xml) if xml.exists() else []
    if found or done.returncode in (0, 5):  # 5: there is no test in it
        return found
    return [Outcome(file, FAILED, _last_error(done.stdout + done.stderr))]


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if re.match(r"(E +)?\w+(Error|Exception)\b", line)]
    return _short((lines or text.splitlines() or ["no output"])[-1].removeprefix("E"))


def outcomes(file: str, xml: Path) -> list[Outcome]:
    """What a JUnit file says about the tests of one file."""
    module = file.removesuffix(".py").replace("/", ".")
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(xml).iter("testcase"):
        classes = case.get("classname", "").removeprefix(module).split(".")
        whole = case.get("name") == module  # it could not be imported, or skips itself
        test = file if whole else "::".join([file, *filter(None, classes), case.get("name", "")])
        outcome = _outcome(test, case)
        if test not in found or outcome.status == FAILED:  # a second one: an error after the test
            found[test] = outcome
    return list(found.values())


def _outcome(test: str, case: ElementTree.Element) -> Outcome:
    for kind, status in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
        if (why := case.find(kind)) is not None:
            message = why.get("message", "")
            return Outcome(test, status, _last_error(why.text or "") if "collection" in message else _short(message))
    return Outcome(test, PASSED)


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


# -- Differences -------------------------------------------------------------------------------------------------------
def differences(device: str) -> list[Difference]:
    """The entries of `peer_suite.toml` for a device."""
    entries = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))["difference"]
    return [one for one in (Difference(**entry) for entry in entries) if one.device in ("", device)]


def explain(found: Sequence[Outcome], known: Sequence[Difference]) -> dict[Outcome, str]:
    """The reason of each test that failed: of the first entry that covers it, "" where none does."""
    failed = (outcome for outcome in found if outcome.status == FAILED)
    return {one: next((entry.reason for entry in known if entry.covers(one)), "") for one in failed}


def idle(found: Sequence[Outcome], known: Sequence[Difference], whole: bool) -> list[Difference]:
    """Entries that cover no failing test; in a part of the suite only those that cover another test of that part."""
    failed = [outcome for outcome in found if outcome.status == FAILED]
    unused = [entry for entry in known if not any(map(entry.covers, failed))]
    return unused if whole else [entry for entry in unused if any(map(entry.covers, found))]


# -- What is said ------------------------------------------------------------------------------------------------------
def tables(found: Sequence[Outcome], reasons: dict[Outcome, str]) -> str:
    """Counts by file, and by reason, as Markdown."""
    by_file = {file: [one for one in found if one.file == file] for file in sorted({one.file for one in found})}
    rows = []
    for file, tests in by_file.items():
        count = Counter(one.status for one in tests)
        rows.append(f"| {file} | {count[PASSED]} | {count[SKIPPED]} | {count[FAILED]} |\n")
    why = Counter(reason for reason in reasons.values() if reason)
    skips = Counter(one.message for one in found if one.status == SKIPPED)
    return (
        f"| file | passed | skipped | differ |\n|---|---|---|---|\n{''.join(rows)}"
        f"\n| tests that differ | reason |\n|---|---|\n{_counts(why)}"
        f"\n| skipped | the suite's reason |\n|---|---|\n{_counts(skips)}"
    )


def _counts(counter: Counter[str]) -> str:
    return "".join(f"| {number} | {text} |\n" for text, number in counter.most_common())


def write(found: Sequence[Outcome], reasons: dict[Outcome, str], part: str, minutes: float) -> None:
    """Write the page of a run of all or of ``part``."""
    from gpu_report import machine

    here, count = machine(), Counter(one.status for one in found)
    head = HEAD.format(
        version=VERSION,
        part=part,
        minutes=minutes,
        day=date.today().isoformat(),
        sha=here["sha"][:12],
        device="CPU" if here["device"] == "none" else here["device"],
        versions=", ".join(f"{name} {version}" for name, version in here["versions"].items() if version),
        passed=count[PASSED],
        skipped=count[SKIPPED],
        differ=count[FAILED],
    )
    PAGE.write_text(head + tables(found, reasons), encoding="utf-8")


def check(suite: Path, options: argparse.Namespace, known: Sequence[Difference]) -> int:
    """Run and report; return the exit status."""
    start, found, whole = time.monotonic(), list[Outcome](), options.files == [TESTS] and not options.k
    for file in files(suite, options.files):
        found += run(suite, file, *(("-k", options.k) if options.k else ()))
        print(file, dict(Counter(one.status for one in found if one.file == file)), flush=True)
    reasons = explain(found, known)
    print(f"\n{tables(found, reasons)}")
    wrong = [f"failed, and no entry covers it: {one.test}: {one.message}" for one, why in reasons.items() if not why]
    wrong += [f"this entry covers no failing test: {entry.tests}" for entry in idle(found, known, whole)]
    print("\n".join(wrong))
    if options.write and not wrong:
        names = f" and `-k '{options.k}'`" if options.k else ""
        part = "" if whole else f" with the files below{names}"
        write(found, reasons, part, (time.monotonic() - start) / 60)
    return int(bool(wrong) or not found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[TESTS], help="folders and files of the suite")
    parser.add_argument("-k", default="", help="only tests whose names match, as pytest's")
    parser.add_argument("--sdist", type=Path, help="folder of an unpacked sdist; otherwise it is fetched")
    parser.add_argument("--write", action="store_true", help="write docs/peer-suite.md")
    options = parser.parse_args(arguments)
    if options.sdist and not (options.sdist / TESTS).is_dir():
        parser.error(f"--sdist {options.sdist}: there is no folder {TESTS!r} in it, as in an unpacked sdist of {PEER}")
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite"
        shutil.copytree((options.sdist or fetch(Path(folder))) / TESTS, suite / TESTS)
        return check(suite, options, differences(infer_device()))


if __name__ == "__main__":
    sys.exit(main())
