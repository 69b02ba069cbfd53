"""`liger validate model`: each status, with the trainings replaced; tests/test_scaffold.py runs all of it."""

import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from liger.cli import build
from liger.errors import ContractViolation, LigerError
from liger.registry import registry
from liger.testing import convergence
from liger_hf import validate
from liger_hf.validate import CAUSES


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a declaration of type "tried", that of llama, in a folder with changes/."""
    code = tmp_path / "packages" / "tried" / "src" / "liger_models_tried"
    code.mkdir(parents=True)
    (tmp_path / "changes").mkdir()
    (tmp_path / "packages" / "tried" / "pyproject.toml").write_text("[tool.ruff.lint]\nselect = ['E', 'F']\n")
    (code / "__init__.py").write_text("")
    (code / "mini.py").write_text("from liger_models_llama.mini import llama\n\ntried = llama\n")
    patch = replace(registry().models["llama"], mini="liger_models_tried.mini:tried")
    monkeypatch.syspath_prepend(str(code.parent))
    for name in ("liger_models_tried", "liger_models_tried.mini"):  # of another test, from another folder
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(registry().models, "tried", patch)
    for dtype in convergence.CHECKS:
        monkeypatch.setitem(convergence.CHECKS, dtype, lambda pair, mode: [])
    return tmp_path


def run(*words):
    done = CliRunner().invoke(build(), ["validate", "model", *words])
    return done.exit_code, done.stdout


def test_a_package_that_is_right(package):
    code, text = run("tried")
    rows = [line.split("  ")[0] for line in text.splitlines()[1:]]
    assert rows == [
        *("Import", "Instance patching", "Undo", "Convergence bf16 fused", "Convergence bf16 with logits"),
        *("Convergence fp32 fused", "Convergence fp32 with logits", "Multimodal", "Lint"),
    ]
    assert {row for row in rows if not row.startswith("Convergence ")} | {"Convergence"} == set(CAUSES)
    assert code == 0 and "Multimodal                    SKIP (text-only model)" in text
    assert all(line.endswith("PASS") for line in text.splitlines()[1:8])
    assert text.splitlines()[-1].endswith(("PASS", "SKIP (ruff is not installed)"))


def test_a_tolerance_is_a_status_of_its_own(package, monkeypatch):
    miss = convergence.Miss("losses", 2e-4, 1e-4)
    monkeypatch.setitem(convergence.CHECKS, "fp32", lambda pair, mode: [miss] if mode == "fused-loss" else [])
    code, text = run("tried")
    assert code == 1
    assert "Convergence fp32 fused        TOLERANCE (losses is off by 2.0e-04, allowed 1.0e-04; 1 in all)" in text
    assert not list((package / "changes").iterdir())
    code, text = run("tried", "--allow-tolerance")
    assert code == 0 and "Convergence fp32 fused        SKIP (tolerance tuning needed)" in text
    assert (package / "changes" / "models-tried.md").read_text() == (
        "Known issue of `tried`, tolerance tuning needed: "
        "Convergence fp32 fused: losses is off by 2.0e-04, allowed 1.0e-04; 1 in all.\n"
    )


def test_a_failure_names_cause_and_remedy(package, monkeypatch):
    def diverges(pair, mode):
        raise ContractViolation("the loss is not a number")

    monkeypatch.setitem(convergence.CHECKS, "bf16", diverges)
    fits = {**registry().models["tried"].fits, "LlamaGone": registry().models["tried"].fits["LlamaMLP"]}
    monkeypatch.setitem(registry().models, "tried", replace(registry().models["tried"], fits=fits))
    code, text = run("tried", "--allow-tolerance")
    assert code == 1
    assert "Convergence bf16 fused        FAIL (ContractViolation: the loss is not a number)" in text
    assert "the patch names ['LlamaGone'], which the mini does not have" in text
    assert f"Instance patching: usual cause: {CAUSES['Instance patching'][0]}" in text
    assert f"remedy: {CAUSES['Convergence'][1]}" in text


def test_lint_is_fixed_once(package):
    pytest.importorskip("ruff", reason="only where the linter is installed, as in the session third_party")
    mini = package / "packages" / "tried" / "src" / "liger_models_tried" / "mini.py"
    right = mini.read_text()
    mini.write_text("import os\n" + right)
    patch = registry().models["tried"]
    assert validate._lint(patch) == ("Lint", "PASS", "fixed by ruff") and mini.read_text() == right
    assert validate._lint(patch) == ("Lint", "PASS", "")
    mini.write_text(right + "\nlost = name_of_nothing\n")
    _, status, detail = validate._lint(patch)
    assert status == "FAIL" and "name_of_nothing" in detail


def test_a_row_without_a_cause_is_an_error_of_ours():
    with pytest.raises(KeyError, match="Colour"):
        str(validate.Validation("tried", (validate.Result("Colour", "FAIL"),)))


def test_a_type_that_nobody_declares():
    code, text = run("helium", "--json")
    assert code == 1
    (result,) = json.loads(text)["results"]
    assert result["row"] == "Import" and "no installed plugin declares model_type 'helium'" in result["detail"]


def test_a_device_that_is_not_here_is_no_fault_of_the_package(package):
    with pytest.raises(ValueError, match="device is 'nowhere', which cannot be used here"):
        validate.validate("tried", "nowhere")


def test_without_pytest_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("liger_hf.commands.find_spec", lambda name: None)
    done = CliRunner().invoke(build(), ["validate", "model", "llama"])
    assert isinstance(done.exception, LigerError)
    assert "pip install 'liger-core[testing]'" in str(done.exception)
