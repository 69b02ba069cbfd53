"""`liger tune` in triton's interpreter, with times that a test makes up; what explain and doctor say of settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import tuned as plugin  # noqa: E402

from liger import dispatch, registry, settings  # noqa: E402
from liger.cli import build  # noqa: E402
from liger.explanation import explain, profile  # noqa: E402
from liger.launch import ASSUMED  # noqa: E402
from liger.plugins import GROUP, Plugins  # noqa: E402
from liger.settings import VARIABLE  # noqa: E402
from liger.tune.main import parse, show  # noqa: E402
from liger.tune.search import Found, Subject, time_in_turn, tune  # noqa: E402

pytestmark = pytest.mark.triton
FORWARD, BACKWARD = "tuned:forward_settings", "tuned:backward_settings"


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A registry with the op ``doubled`` alone, and a user's table that is not there yet."""
    if os.environ.get("TRITON_INTERPRET") != "1" and not request.node.get_closest_marker("gpu"):
        pytest.skip("runs in triton's interpreter, which has to be on before triton is imported")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "launches.json"))
    previous = registry.use(registry.Registry(Plugins([EntryPoint("tuned", "tuned", GROUP)])))
    dispatch.reset()
    settings.reset()
    yield tmp_path / "launches.json"
    registry.use(previous)
    dispatch.reset()
    monkeypatch.undo()
    settings.reset()


def clock(cost: Callable[[str, dict[str, Any]], float], noise: float = 0.001) -> Callable[..., list[list[float]]]:
    """A timer whose ms are made up from the function and the constants in force."""

    def timer(subject: Subject, mode: str, several: Sequence[Any]) -> list[list[float]]:
        out = []
        for turn, changes in enumerate(several):
            with settings.trying(changes):
                now = {
                    FORWARD: plugin.forward_settings(subject.point.sizes["H"], 2, ASSUMED),
                    BACKWARD: plugin.backward_settings(subject.point.sizes["H"], 2, ASSUMED),
                }
            ms = sum(cost(name, constants) for name, constants in now.items())
            out.append([ms * (1 + noise * ((i + turn) % 2)) for i in range(5)])
        return out

    return timer


def larger_is_faster(function: str, constants: dict[str, Any]) -> float:
    return 100 / constants["BLOCK"] + (constants["num_warps"] if function == FORWARD else 0)


def run(timer: Any, table: Path, **more: Any) -> list[Found]:
    return tune(["doubled"], table, sizes={"R": 3, "H": 40}, device="cpu", timer=timer, **more)


# -- The search --------------------------------------------------------------------------------------------------------
def test_what_is_faster_is_kept_and_used_from_then_on(table: Path) -> None:
    forward, backward = run(clock(larger_is_faster), table)
    assert (forward.request.function, forward.mode) == (FORWARD, "forward")
    assert (backward.request.function, backward.mode) == (BACKWARD, "backward")
    assert forward.best == {"BLOCK": 128, "num_warps": 1} and forward.better
    assert backward.best == backward.start and not backward.better
    (entry,) = json.loads(table.read_text())["entries"]
    assert entry["function"] == FORWARD and entry["architecture"] == "sm90"
    assert entry["arguments"] == {"H": 40, "itemsize": 2}
    assert entry["constants"] == {"BLOCK": 128, "num_warps": 1}
    assert "of the time with BLOCK=32, num_warps=2: forward at R=3 H=40" in entry["reason"]
    assert entry["before_ms"] > entry["after_ms"] and entry["versions"]["torch"] and entry["gpu"] and entry["date"]
    assert plugin.forward_settings(40, 2, ASSUMED) == {"BLOCK": 128, "num_warps": 1}
    assert plugin.forward_settings(41, 2, ASSUMED) == {"BLOCK": 32, "num_warps": 2}
    assert not settings.read(table).problems


def test_what_is_wrong_or_does_not_launch_is_not_timed(table: Path) -> None:
    forward, _ = run(clock(lambda name, c: 100 / c["BLOCK"] / c["num_warps"]), table)
    assert forward.best == {"BLOCK": 128, "num_warps": 4}
    said = "\n".join(forward.tried)
    assert "BLOCK=256: ContractViolation" in said and "num_warps=32: RuntimeError: out of resource: threads" in said


def test_less_than_two_percent_and_noise_are_not_kept(table: Path) -> None:
    small = clock(lambda name, c: 100 - c["BLOCK"] / 32)  # 1 % a step
    noisy = clock(larger_is_faster, noise=5.0)
    for timer in (small, noisy):
        forward, _ = run(timer, table)
        assert forward.best == forward.start and forward.tried
    assert json.loads(table.read_text())["entries"] == []


def test_a_gain_that_does_not_last_is_not_kept(table: Path) -> None:
    calls = []

    def once(subject: Subject, mode: str, several: Sequence[Any]) -> list[list[float]]:
        calls.append(mode)
        times = clock(larger_is_faster)(subject, mode, several)
        return times if len(calls) == 1 else [[1.0, 1.001] * 2 for _ in several]

    forward, _ = run(once, table)
    assert forward.best != forward.start and forward.times and not forward.better
    assert json.loads(table.read_text())["entries"] == []


def test_the_choice_so_far_is_where_a_second_run_begins(table: Path) -> None:
    run(clock(larger_is_faster), table)
    forward, _ = run(clock(larger_is_faster), table)
    assert forward.start == forward.best == {"BLOCK": 128, "num_warps": 1}
    forward, _ = run(clock(lambda name, c: c["BLOCK"] + c["num_warps"]), table)
    assert forward.best == {"BLOCK": 32, "num_warps": 1}
    (entry,) = json.loads(table.read_text())["entries"]
    assert entry["constants"] == forward.best


def test_without_sizes_the_sweeps_are_tuned_and_what_is_late_is_said(table: Path) -> None:
    said: list[str] = []
    found = tune(["doubled"], table, device="cpu", timer=clock(larger_is_faster), say=said.append)
    assert [one.request.arguments[0] for one in found] == [40, 40, 48, 48]
    assert said == ["doubled R=4 H=40", "doubled R=4 H=48"]
    assert not tune(["doubled"], table, device="cpu", seconds=1e-9, say=said.append)
    assert said[2:] == [f"doubled R=4 H={h}: left out for lack of time" for h in (40, 48)]


def test_real_times_of_the_interpreter(table: Path) -> None:
    seen: list[tuple[str, int]] = []

    def timer(subject: Subject, mode: str, several: Sequence[Any]) -> list[list[float]]:
        times = time_in_turn(subject, mode, several)
        seen.append((mode, len(times)))
        return times

    run(timer, table, dtype="float32")
    assert {mode for mode, _ in seen} == {"forward", "backward"} and {n for _, n in seen} == {2}


def test_a_size_that_does_not_fit_is_left_out_and_said(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(subject: Subject, *rest: Any) -> list[list[float]]:
        if subject.point.sizes["H"] == 40:
            raise torch.OutOfMemoryError("16 GiB")
        return clock(larger_is_faster)(subject, *rest)

    said: list[str] = []
    found = tune(["doubled"], table, device="cpu", timer=narrow, say=said.append)
    assert {one.request.arguments[0] for one in found} == {48}
    assert said[1] == "doubled R=4 H=40: left out, out of memory: 16 GiB"


@pytest.mark.gpu(1)
def test_real_times_of_a_gpu(table: Path) -> None:
    forward, backward = tune(["doubled"], table, sizes={"R": 4096, "H": 4096}, seconds=60)
    said = "\n".join([*forward.tried, *backward.tried])
    assert "of the time" in said and "BLOCK=256: ContractViolation" in said
    assert not settings.read(table).problems
    kept = json.loads(table.read_text())["entries"]
    assert [e["function"] for e in kept] == [f.request.function for f in (forward, backward) if f.better]
    assert forward.better  # blocks of 32 elements are far too small


# -- Refusals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sizes": {"R": 3}}, "sizes of doubled are R, H, each 1 or more; got R=3"),
        ({"sizes": {"R": 0, "H": 8}}, "each 1 or more; got R=0, H=8"),
        ({"dtype": "float16"}, r"no Triton kernel for float16.*doubled/triton \(float32, bfloat16\)"),
    ],
)
def test_what_cannot_be_tuned_is_refused(more: dict[str, Any], message: str, table: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tune(["doubled"], table, device="cpu", **more)
    assert not table.exists()


def test_a_file_that_is_no_table_is_refused_before_anything_is_timed(table: Path) -> None:
    table.write_text("{}")
    with pytest.raises(ValueError, match="is no table of launch settings"):
        run(lambda *_: pytest.fail("timed"), table)


def command(*words: str) -> Any:
    return CliRunner().invoke(build(), ["tune", *words])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_command_needs_a_gpu_and_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, message in (
        (["doubled"], "there is no GPU"),
        (["doubled", "--sizes", "R=3;H=4"], "--sizes R=3;H=4: expected names with whole numbers"),
        (["doubled", "--seconds", "0"], "--seconds 0.0: expected more than 0"),
    ):
        done = command(*words)
        assert isinstance(done.exception, ValueError) and message in str(done.exception)
    monkeypatch.setenv(VARIABLE, "")
    assert "is empty, so there is no table to write" in str(command("doubled").exception)
    assert parse("R=3, H=4") == {"R": 3, "H": 4} and parse("") is None


def test_the_result_is_shown_with_before_after_and_what_was_tried(table: Path) -> None:
    from rich.console import Console

    console = Console(width=300, record=True)
    show(run(clock(larger_is_faster), table), console)
    text = console.export_text()
    assert "BLOCK=32, num_warps=2" in text and "BLOCK=128, num_warps=1" in text and "0.50 (0.50-0.50)" in text
    assert "tuned:forward_settings BLOCK=64: 0.77 (0.77-0.77) of the time" in text


# -- What is said of settings ------------------------------------------------------------------------------------------
def test_explain_says_where_settings_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    triton, reference = explain("doubled").kernels
    assert triton.measured == ("sm90", "sm80") and triton.settings == "measured on sm90, sm80"
    assert reference.settings == "" and "launch settings measured on sm90, sm80" in str(explain("doubled"))
    assert explain("doubled", device="cpu").kernels[0].settings == "measured on sm90, sm80"
    monkeypatch.setattr("liger.explanation._architecture", lambda device: "sm90")
    assert explain("doubled", device="cuda").kernels[0].settings == "measured on sm90"
    monkeypatch.setattr("liger.explanation._architecture", lambda device: "sm100")
    assert "launch settings not measured on sm100: by the rule" in str(explain("doubled", device="cuda"))
    said = profile("doubled")["kernels"]
    assert said["doubled/triton"]["measured"] == ["sm90", "sm80"]
    assert said["doubled/triton"]["launch_settings"] == "measured on sm90, sm80"
    assert "launch_settings" not in said["doubled/reference"]


def test_explain_and_doctor_name_the_table_in_force(table: Path) -> None:
    said = CliRunner().invoke(build(), ["explain", "doubled"]).stdout
    assert "launch table" not in said
    run(clock(larger_is_faster), table)
    assert explain("doubled").launch_table == f"{table}, 1 entry"
    assert f"launch table in force: {table}, 1 entry" in str(explain("doubled"))
    done = CliRunner().invoke(build(), ["doctor", "--json"])
    assert json.loads(done.stdout)["launch_table"] == f"{table}, 1 entry"


def test_doctor_lists_what_is_wrong_with_the_table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write_text(json.dumps({"format": 1, "entries": [{"function": "gone:away"}]}))
    problems = json.loads(CliRunner().invoke(build(), ["doctor", "--json"]).stdout)["problems"]
    assert [p for p in problems if f"{table}, entry 1: architecture is None" in p]
    table.write_text("{")
    settings.reset()
    assert "is no JSON" in explain("doubled").launch_table
    monkeypatch.setenv(VARIABLE, "")
    assert (
        "LIGER_LAUNCH_TABLE is empty"
        in json.loads(CliRunner().invoke(build(), ["doctor", "--json"]).stdout)["launch_table"]
    )
