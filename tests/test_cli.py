"""``liger plan`` on what people have: a model directory, a model type, something that does not exist."""

import json

import pytest
import yaml
from typer.testing import CliRunner

import liger
from liger.cli import build
from liger.declare import load
from liger.registry import registry
from liger_hf.commands import load_config, meta_model


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


def test_plan_of_an_undeclared_type_and_of_nothing():
    assert "would apply layer_norm x25, linear_cross_entropy x1" in plan("gpt2").stdout
    assert "Qwen2VLForConditionalGeneration" in plan("qwen2_vl").stdout
    with pytest.raises(ValueError, match="model_type 'clip' has no language model"):
        meta_model(load_config("clip"))
    with pytest.raises(ValueError, match="'no/such' is no model directory, reachable hub id, model_type or class"):
        load_config("no/such")


@pytest.mark.parametrize("op", sorted(registry().ops))
def test_explain_prints_the_profile_of_each_kernel_as_yaml(op):
    done = CliRunner().invoke(build(), ["explain", op, "--profile"])
    said = yaml.safe_load(done.stdout)
    declared = registry().ops[op]
    assert [s["values"] for s in said["benchmark"]["sweeps"]] == [list(s.values) for s in declared.sweeps]
    assert said["benchmark"]["providers"][:3] == ["ours", "eager", "torch.compile"]
    assert said["traced_on"] == list(declared.traced_on)
    for kernel in registry().kernels(op):
        found = said["kernels"][kernel.id]
        assert found["rank"] == kernel.rank
        if kernel.profile:
            assert found["saved"] == list(kernel.profile.saved) and found["gradients"] == dict(kernel.profile.gradients)
            assert set(found) >= {"tier", "recomputed", "grid", "precision", "needs"}


def test_explain_says_where_torch_compile_is_given_the_reference():
    line = "inside torch.compile on cuda: the reference, unless a kernel is chosen with prefer="
    assert line in str(liger.explain("rms_norm")) and line not in str(liger.explain("cross_entropy"))


@pytest.mark.parametrize("words", [["--device", "cuda"], ["--dtype", "float32"]])
def test_explain_takes_no_device_and_no_dtype_with_profile(words):
    done = CliRunner().invoke(build(), ["explain", "rms_norm", "--profile", *words])
    assert isinstance(done.exception, ValueError) and "leave --device and --dtype out" in str(done.exception)


def test_explain_prints_the_profile_as_json_too():
    done = CliRunner().invoke(build(), ["explain", "rms_norm", "--profile", "--json"])
    assert json.loads(done.stdout)["kernels"]["rms_norm/triton"]["tier"] == "reduction"
