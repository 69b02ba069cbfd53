"""What model families add to the loss of a plain causal LM: the other checks of each type are `model_checks`."""

import copy
import itertools

import pytest
import torch
from transformers import (
    DeepseekV4ForCausalLM,
    Gemma3nAudioConfig,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Llama4ForConditionalGeneration,
    MllamaForCausalLM,
    SiglipVisionConfig,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

import liger
from liger.registry import registry
from liger.testing.models import (
    Pair,
    expect_close,
    expect_close_gradients,
    expect_equal_step,
    find,
    gradients,
)
from liger_hf.minis import pixels_16
from liger_models_deepseek.mini import deepseek_v4
from liger_models_gemma.mini import gemma3n_text
from liger_models_llama.mini import llama4, mllama

ELSEWHERE = """
deepseek_v4 exaone4 falcon_h1 gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text glm4 glm4v glm4v_moe gpt_oss granite
hunyuan_v1_dense hunyuan_v1_moe internvl llama llama4 llama4_text llava ministral mistral mixtral mllama
mllama_text_model nemotron olmo2 olmo3 paligemma phi3 pixtral qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text
qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text
qwen3_vl_text smollm3 smolvlm
"""
"""Model types that other collections of kernels patch."""


def test_what_others_patch_is_declared():
    names = set(ELSEWHERE.split())
    assert len(names) == 50 and not names - registry().models.keys()


@pytest.mark.parametrize("model_type", ["mixtral", "granitemoe", "qwen3_next", "gpt_oss", "ernie4_5_moe"])
@pytest.mark.parametrize("where", ["call", "config"])
def test_the_loss_of_routers_is_added(model_type, where, device):
    pair = Pair(find(model_type), device)
    asked = {"output_router_logits": True}
    plain, patched = pair.both(**(asked if where == "config" else {}))
    out = expect_equal_step(plain, patched, **pair.batch(), **(asked if where == "call" else {}))
    assert float(out.aux_loss.detach()) > 1 and plain.router_aux_loss_coef > 0
    without = patched(**pair.batch(), output_router_logits=False).loss
    assert float((out.loss - without).detach()) == pytest.approx(
        plain.router_aux_loss_coef * float(out.aux_loss), rel=0.1
    )


def inputs_of_parts(pair, model):
    """What the forwards of a model's children get in a forward with images, by name: arguments, keyword arguments."""
    seen = {}
    for name, part in model.base_model.named_children():
        note = lambda _, args, kwargs, name=name: seen.setdefault(name, (args, kwargs))  # noqa: E731
        part.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        copy.deepcopy(model)(**pair.seen(pair.batch()["input_ids"]), use_cache=False)
    return seen


def run_alone(part, args, kwargs):
    """Output of a model without a head, and gradients of its first half."""
    out = part(*args, **kwargs)[0]
    out[..., : out.shape[-1] // 2].sum().backward()
    return out.detach(), gradients(part)


def expect_equal_alone(part, inputs):
    plain, patched = copy.deepcopy(part), copy.deepcopy(part)
    liger.autopatch(patched)
    (wanted, expected), (found, got) = (run_alone(model, *inputs) for model in (plain, patched))
    expect_close(found, wanted, "the output")
    assert got.keys() == expected.keys() and got
    expect_close_gradients(got, expected, "the gradient")


MODELS_THAT_SEE = {patch.mini: name for name, patch in registry().models.items() if patch.images}


@pytest.mark.parametrize("model_type", MODELS_THAT_SEE.values())
def test_text_model_and_tower_by_themselves(model_type, device):
    """They are patched as in the model around them: declared, or recognised where their own type is not declared."""
    pair = Pair(find(model_type), device)
    model = pair.plain()
    inputs = inputs_of_parts(pair, model)
    paths = {row.path: row.op for row in liger.plan(model).applied}
    base = next(f"{path}." if path else "" for path, module in model.named_modules() if module is model.base_model)
    checked = 0
    for name, part in model.base_model.named_children():
        inside = {path: op for path, op in paths.items() if path.startswith(f"{base}{name}.")}
        if inside and hasattr(part, "config"):
            alone = {
                f"{base}{name}.{row.path}": row.op for row in liger.plan(part, skip="linear_cross_entropy").applied
            }
            assert alone == inside
            expect_equal_alone(part, inputs[name])
            checked += 1
    assert checked == 2


def test_a_text_model_of_a_type_of_its_own_with_a_head(device):
    """transformers has no auto class for it."""
    plain, patched = (MllamaForCausalLM(mllama().text_config).to(device).train() for _ in range(2))
    patched.load_state_dict(plain.state_dict())
    applied = {row.owner: row.op for row in liger.autopatch(patched, strict=True).applied}
    assert all("liger-models-llama" in owner for owner in applied)
    expect_equal_step(plain, patched, **Pair(find("mllama"), device).batch())


def gemma3n_that_sees():
    """Behind a SigLIP tower: upstream's own needs timm, and its config takes no other but behind its back."""
    tower = SiglipVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    for name, value in {"vocab_size": 2, "vocab_offset": 251, "rms_norm_eps": 1e-6}.items():
        setattr(tower, name, value)
    sound = Gemma3nAudioConfig(
        hidden_size=64, conf_num_hidden_layers=1, conf_num_attention_heads=2, vocab_size=3, vocab_offset=253
    )
    config = Gemma3nConfig(
        text_config=gemma3n_text(), audio_config=sound, image_token_id=251, vision_soft_tokens_per_image=4
    )
    config.__dict__["vision_config"] = tower
    torch.manual_seed(0)
    return Gemma3nForConditionalGeneration(config).train()


def test_gemma3n_that_sees(device):
    model = gemma3n_that_sees().to(device)
    batch = Pair(find("gemma3n_text"), device).batch()
    for inputs in (
        batch,
        {**batch, **{name: value.to(device) for name, value in pixels_16(batch["input_ids"]).items()}},
    ):
        patched = copy.deepcopy(model)
        report = liger.autopatch(patched)
        applied = {row.cls for row in report.applied}
        assert applied >= {"Gemma3nRMSNorm", "Gemma3nTextMLP", "Gemma3nTextAttention", type(model).__name__}
        out = expect_equal_step(copy.deepcopy(model), patched, **inputs)
        assert out.logits is None


def test_deepseek_v4_with_compressed_keys(device):
    """What compresses them rotates by upstream's code, the attention around it by the op."""
    config = deepseek_v4()
    config.compress_rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}
    config.layer_types = list(config.compress_rates)
    torch.manual_seed(0)
    plain = DeepseekV4ForCausalLM(config).to(device).train()
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, strict=True)
    assert sum(row.op == "rope" for row in report.applied) == 2
    expect_equal_step(plain, patched, **Pair(find("deepseek_v4"), device).batch(tokens=24))


def test_llama4_that_sees_fails_by_itself(monkeypatch):
    """In transformers 5.24 its forward reads an attribute that no output has: patched it fails in the same words."""
    config = llama4()  # which gives the output that attribute
    monkeypatch.delattr(MoeCausalLMOutputWithPast, "image_outputs")
    plain = Llama4ForConditionalGeneration(config).train()
    patched = copy.deepcopy(plain)
    row = next(row for row in liger.autopatch(patched).rows if row.cls == type(plain).__name__)
    ids = torch.arange(20).view(2, 10)
    words = []
    for model, more in itertools.product((plain, patched), ({}, {"return_dict": True}, {"return_dict": False})):
        with pytest.raises(AttributeError) as error:
            model(input_ids=ids, labels=ids, **more)
        words.append(str(error.value))
    assert set(words) == {"'MoeCausalLMOutputWithPast' object has no attribute 'image_outputs'"}
    assert row.status == "refused" and row.reason == (
        "after its loss upstream's own forward, unpatched and with a stand-in for its backbone, fails with "
        f"AttributeError: {words[0]}"
    )
    monkeypatch.setattr(MoeCausalLMOutputWithPast, "image_outputs", None, raising=False)
    liger.unpatch(patched)
    liger.autopatch(patched)
    assert expect_equal_step(plain, patched, input_ids=ids, labels=ids).logits is None
