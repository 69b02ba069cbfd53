"""The sweep over model types: a sample of them, and that it tells a mismatch, a crash and a slow one from a fit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import liger
from liger.testing.models import step

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import sweep  # noqa: E402  (tools/ is no package)
import tiny_models  # noqa: E402
from sweep import Outcome, largest_error  # noqa: E402

TYPES = tiny_models.types()


@pytest.mark.parametrize("model_type", sweep.SAMPLE)
def test_patched_is_equal_to_unpatched(model_type: str) -> None:
    found = sweep.check(model_type, *TYPES[model_type])
    assert (found.status, found.reason) == ("equal", "") and found.patched


def test_images_reach_the_vision_tower() -> None:
    model = tiny_models.make("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration")
    word, inputs = next(tiny_models.batches(model))
    assert word == "images"
    gradients = step(model, **inputs)[1]
    assert any("visual" in name for name in gradients) and any("language_model" in name for name in gradients)


def test_errors_are_relative_to_each_gradient() -> None:
    loss = torch.tensor(2.0)
    gradients = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1e-9])}
    assert largest_error((loss, gradients), (loss, gradients))[0] == 0.0
    off = {**gradients, "a": torch.tensor([3.0, 4.05])}
    error, where = largest_error((loss, gradients), (loss, off))
    assert error == pytest.approx(0.01, rel=1e-4) and where == "the gradient of a"
    noise = {**gradients, "b": torch.tensor([2e-9])}  # nothing beside a: a gradient that is zero but for rounding
    assert largest_error((loss, gradients), (loss, noise))[0] < 1e-6
    assert largest_error((loss, gradients), (loss, {"a": off["a"]}))[0] == float("inf")
    lost = {**gradients, "a": torch.tensor([float("nan"), 4.0])}
    assert largest_error((loss, gradients), (loss, lost))[0] == float("inf")
    assert largest_error((loss, lost), (loss, lost))[0] == 0.0


def test_a_wrong_fit_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    autopatch = liger.autopatch

    def wrong(model: Any, **choices: Any) -> Any:
        report = autopatch(model, **choices)
        model.model.norm.variance_epsilon = 0.1
        return report

    monkeypatch.setattr(liger, "autopatch", wrong)
    found = sweep.check("mistral", *TYPES["mistral"])
    assert found.status == "mismatch" and "differs by" in found.reason


def test_an_error_while_patching_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, **choices: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(liger, "autopatch", broken)
    found = sweep.check("mistral", *TYPES["mistral"])
    assert (found.status, found.reason) == ("crash", "ZeroDivisionError: planted")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each type runs in a forked process, which this system has not")
@pytest.mark.parametrize(
    "what, reason", [("sleep", "took longer than 1 s"), ("exit", "its process ended with 3"), ("answer", "")]
)
def test_each_type_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, what: str, reason: str) -> None:
    def check(name: str, kind: str, cls: str) -> Outcome:
        if what == "sleep":
            time.sleep(60)
        if what == "exit":
            os._exit(3)
        return Outcome(name, kind, cls, "equal")

    monkeypatch.setattr(sweep, "check", check)
    monkeypatch.setattr(sweep, "SECONDS", 1 if what == "sleep" else 60)
    assert sweep.main(["mistral"]) == int(what != "answer")
    (found,) = sweep.sweep(["mistral"])
    assert found.status == ("equal" if what == "answer" else "crash") and found.reason == reason


def test_the_table() -> None:
    fine = Outcome("a", "causal", "A", "equal", batch="images", patched={"rms_norm": 2, "linear_cross_entropy": 1})
    fine.left = {"AMLP": "its activation is another"}
    outcomes = [fine, Outcome("b", "causal", "B", "mismatch", "the loss differs by 1.0e-02")]
    text = sweep.page(outcomes)
    assert f"# Model types of transformers {transformers.__version__}\n" in text
    assert "2 types: 1 compared and equal, 1 mismatches, 0 crashes, 0 not run." in text
    assert f"(models-{transformers.__version__}.md)" in text
    text = sweep.table(outcomes)
    row = "| a | equal, images | rms_norm 2, linear_cross_entropy 1 | AMLP: its activation is another |"
    assert row in text.splitlines() and "| b | mismatch: the loss differs by 1.0e-02 |  |  |" in text.splitlines()


def test_the_committed_table_has_every_type() -> None:
    (found,) = sweep.PAGE.parent.glob("models-*.md")
    assert f"({found.name})" in sweep.PAGE.read_text(encoding="utf-8")
    if found != sweep.TABLE:
        pytest.skip(f"the table is of another release than {transformers.__version__}")
    text = found.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert rows == list(TYPES)
    assert "| mismatch" not in text and "| crash" not in text


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in ((["no_such"], "no language model type no_such"), (["--write"], "--write needs --all")):
        with pytest.raises(SystemExit):
            sweep.main(words)
        assert message in capsys.readouterr().err
