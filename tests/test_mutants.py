"""The planted faults of ``nox -s mutants`` fit the sources, and the committed table is the one they give."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402  (tools/ is no package)
from first_failure import main  # noqa: E402
from liger.testing import Check  # noqa: E402
from liger.testing.cases import find  # noqa: E402
from liger.testing.kernels import make_checks  # noqa: E402

MUTATIONS = mutants.load()
every_mutation = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)


@every_mutation
def test_a_fault_replaces_what_stands_there_exactly_once(mutation: mutants.Mutation) -> None:
    text = (ROOT / mutation.path).read_text(encoding="utf-8")
    changed = mutation.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert not mutation.tests or (ROOT / "packages" / mutation.tests.partition("::")[0]).exists()


def test_a_fault_that_no_longer_fits_is_named() -> None:
    once = replace(MUTATIONS[0], name="gone", old="a")
    with pytest.raises(SystemExit, match="gone: its old text stands 2 times in .*, expected once; bring"):
        once.applied("a a")


def test_names_are_unique() -> None:
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)


def test_the_committed_table_is_up_to_date() -> None:
    assert mutants.TABLE.read_text(encoding="utf-8") == mutants.table(MUTATIONS, mutants.committed())


@every_mutation
def test_a_fault_that_a_cpu_shows_was_caught(mutation: mutants.Mutation) -> None:
    result = mutants.current(MUTATIONS, mutants.committed()).get(mutation.name)
    assert mutation.gpus or result, f"not run since it changed: nox -s mutants -- --only {mutation.name}"
    assert result is None or result.gate, "no gate caught it"


@pytest.mark.parametrize("kernel", sorted({m.kernel for m in MUTATIONS}))
def test_checks_that_caught_a_fault_still_exist(kernel: str) -> None:
    there = {check.name for check in make_checks(find(kernel))} | {"timeout"}
    results = mutants.current([m for m in MUTATIONS if m.kernel == kernel], mutants.committed())
    gone = {name: r.check for name, r in results.items() if r.gate == "checks" and r.check not in there}
    assert not gone, f"renamed or gone since: nox -s mutants -- --only {' '.join(gone)}"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--gpu"], "nothing to run"),
        (["--only", "rms-norm-int32-offset", "--kernel", "rope/triton"], "nothing to run"),
    ],
)
def test_nothing_to_run_is_an_error(words, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr(mutants, "devices", lambda: (0, "CPU"))
    monkeypatch.setattr(mutants, "baseline", lambda *_: pytest.fail("it began"))
    with pytest.raises(SystemExit) as stopped:
        mutants.main(words)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_result_counts_only_for_the_fault_it_was_made_with() -> None:
    fault = MUTATIONS[0]
    result = mutants.Result(fault.plant, "checks", "contract", "", "CPU", 1)
    assert "| checks: `contract` | CPU | 1 |" in mutants.table([fault], {fault.name: result})
    assert "not run yet" in mutants.table([replace(fault, new="other")], {fault.name: result})
    assert "**nothing**" in mutants.table([fault], {fault.name: replace(result, gate="")})


OUTPUTS = {
    "checks": "contract-R1\nfailed contract-R1: ContractViolation: too large",
    "tests": "FAILED packages/a/tests/test_a.py::test_x[per row] - assert 1 == 2",
}
FOUND = {
    "checks": ("contract-R1", "ContractViolation: too large"),
    "tests": ("test_x[per row]", "assert 1 == 2"),
    "compile gate": ("_backward", "BLOCK=8 [float32]: spilled 8 exceeds 0, R4"),
}


def test_each_gate_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the compile gate needs triton")
    from compile_gate import Result, show
    from compile_limits import Launch

    launch = Launch("rms_norm/triton", "_backward", "sm90", "BLOCK=8 [float32]", "R4", 255, 8, 0, 0, 128, 1.0)
    show(Result("rms_norm/triton", "sm90", [launch]), [], everything=False)
    outputs = {**OUTPUTS, "compile gate": capsys.readouterr().out}
    for gate in mutants.gates(replace(MUTATIONS[0], gpus=0, compile_gate=True)):
        match = re.search(gate.found, outputs[gate.name], re.MULTILINE)
        assert match and match.groups() == FOUND[gate.name]


def test_checks_that_this_machine_cannot_run_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(device: str) -> None:
        raise ValueError("off by 1")

    def first_failure(*checks: Check) -> tuple[int, str]:
        monkeypatch.setattr("liger.testing.kernels.make_checks", lambda kernel: checks)
        return main("rms_norm/triton", "cpu"), capsys.readouterr().out

    fine, elsewhere, bad = Check("fine", str), Check("elsewhere", fail, gpus=99), Check("bad", fail)
    assert first_failure(fine, elsewhere) == (0, "")
    assert first_failure(fine, bad, fine) == (1, "failed bad: ValueError: off by 1\n")


def test_a_fault_is_planted_where_gates_import_from_and_taken_out_again(tmp_path: Path) -> None:
    fault = next(m for m in MUTATIONS if m.file == "liger/dispatch.py")
    copy, right = mutants.Copy(tmp_path), (ROOT / fault.path).read_text(encoding="utf-8")
    code = "import importlib.util; exit('failed at: ' + importlib.util.find_spec('liger.dispatch').origin)"
    gate = mutants.Gate("checks", ("-c", code), "no match", False)
    with copy.planted(fault):
        planted = gate.run(copy, gpu=False)
        assert planted == ("exit status 1", f"failed at: {tmp_path / fault.path}")
        assert (tmp_path / fault.path).read_text(encoding="utf-8") == fault.applied(right)
    assert (tmp_path / fault.path).read_text(encoding="utf-8") == right
