"""Each program of examples/ is run, patches its model and learns."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py") if file.stem != "text")
OPS = {
    "lightning_loop": ("rope", "silu_mul", "rms_norm", "linear_cross_entropy"),
    "plain_loop": ("rope", "silu_mul", "rms_norm", "linear_cross_entropy"),
    "trainer": ("rope", "silu_mul", "rms_norm", "linear_cross_entropy"),
    "trl_sft": ("rope", "silu_mul", "rms_norm"),
}


def test_every_example_is_in_the_table():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(OPS) == NAMES and all(f"`{name}.py`" in page for name in NAMES)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.filterwarnings("ignore:.*use_liger_kernel=True.*:FutureWarning")
def test_it_learns_and_shows_its_report(name, monkeypatch, capsys):
    if name == "trl_sft":
        pytest.importorskip("trl", reason="trl is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    losses = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    printed = capsys.readouterr().out
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert all(f"{op} x" in printed for op in OPS[name])


def test_lightning_has_the_losses_of_the_unpatched_model(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    program = runpy.run_path(str(EXAMPLES / "lightning_loop.py"))
    patched, plain = (program["train"](program["CausalLM"](program["model"](), patch)) for patch in (True, False))
    assert patched == pytest.approx(plain, rel=1e-5)
