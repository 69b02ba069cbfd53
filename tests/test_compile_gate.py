"""The compile gate bites: each planted fault is found. The gate itself runs as ``python tools/compile_gate.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from compile_limits import Budget, Launch, read_budgets, unneeded  # noqa: E402  (tools/ is no package)

pytest.importorskip("triton", reason="the gate needs triton")
PLANTED = """
import sys
from importlib.metadata import EntryPoint
sys.path[:0] = [{tools!r}, {tests!r}]
import compile_gate
from liger import registry
from liger.plugins import GROUP, Plugins
registry.use(registry.Registry(Plugins([EntryPoint("planted", "planted_launches", GROUP)][:{plugins}])))
sys.exit(compile_gate.main(["--targets", "sm90", "--jobs", "2"]))
"""


def run_gate(plugins: int) -> subprocess.CompletedProcess[str]:
    """The gate over the planted kernels, or over none."""
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "LIGER_TEST_PART")}
    code = PLANTED.format(tools=str(ROOT / "tools"), tests=str(ROOT / "tests"), plugins=plugins)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def planted() -> subprocess.CompletedProcess[str]:
    return run_gate(plugins=1)


FAULTS = {
    "spills": r"_copy BLOCK=32768.*spilled [1-9]\d* exceeds 0",
    "shared": r"_copy BLOCK=32768.*shared \d+ exceeds 232448",
    "raises": r"raises sm90 bfloat16-R4-H32768 and 2 more: ValueError: no such luck",
    "dies": r"dies sm90 bfloat16-R4-H32768: the process ended with status 7",
    "launches_nothing": r"launches_nothing sm90 launched nothing",
    "misdeclared, not compiled": r"misdeclared sm90 _other is in the profile and was never compiled",
    "misdeclared, not in the profile": r"misdeclared sm90 _copy was launched and is not in the profile",
    "no production sizes": r"bare/right sm90 op bare declares no production sizes",
}


@pytest.mark.parametrize("line", FAULTS.values(), ids=FAULTS)
def test_fault_is_found(planted, line):
    assert planted.returncode == 1
    assert re.search("FAULT.*" + line, planted.stdout), planted.stdout + planted.stderr


def test_right_kernel_has_no_fault(planted):
    assert re.search(r"^copy/right +sm90 .* 0 bad$", planted.stdout, re.MULTILINE), planted.stdout + planted.stderr


def test_nothing_to_compile_is_an_error():
    done = run_gate(plugins=0)
    assert done.returncode == 2
    assert "nothing to compile" in done.stderr


def launch(**changes) -> Launch:
    fine = {"registers": 40, "spilled": 0, "stack": 0, "shared": 0, "threads": 128, "seconds": 1.0}
    named = {"kernel": "op/triton", "function": "_f", "target": "gfx942", "constants": "H=8 [float32]", "case": "c"}
    return Launch(**(named | fine | changes))


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"shared": 65_537}, "shared 65537 exceeds 65536"),
        ({"threads": 2048}, "threads 2048 exceeds 1024"),
        ({"stack": 8}, "stack 8 exceeds 0"),
        *(({name: None}, f"{name} was not measured") for name in ("registers", "spilled", "stack", "shared")),
    ],
)
def test_limits(changes, fault):
    assert launch().faults() == []
    assert launch(**changes).faults() == [fault]


PTXAS = "    0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\nptxas info    : Used 40 registers"
AMDGCN = ".vgpr_count: 33\n .vgpr_spill_count: 2\n .private_segment_fixed_size: 12\n"


@pytest.mark.parametrize(
    "asm, log, found",
    [
        ({}, PTXAS, [40, 28, 0, 7]),
        ({}, "", [None, None, None, 7]),
        ({}, PTXAS.partition("\n")[0], [None, 28, 0, 7]),
        ({"amdgcn": AMDGCN}, "", [33, 8, 12, 7]),
        ({"amdgcn": ".vgpr_count: 33"}, PTXAS, [33, None, None, 7]),
    ],
)
def test_what_is_not_said_is_not_taken_for_0(asm, log, found):
    from dry_launches import measure

    used = measure(SimpleNamespace(asm=asm, metadata=SimpleNamespace(shared=7)), log)
    assert [used[name] for name in ("registers", "spilled", "stack", "shared")] == found


def budget(**changes) -> Budget:
    return Budget(**({"kernel": "op/triton", "function": "_f", "reason": "faster", "spilled": 8} | changes))


def test_budget_allows_what_it_names_and_no_more():
    assert launch(spilled=8).faults([budget()]) == []
    assert launch(spilled=9).faults([budget()]) == ["spilled 9 exceeds 8"]
    for other in ({"function": "_g"}, {"kernel": "op/other"}, {"targets": ["sm90"]}, {"constants": "H=16"}):
        assert launch(spilled=8).faults([budget(**other)]) == ["spilled 8 exceeds 0"]


def test_budget_that_nothing_needs_is_found():
    needed, idle = budget(), budget(function="_g")
    assert unneeded([needed], [launch(spilled=8)]) == []
    (line,) = unneeded([needed, idle], [launch(spilled=8), launch(function="_g")])
    assert "op/triton _g" in line


@pytest.mark.parametrize(
    "allowed, used, said",
    [
        ({"spilled": 16}, {"spilled": 8}, []),
        ({"spilled": 20}, {"spilled": 8}, ["spilled = 20, used are 8"]),
        ({"spilled": 8, "stack": 4}, {"spilled": 8}, ["stack = 4, used are 0"]),
    ],
)
def test_budget_that_allows_far_too_much_is_found(allowed, used, said):
    found = unneeded([budget(**allowed)], [launch(**used)])
    assert [line.partition("is too loose: ")[2] for line in found] == said


ENTRY = '[[budget]]\nkernel = "op/triton"\nfunction = "_f"\n'
FINE = ENTRY + 'reason = "faster"\n'


@pytest.mark.parametrize(
    "text, message",
    [
        (ENTRY, r"entry 1: unknown \[\], missing \['reason'\]"),
        (ENTRY + 'reason = " "', "entry 1: reason is ' ', expected words"),
        (ENTRY + "reason = 0", "entry 1: reason is 0, expected words"),
        (FINE + "spills = 1", r"entry 1: unknown \['spills'\]"),
        (FINE + "spilled = -4", "entry 1: spilled is -4, expected a whole number of bytes"),
        (FINE + "spilled = true", "spilled is True"),
        (FINE + "stack = inf", "stack is inf"),
        (FINE + 'stack = "16"', "stack is '16'"),
        (FINE + FINE + 'targets = "sm80"', "entry 2: targets is 'sm80', expected a list of sm80, sm90"),
        (FINE + 'targets = ["sm79"]', r"targets is \['sm79'\]"),
        (FINE + 'constants = "("', r"constants is '\(', expected a regular expression"),
        (FINE + "constants = 1", "constants is 1, expected a regular expression"),
        (FINE + 'targets = ["gfx942"]\nshared = 65536', "shared is 65536, which gfx942 allow anyway: 65536"),
        (FINE + "shared = 200_000", "allow anyway: 232448"),
        (FINE.replace("[[budget]]", "[budget]"), "holds no list of tables, expected"),
        (FINE.replace("budget", "budgets"), r"holds \['budgets'\], expected"),
    ],
)
def test_wrong_budget_file_is_refused(tmp_path, text, message):
    file = tmp_path / "budget.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"budget.toml.* {message}"):
        read_budgets(file)


def test_budget_of_shared_memory(tmp_path):
    file = tmp_path / "budget.toml"
    file.write_text(FINE + 'targets = ["gfx942"]\nshared = 70_000')
    assert launch(shared=70_000).faults(read_budgets(file)) == []
    assert launch(shared=70_001).faults(read_budgets(file)) == ["shared 70001 exceeds 70000"]


@pytest.mark.parametrize("name", ["--kernels", "--targets"])
def test_option_without_a_value_is_refused(name):
    from compile_gate import parse

    with pytest.raises(SystemExit):
        parse([name])


@pytest.mark.parametrize(
    "words, launches, status",
    [
        ([], [launch()], 1),
        (["--kernels", "silu_mul/triton", "--targets", "sm90"], [launch()], 0),
        (["--targets", "sm90"], [launch()], 1),
        (["--kernels", "silu_mul/triton"], [], 1),
    ],
)
def test_everything_in_time_and_something_at_all(words, launches, status, monkeypatch):
    import compile_gate

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(compile_gate, "ALLOWED_SECONDS", -1)
    monkeypatch.setattr(compile_gate, "read_budgets", list)
    result = compile_gate.Result("op/triton", "gfx942", launches)
    monkeypatch.setattr(compile_gate, "gate_all", lambda *_: iter([result]))
    assert compile_gate.main(["--jobs", "2", *words]) == status


def test_budgets_of_the_repository_can_be_read():
    assert all(b.spilled or b.stack or b.shared for b in read_budgets())
