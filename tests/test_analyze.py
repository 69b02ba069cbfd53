"""`liger analyze`: answers with evidence, and what to change where a declaration and upstream part ways."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from liger.cli import build
from liger.registry import registry
from liger.testing.kernels import in_part
from liger_hf import fits
from liger_hf.analyze import QUESTIONS, analyze
from liger_hf.change_plan import change_plan

ANSWERS = {  # model type: question -> answer
    "gemma2": {
        "causal class": "Gemma2ForCausalLM",
        "cast": {"Gemma2RMSNorm": "gemma"},
        "offset": {"Gemma2RMSNorm": 1.0},
        "activation": {"Gemma2MLP": "gated_mlp[gelu_pytorch_tanh]"},
        "logits": "soft cap 30",
        "soft cap": "config.final_logit_softcapping",
        "norm before attention": "input_layernorm",
        "in place": "safe",
        "closest declared type": "gemma2",
    },
    "qwen3_next": {
        "kind": "MoE, hybrid",
        "router": "Qwen3NextTopKRouter (gate)",
        "shared expert": "Qwen3NextMLP (shared_expert)",
        "forward beside Llama's": {"more": "output_router_logits", "missing": "none"},
        "output class": "MoeCausalLMOutputWithPast",
    },
    "olmo2": {"norm before attention": "none", "final norm": "model.norm", "cast": {"Olmo2RMSNorm": "fp32-weight"}},
    "gemma4": {"soft cap": "config.text_config.final_logit_softcapping", "mini": None},
    "qwen2_5_vl": {
        "towers": {"model.visual": "Qwen2_5_VisionTransformerPretrainedModel"},
        "norms of towers": {"Qwen2_5_VLRMSNorm": "rms_norm"},
    },
    "Starcoder2ForCausalLM": {"closest declared type": "phi", "gate, up, down": "none", "base prefix": "model"},
    "bitnet": {"kind": "dense"},
}


def run(*words):
    return CliRunner().invoke(build(), ["analyze", *words])


@pytest.mark.parametrize("target", ANSWERS)
def test_answers(target):
    profile = analyze(target)
    assert {name: profile.answers[name].value for name in ANSWERS[target]} == ANSWERS[target]
    assert list(profile.answers) == list(QUESTIONS) and all(answer.evidence for answer in profile.answers.values())


def test_of_equally_close_types_the_first_by_name(monkeypatch):
    models = registry().models
    for order in (1, -1):
        monkeypatch.setattr(
            registry(), "models", {name: models[name] for name in ("qwen2", "mistral", "llama")[::order]}
        )
        assert analyze("starcoder2").answers["closest declared type"].value == "llama"


def test_what_is_not_known_is_said_with_the_reason():
    logits = analyze("t5").answers["logits"]
    assert logits.value is None and logits.evidence.startswith("its backbone 'transformer' is not a direct child")
    assert "no fit is for a module" in str(analyze("starcoder2").answers["activation"].value)


def test_a_type_that_is_a_part_of_other_models():
    assert analyze("pixtral").answers["causal class"].value == "Mistral3ForConditionalGeneration"  # of its mini


def test_a_type_whose_default_config_makes_no_model():
    assert analyze("lfm2_moe").answers["causal class"].value == "Lfm2MoeForCausalLM"  # of its mini
    with pytest.raises(ValueError, match="makes no model of 'qwen3_omni_moe' from its default config: AttributeError"):
        analyze("qwen3_omni_moe")


def test_formats(tmp_path):
    analyzed = run("llama", "--json")
    assert json.loads(analyzed.stdout)["answers"]["cast"]["value"] == {"LlamaRMSNorm": "llama"}
    assert "| base prefix | model | modeling_llama.py:" in run("llama", "--markdown").stdout
    assert isinstance(run("llama", "--json", "--markdown").exception, ValueError)
    assert "is no model directory, reachable hub id, model_type or class" in str(run("NoSuchThing").exception)


def changed(monkeypatch, **changes):
    """What `--diff` says of phi3, declared otherwise."""
    patch = registry().models["phi3"]
    wrong = replace(patch, **{name: change(patch) for name, change in changes.items()})
    monkeypatch.setitem(registry().models, "phi3", wrong)
    return change_plan("phi3").changes


@pytest.mark.parametrize("model_type", ["phi3", *filter(in_part, sorted(registry().models.keys() - {"phi3"}))])
def test_a_declaration_that_is_right_has_nothing_to_change(model_type):
    done = run(model_type, "--diff")
    assert done.exit_code == 0 and "nothing to change" in done.stdout


def test_a_plan_of_changes(monkeypatch):
    (change,) = changed(monkeypatch, fits=lambda p: {**p.fits, "Phi3RMSNorm": fits.rms_norm(cast="gemma")})
    assert change.what.endswith('declare fits.rms_norm(cast="llama")') and "rms_norm/triton" in change.kernels
    assert change.files[0].endswith("liger_models_phi/plugin.py") and change.behaviour.startswith("5 modules run")
    done = run("phi3", "--diff")
    assert done.exit_code == 1 and "1 to change\n1. Phi3RMSNorm: its forward does not compute rms_norm" in done.stdout


def test_a_class_that_is_gone_and_one_that_is_new(monkeypatch):
    renamed = lambda p: {"Phi9MLP" if name == "Phi3MLP" else name: fit for name, fit in p.fits.items()}  # noqa: E731
    gone, new = changed(monkeypatch, fits=renamed)
    assert gone.what.startswith("Phi9MLP: transformers.models.phi3.modeling_phi3 has no class 'Phi9MLP'")
    assert "Phi3MLP is recognised and not declared: add transformers" in new.what
    assert 'fits.packed_mlp(act="silu")' in new.what


def test_a_mini_that_upstream_no_longer_takes(monkeypatch):
    (change,) = changed(monkeypatch, mini=lambda p: "liger_models_phi.mini:gone")
    assert change.what.startswith("the mini cannot be made") and change.files[0].endswith("mini.py")
