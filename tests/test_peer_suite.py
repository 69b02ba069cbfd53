"""The tool that runs liger-kernel's own tests, on a suite made up for it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import peer_suite
from peer_suite import Difference, Outcome, explain, idle

SUITE = """
import pytest

@pytest.mark.parametrize("size", ["1", "a|b"])
def test_one(size):
    assert size == "1", "no kernel"

class TestOfAClass:
    @pytest.mark.skip(reason="needs a GPU")
    def test_two(self):
        pass

@pytest.fixture
def broken():
    yield
    raise ValueError("afterwards")

def test_three(broken):
    pass
"""
FILE = "test/ops/test_made_up.py"
ONE, THREE = Difference(r"test_one\[a", "there is no a"), Difference("test_three", "nothing comes afterwards")


@pytest.fixture
def sdist(tmp_path):
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(SUITE)
    return tmp_path


def call(monkeypatch, sdist, known, *arguments):
    monkeypatch.setattr(peer_suite, "differences", lambda device: known)
    return peer_suite.main(["--sdist", str(sdist), *arguments])


def test_outcomes_are_by_node_id(sdist):
    found = {one.test: one for one in peer_suite.run(sdist, FILE)}
    assert {test: one.status for test, one in found.items()} == {
        f"{FILE}::test_one[1]": "passed",
        f"{FILE}::test_one[a|b]": "failed",
        f"{FILE}::TestOfAClass::test_two": "skipped",
        f"{FILE}::test_three": "failed",
    }
    assert found[f"{FILE}::TestOfAClass::test_two"].message == "needs a GPU"
    assert "no kernel" in found[f"{FILE}::test_one[a|b]"].message
    assert {one.file for one in found.values()} == {FILE}


@pytest.mark.parametrize("where", ["test_made_up.py", "conftest.py"])
def test_a_file_that_cannot_be_imported_is_one_failure(sdist, where):
    (sdist / FILE).with_name(where).write_text("from liger_kernel.ops import nonsense")
    (found,) = peer_suite.run(sdist, FILE)
    assert (found.test, found.status) == (FILE, "failed") and "cannot import name 'nonsense'" in found.message


def test_a_file_that_is_too_slow_is_one_failure(monkeypatch, sdist):
    monkeypatch.setattr(peer_suite, "SECONDS", 0.01)
    assert peer_suite.run(sdist, FILE) == [Outcome(FILE, "failed", "took longer than 0.01 s")]


def test_the_first_entry_that_covers_a_test_explains_it():
    found = [Outcome("test_one[a]", "failed"), Outcome("test_one[b]", "failed"), Outcome("test_three", "passed")]
    assert explain(found, [ONE, Difference("a", "another")]) == {found[0]: "there is no a", found[1]: ""}
    assert idle(found, [ONE, THREE], whole=False) == [THREE]
    assert idle(found, [ONE, Difference("test_four", "")], whole=False) == []  # in no file that ran
    assert idle(found, [ONE, Difference("test_four", "")], whole=True) != []


def test_what_is_explained_passes_and_what_is_not_fails(monkeypatch, capsys, sdist):
    assert call(monkeypatch, sdist, [ONE, THREE]) == 0
    printed = capsys.readouterr().out
    assert f"| {FILE} | 1 | 1 | 2 |" in printed
    assert "| 1 | there is no a |" in printed and "| 1 | needs a GPU |" in printed
    assert call(monkeypatch, sdist, [ONE]) == 1
    assert f"no entry covers it: {FILE}::test_three: " in capsys.readouterr().out
    assert call(monkeypatch, sdist, [ONE, THREE, Difference("test_four", "gone")]) == 1
    assert "this entry covers no failing test: test_four" in capsys.readouterr().out


def test_a_part_is_chosen_by_folder_file_and_name(monkeypatch, capsys, sdist):
    assert call(monkeypatch, sdist, [ONE, THREE], "test/ops", "-k", "nonsense") == 1  # there is none
    assert call(monkeypatch, sdist, [ONE, THREE], FILE, "-k", "test_one") == 0
    assert "| 1 | 0 | 1 |" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"test/nothing: no file of tests in the suite, whose folders are test/ops"):
        call(monkeypatch, sdist, [], "test/nothing")


def test_a_name_of_no_test_and_one_that_is_no_expression_fail(monkeypatch, capsys, sdist):
    assert call(monkeypatch, sdist, [ONE, THREE], "-k", "nonsense") == 1
    assert "covers no failing test" not in capsys.readouterr().out  # no entry is about what did not run
    assert call(monkeypatch, sdist, [ONE, THREE], "-k", "test_one and (") == 1
    assert f"no entry covers it: {FILE}: " in capsys.readouterr().out


def test_a_name_chooses_of_all_files_and_is_a_part_of_the_suite(monkeypatch, capsys, sdist):
    assert call(monkeypatch, sdist, [ONE, THREE], "-k", "test_one") == 0  # the entry of test_three may be idle
    assert f"| {FILE} | 1 | 0 | 1 |" in capsys.readouterr().out
    assert call(monkeypatch, sdist, [ONE, Difference("one.1", "")], "-k", "test_one") == 1
    assert "this entry covers no failing test: one.1" in capsys.readouterr().out


def test_the_sdist_is_fetched_or_given_and_stays_as_it_is(monkeypatch, capsys, sdist):
    before = {path: path.stat().st_mtime_ns for path in sdist.rglob("*")}
    assert call(monkeypatch, sdist, [ONE, THREE]) == 0  # given: nothing is fetched
    assert {path: path.stat().st_mtime_ns for path in sdist.rglob("*")} == before
    fetched = []
    monkeypatch.setattr(peer_suite, "fetch", lambda into: fetched.append(into) or sdist)
    assert peer_suite.main([FILE]) == 0 and len(fetched) == 1
    assert f"| {FILE} | 1 | 1 | 2 |" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["nowhere", "test"])
def test_a_folder_that_is_no_sdist_is_an_error_that_says_so(monkeypatch, capsys, sdist, what):
    with pytest.raises(SystemExit) as stop:
        call(monkeypatch, sdist / what, [])
    assert stop.value.code == 2
    assert f"--sdist {sdist / what}: there is no folder 'test' in it" in capsys.readouterr().err


def test_the_page_of_a_run(monkeypatch, sdist):
    monkeypatch.setattr(peer_suite, "PAGE", sdist / "page.md")
    assert call(monkeypatch, sdist, [ONE], "--write") == 1 and not peer_suite.PAGE.exists()
    assert call(monkeypatch, sdist, [ONE], "--write", "-k", "test_one or test_two") == 0
    page = " ".join(peer_suite.PAGE.read_text().split())
    assert f"test-suite of liger-kernel {peer_suite.VERSION}" in page and "1 tests pass, 1 are skipped" in page
    assert "with the files below and `-k 'test_one or test_two'`, in" in page and f"| {FILE} | 1 | 1 | 1 |" in page


def test_every_entry_of_the_repository_is_read_and_gives_a_reason():
    known = peer_suite.differences("cpu")
    assert all(one.tests and one.reason.strip() for one in known)
    assert len({one.tests for one in known}) == len(known)
    assert {one.device for one in known} == {"", "cpu"} and {one.device for one in peer_suite.differences("xpu")} == {
        ""
    }
