"""The gates of ``liger.testing`` find planted faults and pass what is right."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import planted as plugin  # noqa: E402

from liger.declare import ModelPatch  # noqa: E402
from liger.errors import ContractViolation, PluginError  # noqa: E402
from liger.registry import registry  # noqa: E402
from liger.testing import (  # noqa: E402
    assert_contract,
    behaviour,
    check_kernel,
    count_ops,
    gpu,
    no_sync,
    no_writes,
    poisoned,
)
from liger.testing.cases import find, typical  # noqa: E402
from liger.testing.compare import compare, ulp  # noqa: E402
from liger.testing.kernels import failures, make_checks  # noqa: E402
from liger.testing.models import skip_unknown_calls  # noqa: E402

pytestmark = pytest.mark.usefixtures("planted")


def test_right_kernel_passes() -> None:
    check_kernel("scaled/right")


@pytest.fixture
def few_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """``big`` takes 2^15 elements for many."""
    monkeypatch.setattr(gpu, "BEYOND", 2**15)


def test_right_kernel_passes_with_many_elements(few_elements: None) -> None:
    gpu.big(find("scaled/right"), "cpu")


@pytest.mark.parametrize(("fault", "gate"), plugin.FAULTS.items())
def test_fault_is_found(fault: str, gate: str, few_elements: None) -> None:
    chosen = [check for check in make_checks(find(f"scaled_{fault}/{fault}")) if check.name.startswith(gate)]
    assert chosen, f"no check is called {gate}"
    found = 0
    for check in chosen:
        try:
            check()
        except Exception:
            found += 1
    assert found, f"{fault} passed {[c.name for c in chosen]}"


def test_check_kernel_names_every_failed_check() -> None:
    with pytest.raises(ContractViolation, match="needs_input_grad") as error:
        check_kernel("scaled_ignores_needs_input_grad/ignores_needs_input_grad")
    assert "contract-" not in str(error.value)


def test_message_shows_worst_coordinates_and_values() -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        return y + torch.zeros_like(y).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(0.5))

    x = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(ContractViolation, match=r"worst at \(1, 2\): got 2.5, eager 2, truth 2"):
        assert_contract(off, lambda x: 2 * x, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_ulp_is_the_distance_to_the_next_value(dtype: torch.dtype) -> None:
    for value in (1.0, 1.9, 2.0, 1e-3, 300.0):
        x = torch.tensor(value, dtype=dtype)
        step = torch.nextafter(x, torch.tensor(float("inf"), dtype=dtype)).double() - x.double()
        assert float(ulp(x.double(), dtype)) == float(step)


def test_rows_of_small_magnitude_are_held_to_their_own_scale() -> None:
    truth = torch.tensor([[1e3] * 4, [1e-3] * 4], dtype=torch.float64)
    eager = truth.float()
    wrong = eager.clone()
    wrong[1, 2] *= 1.001
    with pytest.raises(ContractViolation, match="row 1"):
        compare(wrong, eager, truth)


def test_truncation_to_bfloat16_is_biased_and_rounding_is_not() -> None:
    truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).double()
    eager = truth.bfloat16()
    compare(eager, eager, truth)
    truncated = (truth.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    with pytest.raises(ContractViolation, match="truncated to torch.bfloat16 instead of rounded"):
        compare(truncated, eager, truth)


def test_nan_is_right_where_the_truth_is_nan() -> None:
    truth = torch.tensor([float("nan"), 1.0], dtype=torch.float64)
    compare(truth.float(), truth.float(), truth)
    with pytest.raises(ContractViolation, match="not finite as the truth is"):
        compare(torch.tensor([0.0, 1.0]), truth.float(), truth)


def test_poisoned_memory_is_nan_in_backward_too() -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x.clone()

        @staticmethod
        def backward(ctx, dy):  # type: ignore[no-untyped-def]
            return torch.empty_like(dy)

    x = torch.ones(5, requires_grad=True)
    with poisoned():
        Careless.apply(x).sum().backward()
    assert x.grad is not None and x.grad.isnan().all()


def test_no_writes_names_the_tensor() -> None:
    x, y = torch.ones(3), torch.ones(4)
    with pytest.raises(ContractViolation, match="tensor 1, .* was written"), no_writes(x, y):
        y[2] = 5
    with no_writes(x, y):
        x + y[:3]


def test_no_sync_raises_at_the_call() -> None:
    x = torch.ones(3)
    with no_sync():
        x.sum()
    for careless in (lambda: x.sum().item(), lambda: bool(x.any()), x.nonzero, lambda: torch.equal(x, x)):
        with pytest.raises(ContractViolation, match="makes the host wait"), no_sync():
            careless()


def test_count_ops_counts_nested_blocks() -> None:
    x, w = torch.ones(2, 3), torch.ones(3)
    with count_ops() as outer:
        plugin.scaled(x, w)
        with count_ops() as inner:
            plugin.scaled(x, w, kernel="reference")
    assert outer == {("scaled", "right"): 1, ("scaled", "reference"): 1}
    assert inner == {("scaled", "reference"): 1}


# -- Triton's interpreter ----------------------------------------------------------------------------------------------
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


@interpreted
def test_interpreter_rounds_bfloat16_as_torch_does() -> None:
    pytest.importorskip("triton")
    import interpreted as probes

    from liger.testing import launches

    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 100
    x[:4] = torch.tensor([float("inf"), float("-inf"), 3.4e38, 1e-40])
    with launches() as counts:
        assert torch.equal(probes.cast(x, torch.bfloat16), x.bfloat16())
    assert counts == {"_cast": 1}
    whole = torch.arange(-300, 300, dtype=torch.int32)
    assert torch.equal(probes.cast(whole, torch.bfloat16), whole.bfloat16())
    assert torch.equal(probes.cast(whole.bfloat16(), torch.int32), whole.bfloat16().int())
    assert torch.equal(probes.cast(x[4:].half(), torch.bfloat16), x[4:].half().bfloat16())
    assert probes.cast(torch.full((16,), float("nan")), torch.bfloat16).isnan().all()


@interpreted
def test_interpreter_knows_bfloat16_constants() -> None:
    pytest.importorskip("triton")
    import interpreted as probes

    x = torch.tensor([-1.0, 2.0, -3.0, 4.0]).bfloat16()
    assert probes.constants(x).tolist() == [-1.0, 1.5, -3.0, 1.5]


@interpreted
@pytest.mark.parametrize("what", ["add", "compare", "sum"])
def test_interpreter_refuses_bfloat16_arithmetic(what: str) -> None:
    pytest.importorskip("triton")
    import interpreted as probes

    with pytest.raises(Exception, match="cast to tl.float32 first"):
        probes.arithmetic(torch.ones(16, dtype=torch.bfloat16), what)
    probes.arithmetic(torch.ones(16), what)


@interpreted
@pytest.mark.parametrize("what", ["add", "sub", "mul"])
def test_integers_wrap_in_the_interpreter_as_on_a_gpu(what: str) -> None:
    pytest.importorskip("triton")
    import interpreted as probes

    x, by = (torch.tensor(v, dtype=torch.int32) for v in ([1, 2, 2**31 - 1, -(2**31)], [3, 2, 2, 7]))
    by = -by if what == "sub" else by
    expected = {"add": x + by, "sub": x - by, "mul": x * by}[what]
    assert torch.equal(probes.integers(x, by, what), expected)


@interpreted
def test_interpreter_puts_the_language_back() -> None:
    tl = pytest.importorskip("triton.language")
    import interpreted as probes

    load = tl.load
    with pytest.raises(Exception, match="cast to tl.float32 first"):
        probes.arithmetic(torch.ones(16, dtype=torch.bfloat16), "sum")
    assert tl.load is load
    probes.arithmetic(torch.ones(16), "sum")
    assert tl.load is load


# -- pytest plugin -----------------------------------------------------------------------------------------------------
def test_plugin_stays_out_of_other_projects(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = '1'\n")
    (tmp_path / "test_x.py").write_text(
        "import pytest, sys\ndef test_x(request):\n    assert 'torch' not in sys.modules\n"
        "    with pytest.raises(pytest.FixtureLookupError):\n        request.getfixturevalue('device')\n"
    )
    assert _pytest(tmp_path).returncode == 0


def test_plugin_refuses_when_triton_was_imported_too_early(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("only matters without a GPU")
    (tmp_path / "pyproject.toml").write_text("[tool.liger]\ntest = true\n")
    (tmp_path / "early.py").write_text("import triton\n")
    (tmp_path / "test_x.py").write_text("def test_x(device):\n    assert device == 'cpu'\n")
    early = _pytest(tmp_path, "-p", "early")
    assert early.returncode != 0 and "Run pytest with TRITON_INTERPRET=1" in early.stdout + early.stderr
    assert _pytest(tmp_path).returncode == 0


def _pytest(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args, str(folder)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)


def test_a_block_inside_a_block_changes_nothing() -> None:
    with poisoned(), poisoned():
        assert bool(torch.empty(3).isnan().all())
        torch.zeros(5).add_(1)
    with poisoned():
        assert bool(torch.empty(3).isnan().all())


def test_strict_fails_on_writes_waits_and_poison(strict: Callable[..., AbstractContextManager[Any]]) -> None:
    x, dy = torch.ones(3), torch.ones(3)
    with strict(x, dy):
        made = torch.empty_like(x)
    assert bool(made.isnan().all())
    for written in (x, dy):
        with pytest.raises(ContractViolation, match="was written"), strict(x, dy):
            written.mul_(2)
    mask = x > 0
    for wait in (
        lambda: x.sum().item(),
        lambda: [x.tolist()],
        lambda: [x.cpu()],
        lambda: [x.numpy()],
        lambda: x[mask],
        lambda: x.index_put_((mask,), dy),
        lambda: torch.allclose(x, dy),
    ):
        with pytest.raises(ContractViolation, match="makes the host wait"), strict(dy):
            wait()


def test_waiting_is_allowed_where_it_is_asked_for() -> None:
    def waits(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() else x

    x = torch.ones(3, requires_grad=True)
    assert_contract(waits, lambda x: 2 * x, [x], waits=True)
    with pytest.raises(ContractViolation, match="makes the host wait"):
        assert_contract(waits, lambda x: 2 * x, [x])


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Declare the option of a planted op in another way."""
    ops: Any = registry().ops

    def change(op: str, **changes: bool) -> None:
        option = dataclasses.replace(ops[op].options["factor"], **changes)
        monkeypatch.setitem(ops, op, dataclasses.replace(ops[op], options={"factor": option}))

    return change


def test_an_option_may_be_silent_if_it_says_so(declare: Callable[..., None]) -> None:
    kernel = find("scaled_ignores_option/ignores_option")
    with pytest.raises(ContractViolation, match="accepted and ignored"):
        behaviour.options_matter(kernel, "cpu")
    declare("scaled_ignores_option", silent=True)
    behaviour.options_matter(kernel, "cpu")


def test_an_option_may_wait_if_it_says_so(declare: Callable[..., None]) -> None:
    case = typical(find("scaled_synchronises/synchronises")).replace(options={"factor": 0.5})
    with pytest.raises(ContractViolation, match="makes the host wait"):
        case.check()
    declare("scaled_synchronises", waits=True)
    case.check()


def test_mixed_names_an_argument() -> None:
    case = typical(find("scaled/right"), "bfloat16")
    assert [t.dtype for t in case.replace(mixed="w").make()[0]] == [torch.bfloat16, torch.float32]
    with pytest.raises(PluginError, match="no tensor argument 'v' to be float32; it has x, w"):
        case.replace(mixed="v").make()


def test_a_part_of_the_checks() -> None:
    kernel = "scaled_hands_out_saved/hands_out_saved"
    assert [name for name, _ in failures(kernel, part="second_backward")] == ["second_backward"]
    assert not list(failures(kernel, part="signature"))
    with pytest.raises(ValueError, match="has 'nothing' in its name"):
        next(failures(kernel, part="nothing"))


def test_parts_of_the_checks_are_disjoint_and_together_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from liger.testing.kernels import in_part

    monkeypatch.delenv("LIGER_TEST_PART", raising=False)
    names = [f"op/triton check{i}" for i in range(200)]
    assert all(map(in_part, names))
    parts = []
    for part in ("0/3", "1/3", "2/3"):
        monkeypatch.setenv("LIGER_TEST_PART", part)
        parts.append({name for name in names if in_part(name)})
    assert sum(map(len, parts)) == len(set.union(*parts)) == 200
    assert min(map(len, parts)) > 40
    for wrong in ("3/3", "1", "-1/3", "a/b"):
        monkeypatch.setenv("LIGER_TEST_PART", wrong)
        with pytest.raises(ValueError, match="LIGER_TEST_PART is .*, expected I/N"):
            in_part("x")


def test_all_checks_of_a_model_run_and_each_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from liger.testing import models

    def fails(device: str) -> None:
        raise ValueError(f"wrong on {device}")

    ran: list[str] = []
    patch = ModelPatch(model_type="made_up", module="nowhere", fits={}, head=None, mini="nowhere:mini")
    found = [models.Check("bad", fails), models.Check("good", ran.append), models.Check("worse", fails)]
    monkeypatch.setattr(models, "_checks", lambda patch: found)
    with pytest.raises(ContractViolation, match="^bad: ValueError: wrong on cpu\nworse: ValueError: wrong on cpu$"):
        models.check_model(patch)
    assert ran == ["cpu"]


def test_calls_that_a_declaration_does_not_know_are_drift_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fewer, more = Counter(rope=2, rms_norm=5), Counter(rope=4, rms_norm=5)
    monkeypatch.delenv("LIGER_DRIFT", raising=False)
    skip_unknown_calls("llama", fewer, more)
    monkeypatch.setenv("LIGER_DRIFT", "1")
    with pytest.raises(pytest.skip.Exception, match=r"drift: llama calls \{'rope': 2\} besides what is declared"):
        skip_unknown_calls("llama", fewer, more)
    for found, expected in ((more, fewer), (more, more), (Counter(rope=1, rms_norm=6), more)):
        skip_unknown_calls("llama", found, expected)
