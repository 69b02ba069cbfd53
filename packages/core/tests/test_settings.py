"""Launch settings: the rule, tables before it, what is wrong with a table, and trials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liger import settings
from liger.settings import VARIABLE, Request

torch = pytest.importorskip("torch")

from liger.launch import ASSUMED, GPU, assume, gpu, launch  # noqa: E402

NAME = f"{__name__}:rule"
CALLS: list[int] = []


@settings.settings(num_warps=(8, 4, 16), ROWS=(1, 2, 4))
def rule(H: int, wide: bool, device: GPU) -> dict[str, int]:
    """4 warps, and two rows of narrow ones."""
    CALLS.append(H)
    return {"BLOCK": H, "num_warps": 4, **({} if wide else {"ROWS": 2})}


@settings.cached
def derived(H: int) -> int:
    """Made of settings."""
    return rule(H, False, ASSUMED)["num_warps"]


def entry(**changes: Any) -> dict[str, Any]:
    right = {"function": NAME, "architecture": "sm90", "arguments": {"H": 64, "wide": False}}
    return {**right, "constants": {"num_warps": 8}, "reason": "1.1 times as fast", **changes}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    settings.reset()
    CALLS.clear()
    yield
    settings.reset()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the user's table."""

    def write(*entries: Any, text: str | None = None) -> Path:
        file = tmp_path / "launches.json"
        file.write_text(json.dumps({"format": 1, "entries": entries}) if text is None else text)
        monkeypatch.setenv(VARIABLE, str(file))
        settings.reset()
        return file

    return write


def test_tests_see_no_table_that_was_not_asked_for() -> None:
    assert VARIABLE in os.environ  # set by liger.testing's plugin, empty by default


# -- The rule and what comes before it ---------------------------------------------------------------------------------
def test_without_a_table_the_rule_decides_once_for_each_shape() -> None:
    assert rule(64, False, ASSUMED) == {"BLOCK": 64, "num_warps": 4, "ROWS": 2} == rule(64, False, ASSUMED)
    assert rule(65, True, ASSUMED) == {"BLOCK": 65, "num_warps": 4}
    assert CALLS == [64, 65]


def test_an_answer_that_is_kept_costs_what_a_cache_costs() -> None:
    import functools

    plain = functools.cache(lambda H, wide, device: {})

    def seconds(fn: Callable[..., Any]) -> float:
        return min(timeit.repeat(lambda: fn(64, False, ASSUMED), number=20_000, repeat=7))

    seconds(plain)
    assert seconds(rule) < 1.5 * seconds(plain)


def test_an_entry_of_the_users_table_replaces_constants_at_its_shape_alone(table: Callable[..., Path]) -> None:
    table(entry())
    assert rule(64, False, ASSUMED) == {"BLOCK": 64, "num_warps": 8, "ROWS": 2}
    assert rule(64, True, ASSUMED)["num_warps"] == rule(65, False, ASSUMED)["num_warps"] == 4
    assert rule(64, False, ASSUMED._replace(name="sm100"))["num_warps"] == 4


def test_the_users_table_comes_before_the_shipped_one(table: Callable[..., Path], monkeypatch: Any) -> None:
    folder = table().parent / "package"
    (folder / "launches").mkdir(parents=True)
    both = [entry(), entry(arguments={"H": 65, "wide": False})]
    (folder / "launches" / "sm90.json").write_text(json.dumps({"format": 1, "entries": both}))
    package = sys.modules[__name__.partition(".")[0]]
    monkeypatch.setattr(package, "__file__", str(folder / "__init__.py"))
    table(entry(constants={"num_warps": 16}))
    assert rule(64, False, ASSUMED)["num_warps"] == 16
    assert rule(65, False, ASSUMED)["num_warps"] == 8
    assert rule(64, False, ASSUMED._replace(name="gfx942"))["num_warps"] == 4


def test_where_the_users_table_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    assert settings.user_table() is None
    monkeypatch.delenv(VARIABLE)
    assert settings.user_table() == tmp_path / "liger" / "launches.json"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.user_table() == tmp_path / ".config" / "liger" / "launches.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rule(64, False, ASSUMED)["num_warps"] == 4  # none there: nothing to say


# -- What is wrong with a table ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"function": f"{__name__}:rul"}, "has no attribute 'rul'"),
        ({"function": "no_such_module:rule"}, "No module named 'no_such_module'"),
        ({"function": f"{__name__}:entry"}, "decides no launch settings"),
        ({"function": 3}, "function is 3, expected words"),
        ({"arguments": {"H": 64}}, "arguments are H, .* has H, wide"),
        ({"arguments": {"H": 64.5, "wide": False}}, "argument H=64.5: expected a whole number"),
        ({"constants": {"BLOCK": 128}}, "'BLOCK' is no tunable constant .*; it has num_warps, ROWS"),
        ({"constants": {"num_warps": 5}}, "num_warps is 5, expected one of 4, 8, 16"),
        ({"constants": {"num_warps": "8"}}, "num_warps is '8'"),
        ({"constants": {}}, "it has no constants"),
        ({"reason": None}, "reason is None, expected words"),
    ],
)
def test_a_wrong_entry_is_named_and_the_others_are_used(
    wrong: dict[str, Any], message: str, table: Callable[..., Path]
) -> None:
    file = table(entry(**wrong), entry())
    with pytest.warns(UserWarning, match=rf"{file}, entry 1: .*{message}.*not used"):
        assert rule(64, False, ASSUMED)["num_warps"] == 8


def test_a_constant_that_the_shape_does_not_have_is_named(table: Callable[..., Path]) -> None:
    table(entry(arguments={"H": 64, "wide": True}, constants={"ROWS": 4, "num_warps": 8}))
    with pytest.warns(UserWarning, match="H=64, wide=True: ROWS is no constant there"):
        assert rule(64, True, ASSUMED) == {"BLOCK": 64, "num_warps": 4}


def test_the_second_of_two_entries_is_named(table: Callable[..., Path]) -> None:
    table(entry(), entry(constants={"num_warps": 16}))
    with pytest.warns(UserWarning, match="entry 2: there is one before it"):
        assert rule(64, False, ASSUMED)["num_warps"] == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no table of launch settings"),
        ('{"format": 9, "entries": []}', '"format": 1'),
    ],
)
def test_a_file_that_is_no_table_is_named(text: str, message: str, table: Callable[..., Path]) -> None:
    file = table(text=text)
    with pytest.warns(UserWarning, match=f"{file}.*{message}"):
        assert rule(64, False, ASSUMED)["num_warps"] == 4
    with pytest.raises(ValueError, match=message):
        settings.write(file, [entry()])
    assert file.read_text() == text


def test_a_file_that_is_named_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such/file.json")
    with pytest.warns(UserWarning, match="LIGER_LAUNCH_TABLE names /no/such/file.json, which does not exist"):
        assert rule(64, False, ASSUMED)["num_warps"] == 4


# -- Writing and trying ------------------------------------------------------------------------------------------------
def test_writing_replaces_the_entry_of_the_same_request_and_keeps_the_rest(table: Callable[..., Path]) -> None:
    file = table(entry(), entry(architecture="sm80"), {"of": "someone else"})
    settings.write(file, [entry(constants={"num_warps": 16}), entry(arguments={"H": 1, "wide": True})])
    found = json.loads(file.read_text())["entries"]
    assert [e.get("architecture") for e in found] == ["sm80", None, "sm90", "sm90"]
    with pytest.warns(UserWarning, match="entry 2"):
        assert rule(64, False, ASSUMED)["num_warps"] == 16  # the next call knows
    assert list(file.parent.iterdir()) == [file]


def test_inside_a_trial_other_constants_count_and_requests_are_recorded() -> None:
    request = Request(NAME, "sm90", (64, False))
    assert derived(64) == 4
    with settings.trying({request: {"num_warps": 16}}) as asked:
        assert derived(64) == 16 == rule(64, False, ASSUMED)["num_warps"]
        assert asked == {request: {"BLOCK": 64, "num_warps": 16, "ROWS": 2}}
        assert request.named == {"H": 64, "wide": False}
    assert derived(64) == 4


# -- Around the launch -------------------------------------------------------------------------------------------------
def test_a_launch_without_warps_asks_its_backend_for_none() -> None:
    seen: list[dict[str, Any]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **kwargs: seen.append(kwargs)

    x = torch.empty(4)
    launch(Kernel(), (1,), (x,), BLOCK=4)
    launch(Kernel(), (1,), (x,), num_warps=8, BLOCK=4)
    launch(Kernel(), (1,), (x,), num_warps=8, num_stages=2, BLOCK=4)
    launch(Kernel(), (1,), (x,), num_stages=2, BLOCK=4)
    plain = {"BLOCK": 4, "enable_fp_fusion": True}
    warps = {**plain, "num_warps": 8, "num_stages": 1}
    assert seen == [plain, warps, {**warps, "num_stages": 2}, {**plain, "num_stages": 2}]


@pytest.mark.parametrize(
    "name, lanes, warps",
    [("sm90", 32, 32), ("gfx942", 64, 16), ("gfx950", 64, 16), ("gfx1100", 32, 32), ("xpu", 32, 32)],
)
def test_a_program_has_at_most_1024_threads(name: str, lanes: int, warps: int) -> None:
    found = ASSUMED._replace(name=name)
    assert (found.lanes, found.most_warps) == (lanes, warps)


def test_another_type_of_device_has_no_measurements_of_the_assumed_gpu() -> None:
    assert gpu(torch.device("meta")).name == "sm90"
    assert gpu(torch.device("xpu")).name == "xpu"
    with assume(ASSUMED._replace(name="sm80")):
        assert gpu(torch.device("cpu")).name == "sm80"


def test_neither_torch_nor_triton_is_imported() -> None:
    code = "import sys, liger.settings; print([m for m in ('torch', 'triton') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"
