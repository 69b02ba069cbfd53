"""Patching before construction, and loading with Liger."""

import copy
import logging
import pickle

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)
from transformers.models.llama import modeling_llama

import liger
from liger.errors import AlreadyPatched, PatchRefused, UnpatchConflict
from liger.patch import PENDING
from liger.testing.models import Pair, expect_equal_step, expect_unchanged, find, snapshot, step
from liger_hf import AutoLigerModelForCausalLM


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


@pytest.fixture(autouse=True)
def unmarked():
    before = LlamaForCausalLM.__init__
    yield
    liger.unpatch("llama")
    assert LlamaForCausalLM.__init__ is before


@pytest.mark.parametrize("how", ["model_type", "config", "class"])
def test_each_new_instance_is_patched_at_its_first_forward(pair, how):
    target = {"model_type": "llama", "config": pair.plain().config, "class": LlamaForCausalLM}[how]
    older = pair.plain()
    report = liger.autopatch(target)
    (row,) = report.rows
    assert (row.status, row.cls, row.op) == ("deferred", "LlamaForCausalLM", "__init__")
    model = pair.plain()
    assert type(model).__name__ == "LlamaForCausalLM" and isinstance(model, LlamaForCausalLM)
    assert not liger.supports(model, "fused_loss")
    out = expect_equal_step(older, model, **pair.batch())
    assert out.logits is None and liger.supports(model, "fused_loss") and not liger.is_patched(older)
    assert PENDING not in model.__dict__
    report.revert()
    assert not liger.is_patched(pair.plain())
    liger.unpatch(model)
    assert type(model) is LlamaForCausalLM


def test_plan_marks_nothing(pair):
    before = LlamaForCausalLM.__init__
    assert liger.plan("llama").rows[0].status == "deferred"
    assert LlamaForCausalLM.__init__ is before


def test_nothing_but_the_constructor_of_the_class_changes(pair):
    before = dict(vars(LlamaForCausalLM))
    liger.autopatch("llama")
    changed = {k for k, v in vars(LlamaForCausalLM).items() if before.get(k) is not v}
    assert changed == {"__init__"}
    assert LlamaForCausalLM.__init__.__wrapped__ is before["__init__"]


def test_from_pretrained_and_choices(pair, tmp_path):
    saved = pair.plain()
    saved.save_pretrained(tmp_path)
    liger.autopatch("llama", only="linear_cross_entropy")
    model = AutoModelForCausalLM.from_pretrained(tmp_path).to(pair.device).train()
    assert model.__dict__[PENDING].only == {"linear_cross_entropy"}
    expect_equal_step(saved, model, **pair.batch())
    kinds = {r.op for r in liger.plan(model).rows if "already" in r.reason}
    assert "linear_cross_entropy" in kinds and not type(model.model.norm).__dict__.get("__liger_spec__")


def test_autopatch_of_a_marked_model_patches_at_once_with_its_own_choices(pair):
    liger.autopatch("llama", only="linear_cross_entropy")
    model = pair.plain()
    planned = liger.plan(model)
    assert PENDING in model.__dict__
    assert liger.autopatch(model).rows == planned.rows and PENDING not in model.__dict__
    assert len(planned.applied) == 10


def test_subclasses_are_not_marked(pair):
    class Mine(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.extra = torch.nn.Linear(2, 2)

    liger.autopatch(LlamaForCausalLM)
    assert PENDING not in Mine(pair.plain().config).__dict__
    assert PENDING not in LlamaForSequenceClassification(pair.plain().config).__dict__


def test_marking_twice(pair):
    liger.autopatch("llama", only="rms_norm")
    again = liger.autopatch(LlamaForCausalLM, only="rms_norm")
    assert again.rows[0].reason == "already marked with the same options"
    with pytest.raises(AlreadyPatched, match="other options"):
        liger.autopatch("llama", only="rope")


def test_unmarking_keeps_its_hands_off_a_foreign_constructor():
    liger.autopatch("llama")
    ours = LlamaForCausalLM.__init__
    LlamaForCausalLM.__init__ = foreign = lambda self, config: None
    with pytest.raises(UnpatchConflict, match="nothing was undone"):
        liger.unpatch("llama")
    assert LlamaForCausalLM.__init__ is foreign
    LlamaForCausalLM.__init__ = ours


def test_copies_of_a_marked_model_patch_themselves(pair):
    liger.autopatch("llama")
    model = pair.plain()
    liger.unpatch("llama")
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        expect_equal_step(pair.plain(), copied, **pair.batch())
        assert liger.supports(copied, "fused_loss")


def test_unpatch_of_a_marked_model(pair):
    liger.autopatch("llama")
    model = pair.plain()
    liger.unpatch("llama")
    liger.unpatch(model)
    plain = pair.plain()
    step(plain, **pair.batch()), step(model, **pair.batch())
    expect_unchanged(snapshot(plain, identities=False), snapshot(model, identities=False), "undo of a marked model")


def test_compiling_a_marked_model_is_wrong_order(pair):
    liger.autopatch("llama")
    model = pair.plain()
    with pytest.raises(Exception, match=r"call liger.autopatch\(model\) first"):
        torch.compile(model, backend="eager", fullgraph=True)(**pair.batch())


def test_unknown_targets():
    assert "'gpt2'" in liger.autopatch("gpt2").rows[0].reason
    with pytest.raises(PatchRefused, match="'gpt2'"):
        liger.autopatch("gpt2", strict=True)
    assert "pass the model or its class instead" in liger.autopatch("gpt2").rows[0].reason
    assert "not a model class" in liger.autopatch(torch.nn.Linear).rows[0].reason
    assert "not a model class" in liger.autopatch(modeling_llama.LlamaRMSNorm).rows[0].reason
    with pytest.raises(TypeError, match="expected a model, a config, a model_type or a model class, got int"):
        liger.autopatch(3)


def test_the_class_of_an_undeclared_type():
    with liger.patched(GPT2LMHeadModel) as report:
        assert report.rows[0].status == "deferred"
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64))
        model(input_ids=torch.arange(6)[None])
    assert {row.op for row in liger.plan(model).rows if "already" in row.reason} == {
        "layer_norm",
        "linear_cross_entropy",
    }


def test_auto_model(pair, tmp_path, caplog):
    caplog.set_level(logging.INFO, "liger")
    plain = pair.plain()
    plain.save_pretrained(tmp_path)
    model = AutoLigerModelForCausalLM.from_pretrained(tmp_path, liger={"skip": "rope"}).to(pair.device).train()
    expect_equal_step(plain, model, **pair.batch())
    assert "rope" not in caplog.text and "rms_norm x5" in caplog.text
    made = AutoLigerModelForCausalLM.from_config(plain.config)
    assert liger.supports(made, "fused_loss") and isinstance(made, LlamaForCausalLM)
    made, info = AutoLigerModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert liger.is_patched(made) and not info["missing_keys"]
    with pytest.raises(TypeError, match="liger= takes a mapping"):
        AutoLigerModelForCausalLM.from_config(plain.config, liger=True)
    with pytest.raises(ValueError, match="only='nonsense'"):
        AutoLigerModelForCausalLM.from_config(plain.config, liger={"only": "nonsense"})
