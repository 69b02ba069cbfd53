"""The estimate of a training step's memory, beside what was measured on a GPU and what can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel
from typer.testing import CliRunner

import liger
from liger.bench.rows import read
from liger.cli import build
from liger.declare import load
from liger.launch import no_launches
from liger.registry import registry
from liger.testing.models import find
from liger_hf.commands import meta_model
from liger_hf.memory import Live, NotEstimated, estimate

pytestmark = pytest.mark.triton
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "h200"
MIB = 2**20
MEASURED = [
    row
    for row in read(RESULTS)
    if (row["op"], row["provider"]) in {(op, who) for op in ("cross_entropy", "rms_norm") for who in ("ours", "eager")}
    or (row["op"] == "linear_cross_entropy" and row["provider"] == "ours" and row["sizes"]["H"] == 4096)
    if row["mode"] in ("full", "backward") and row["status"] == "timed" and row["peak_mib"] > 64
    if "head" not in row["case"] and "scoring" not in row["case"]  # which have inputs of their own
]


def counted(op: str, sizes: dict[str, int], kernel: str) -> float:
    """Peak MiB above the inputs in a forward and a backward on the meta device."""
    with torch.device("meta"):
        tensors, options = load(registry().op(op).inputs)("meta", torch.bfloat16, **sizes, generator=None)
    leaves = [t.detach().requires_grad_(t.is_floating_point()) if t is not None else None for t in tensors]
    given = [t for t in leaves if t is not None]
    with Live(given) as live, no_launches():
        out = load(registry().op(op).public)(*leaves, **options, kernel=kernel)
        torch.autograd.grad(out, [t for t in given if t.requires_grad], torch.ones_like(out))
    return live.peak / MIB


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['op']} {row['case']} {row['provider']}")
def test_ops_need_what_a_gpu_says_they_need(row) -> None:
    found = counted(row["op"], row["sizes"], "triton" if row["provider"] == "ours" else "reference")
    assert found == pytest.approx(row["peak_mib"], rel=0.05)


def made():
    return meta_model(load(find("llama").mini)())


def test_what_upstream_needs_by_hand() -> None:
    """Where the vocabulary is most of a model: logits, their log-softmax and its gradient, in float32."""
    tokens, config = 4 * 512, load(find("llama").mini)()
    config.vocab_size, config.num_hidden_layers = 50_000, 1
    found = estimate(lambda: meta_model(config), 4, 512)
    weight = config.vocab_size * config.hidden_size * 2
    three = 3 * tokens * config.vocab_size * 4
    assert found.peak[0] == pytest.approx(three + tokens * config.vocab_size * 2, rel=0.3)
    assert found.peak[1] < found.peak[0] / 3
    assert found.parameters == found.gradients and found.parameters > weight


def test_more_tokens_need_more_and_fewer_bits_less() -> None:
    small, large, wide = (
        estimate(made, b, 256, t) for b, t in ((2, torch.bfloat16), (8, torch.bfloat16), (2, torch.float32))
    )
    assert large.kept[0] == pytest.approx(4 * small.kept[0], rel=0.01)
    assert wide.parameters == 2 * small.parameters and wide.kept[0] > small.kept[0]


def test_the_command_shows_it_and_refuses_half_a_question() -> None:
    run = CliRunner().invoke
    plan = run(build(), ["plan", "llama", "--batch", "4", "--seq", "2048"])
    assert plan.exit_code == 0 and "estimate for 4 x 2048 tokens of text in bfloat16" in plan.stdout
    asked = run(build(), ["plan", "llama", "--batch", "4", "--seq", "2048", "--json"])
    memory = json.loads(asked.stdout)["memory"]
    for pair in (memory["kept"], memory["peak"]):
        assert pair["unpatched"] > pair["patched"] > 0
    assert memory["saved"] == memory["peak"]["unpatched"] - memory["peak"]["patched"]
    wide = run(build(), ["plan", "llama", "--batch", "4", "--seq", "2048", "--dtype", "float32", "--json"])
    assert json.loads(wide.stdout)["memory"]["parameters"] == 2 * memory["parameters"]
    for batch, seq, wrong in (("0", "9", "--batch"), ("9", "0", "--seq")):
        refused = run(build(), ["plan", "llama", "--batch", batch, "--seq", seq])
        assert refused.exit_code == 2 and wrong in refused.output
    assert "both --batch and --seq" in str(run(build(), ["plan", "llama", "--batch", "1"]).exception)
    assert "expected bfloat16" in str(
        run(build(), ["plan", "llama", "--batch", "1", "--seq", "9", "--dtype", "int8"]).exception
    )


def test_a_model_that_asks_for_data_is_named() -> None:
    with pytest.raises(NotEstimated, match="FalconH1ForCausalLM cannot run on the meta device"):
        estimate(lambda: meta_model(load(find("falcon_h1").mini)()), 1, 8)
    with pytest.raises(ValueError, match="batch is 0"):
        estimate(made, 0, 8)


def test_layers_before_the_head_are_not_judged_without_weights() -> None:
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, is_decoder=True
    )
    (row,) = [r for r in liger.plan(meta_model(config)).rows if r.op == "linear_cross_entropy"]
    assert row.status == "refused" and "decides" in row.reason
    (row,) = [r for r in liger.plan(BertLMHeadModel(config)).rows if r.op == "linear_cross_entropy"]
    assert row.status == "applied"
