"""``liger plan`` on what people have: a model directory, a model type, something that does not exist."""

import json

import pytest
from typer.testing import CliRunner

from liger.cli import build
from liger.declare import load
from liger.registry import registry
from liger_hf.commands import load_config


def plan(*arguments):
    return CliRunner().invoke(build(), ["plan", *arguments])


def test_plan_of_a_model_directory(tmp_path):
    load(registry().models["gemma2"].mini)().save_pretrained(tmp_path)
    rows = json.loads(plan(str(tmp_path), "--json").stdout)["rows"]
    assert {r["status"] for r in rows} == {"applied"} and len(rows) == 14
    assert not list(tmp_path.glob("*.safetensors"))


def test_plan_of_a_model_type():
    out = plan("llama").stdout
    assert "would apply linear_cross_entropy x1, rms_norm x65, rope x32, silu_mul x32" in out


def test_plan_of_an_unknown_type_and_of_nothing():
    assert "'gpt2'" in plan("gpt2").stdout
    with pytest.raises(ValueError, match="'no/such' is no model directory, reachable hub id or model_type"):
        load_config("no/such")
