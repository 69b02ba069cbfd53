"""``apply_liger_kernel_to_x``: flags, instance scope, instances made later, undo."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import liger
import liger_kernel
from liger.errors import AlreadyPatched, UnpatchConflict
from liger.registry import registry
from liger.testing import count_ops
from liger.testing.models import Pair, expect_equal_step, find, skip_drift
from liger_kernel import _apply, _said
from liger_kernel import transformers as lk
from liger_kernel._types import FLAGS, FUNCTIONS


@pytest.fixture(autouse=True)
def unpatched_afterwards():
    yield
    if left := LlamaForCausalLM.__init__ is not INIT:
        liger_kernel.last_report().revert()
    assert not left  # each test ends what it began


INIT = LlamaForCausalLM.__init__


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


def ops(report):
    return {row.op for row in report.applied}


# -- Flags -------------------------------------------------------------------------------------------------------------
def test_signatures_are_the_peers():
    assert str(inspect.signature(lk.apply_liger_kernel_to_llama)) == (
        "(rope=True, cross_entropy=False, fused_linear_cross_entropy=True, rms_norm=True, swiglu=True, model=None)"
    )
    granite = inspect.signature(lk.apply_liger_kernel_to_granite).parameters
    assert granite["cross_entropy"].default is True and granite["fused_linear_cross_entropy"].default is False
    assert list(inspect.signature(lk.apply_liger_kernel_to_llama4).parameters)[-2:] == ["model", "layer_norm"]
    llava = inspect.signature(lk.apply_liger_kernel_to_llava).parameters
    assert set(llava) == {*FLAGS, "model"} and llava["rope"].kind is inspect.Parameter.KEYWORD_ONLY


def test_all_flags_give_the_same_loss_and_gradients(pair):
    plain, model = pair.plain(), pair.plain()
    report = lk.apply_liger_kernel_to_llama(model=model)
    assert ops(report) == {"rope", "rms_norm", "silu_mul", "linear_cross_entropy"}
    assert liger_kernel.last_report() is report
    out = expect_equal_step(plain, model, **pair.batch())
    assert out.logits is None


def test_arguments_may_be_positional(pair):
    report = lk.apply_liger_kernel_to_llama(False, False, False, True, False, pair.plain())
    assert ops(report) == {"rms_norm"}


@pytest.mark.parametrize("flag", ["rope", "fused_linear_cross_entropy", "rms_norm", "swiglu"])
def test_each_flag_switches_its_ops_off(pair, flag):
    report = lk.apply_liger_kernel_to_llama(model=pair.plain(), **{flag: False})
    left = {row.op for row in report.skipped}
    assert left == set(FLAGS[flag]) & {"rope", "rms_norm", "silu_mul", "linear_cross_entropy"}


def test_reasons_are_in_the_words_of_flags(pair):
    report = lk.apply_liger_kernel_to_llama(model=pair.plain(), swiglu=False)
    assert {row.reason for row in report.skipped} == {"left out by swiglu=False"}


def test_an_unknown_flag_raises_and_names_those_that_exist(pair):
    with pytest.raises(TypeError, match="has no flag swigluu; it has rope, cross_entropy"):
        lk.apply_liger_kernel_to_llama(model=pair.plain(), swigluu=True)
    with pytest.raises(TypeError, match="has no flag geglu"):
        lk.apply_liger_kernel_to_llama(geglu=True)


def test_both_losses_raise(pair):
    with pytest.raises(ValueError, match="both True"):
        lk.apply_liger_kernel_to_llama(model=pair.plain(), cross_entropy=True)


def test_a_flag_that_changes_nothing_is_said_once(pair):
    config = pair.plain().config
    headless = lambda: AutoModel.from_config(config)  # noqa: E731
    with pytest.warns(
        _said.CompatWarning, match="fused_linear_cross_entropy=True changed nothing in LlamaModel: it has"
    ):
        lk.apply_liger_kernel_to_llama(model=headless(), fused_linear_cross_entropy=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lk.apply_liger_kernel_to_llama(model=headless(), fused_linear_cross_entropy=True)
        lk.apply_liger_kernel_to_llama(model=headless())  # nobody asked for the default


# -- The loss from logits ----------------------------------------------------------------------------------------------
LOGITS_LOSS = {"cross_entropy": True, "fused_linear_cross_entropy": False}


def test_cross_entropy_keeps_the_logits_and_gives_the_same_loss_and_gradients(pair):
    plain, model = pair.plain(), pair.plain()
    report = lk.apply_liger_kernel_to_llama(model=model, **LOGITS_LOSS)
    assert ops(report) == {"rope", "rms_norm", "silu_mul", "cross_entropy"}
    for more in ({}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}):
        with count_ops() as calls:
            out = expect_equal_step(plain, model, **pair.batch(), **more)
        assert out.logits is not None and [op for op, _ in calls.elements()].count("cross_entropy") == 1
    shifted = torch.nn.functional.pad(pair.batch()["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    expect_equal_step(plain, model, **pair.batch(), shift_labels=shifted)
    again = lk.apply_liger_kernel_to_llama(model=model, **LOGITS_LOSS)
    assert not again.applied
    report.revert()
    assert type(model) is LlamaForCausalLM and not liger.is_patched(model)
    with count_ops() as calls:
        model(**pair.batch())
    assert not calls


def test_granite_has_it_by_default(device):
    granite = Pair(find("granite"), device)
    plain, model = granite.plain(), granite.plain()
    report = lk.apply_liger_kernel_to_granite(model=model)
    assert {"cross_entropy"} == ops(report) - {"rope", "rms_norm", "silu_mul"}
    expect_equal_step(plain, model, **granite.batch())


def test_cross_entropy_survives_copies_and_unpatch(pair):
    plain, model = pair.plain(), pair.plain()
    lk.apply_liger_kernel_to_llama(model=model, **LOGITS_LOSS)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with count_ops() as calls:
            torch.testing.assert_close(other(**pair.batch()).loss, plain(**pair.batch()).loss)
        assert [op for op, _ in calls.elements()].count("cross_entropy") == 1
    liger.unpatch(model)
    assert type(model) is LlamaForCausalLM


def test_cross_entropy_is_traced_without_a_graph_break(pair):
    plain, model = pair.plain(), pair.plain()
    lk.apply_liger_kernel_to_llama(model=model, **LOGITS_LOSS)
    logits, labels = plain(**pair.batch()).logits.detach(), pair.batch()["labels"]
    traced = torch.compile(
        lambda m, logits: m.loss_function(logits, labels, m.config.vocab_size), backend="eager", fullgraph=True
    )
    for rows in (2, 1):
        expected = plain.loss_function(logits[:rows], labels[:rows], plain.config.vocab_size)
        labels = labels[:rows]
        torch.testing.assert_close(traced(model, logits[:rows]), expected)


def test_cross_entropy_without_a_model_counts_for_what_is_loaded(pair):
    report = lk.apply_liger_kernel_to_llama(**LOGITS_LOSS)
    model = AutoModelForCausalLM.from_config(pair.plain().config).to(pair.device)
    with count_ops() as calls:
        model(**pair.batch())
    assert [op for op, _ in calls.elements()].count("cross_entropy") == 1
    report.revert()


def test_another_loss_is_left_alone_and_said(pair):
    model = pair.plain()
    model.loss_function = lambda logits, labels, vocab_size: logits.sum()
    with pytest.warns(_said.CompatWarning, match="cross_entropy=True changed nothing in LlamaForCausalLM: its loss"):
        lk.apply_liger_kernel_to_llama(model=model, **LOGITS_LOSS)
    patched = pair.plain()
    liger.autopatch(patched)
    _said._said.clear()
    with pytest.warns(_said.CompatWarning, match="the model is patched already; unpatch it first"):
        lk.apply_liger_kernel_to_llama(model=patched, **LOGITS_LOSS)
    replaced = pair.plain()
    lk.apply_liger_kernel_to_llama(model=replaced, **LOGITS_LOSS)
    replaced.loss_function = lambda logits, labels, vocab_size: logits.sum()
    out = replaced(**pair.batch())
    assert torch.equal(out.loss, out.logits.sum())


# -- Scope -------------------------------------------------------------------------------------------------------------
def test_only_this_model_changes_and_the_report_undoes_it(pair):
    other, model = pair.plain(), pair.plain()
    before = dict(vars(modeling_llama)), torch.nn.functional.cross_entropy
    report = lk.apply_liger_kernel_to_llama(model=model)
    assert liger.is_patched(model) and not liger.is_patched(other)
    assert (dict(vars(modeling_llama)), torch.nn.functional.cross_entropy) == before
    report.revert()
    assert not liger.is_patched(model) and type(model) is LlamaForCausalLM


def test_without_a_model_those_made_later_are_patched_until_it_is_undone(pair):
    older = pair.plain()
    report = lk.apply_liger_kernel_to_llama(rope=False)
    assert {row.status for row in report.rows} == {"deferred"}
    model = pair.plain()
    expect_equal_step(older, model, **pair.batch())
    patched = {type(m).__liger_spec__.op for m in model.modules() if hasattr(type(m), "__liger_spec__")}
    assert not liger.is_patched(older) and patched == {"rms_norm", "silu_mul", "linear_cross_entropy"}
    report.revert()
    later = pair.plain()
    later(**pair.batch())
    assert not liger.is_patched(later)


def test_without_a_model_every_class_of_the_type_counts(pair):
    report = lk.apply_liger_kernel_to_llama()
    config = pair.plain().config
    for auto in (AutoModel, AutoModelForSequenceClassification):
        model = auto.from_config(config)
        model(input_ids=torch.tensor([[1, 2, 3]]))
        assert liger.is_patched(model)
    report.revert()


def test_without_a_model_what_is_loaded_is_patched_at_once(pair, tmp_path):
    pair.plain().save_pretrained(tmp_path)
    config, before = pair.plain().config, dict(vars(LlamaForCausalLM))
    report = lk.apply_liger_kernel_to_llama()
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and liger.is_patched(loaded)
    assert liger.is_patched(AutoModelForCausalLM.from_config(config)) and liger.is_patched(
        AutoModel.from_config(config)
    )
    out = get_peft_model(loaded, LoraConfig(target_modules=["q_proj"])).to(pair.device).train()(**pair.batch())
    assert out.logits is None
    torch.testing.assert_close(out.loss, pair.plain()(**pair.batch()).loss)
    assert ops(report) == {"rope", "rms_norm", "silu_mul", "linear_cross_entropy"}
    again = lk.apply_liger_kernel_to_llama()  # changes nothing, and undoes nothing
    assert liger_kernel.last_report() is report
    assert {row.status for row in again.rows} == {"skipped"}
    again.revert()
    assert liger.is_patched(AutoModelForCausalLM.from_pretrained(tmp_path))
    report.revert()
    assert not liger.is_patched(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert dict(vars(LlamaForCausalLM)) == before


def test_a_method_that_someone_replaced_meanwhile_is_not_taken_off(monkeypatch):
    report = lk.apply_liger_kernel_to_llama()
    ours = vars(LlamaForCausalLM)["from_pretrained"]
    LlamaForCausalLM.from_pretrained = classmethod(lambda cls: None)
    with pytest.raises(UnpatchConflict, match="LlamaForCausalLM.from_pretrained: expected Liger's wrapper"):
        report.revert()
    LlamaForCausalLM.from_pretrained = ours
    report.revert()


def test_without_a_model_other_flags_raise_and_change_nothing():
    report = lk.apply_liger_kernel_to_llama()
    with pytest.raises(AlreadyPatched, match="other options"):
        lk.apply_liger_kernel_to_llama(rope=False)
    report.revert()
    liger.autopatch(LlamaForCausalLM)
    with pytest.raises(AlreadyPatched):
        lk.apply_liger_kernel_to_llama(rope=False)
    liger.unpatch(LlamaForCausalLM)
    assert modeling_llama.LlamaModel.__init__.__qualname__ == "LlamaModel.__init__"
    lk.apply_liger_kernel_to_llama(swiglu=False).revert()  # nothing of the failed call is left


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_finds_the_classes_of_its_model_type(name):
    classes = _apply.model_classes(name)
    assert classes and all(issubclass(c, torch.nn.Module) for c in classes)
    report = lk.MODEL_TYPE_TO_APPLY_LIGER_FN[name]()
    assert len(report.rows) == len(classes)
    report.revert()


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() & registry().models.keys()))
def test_each_default_patches_what_it_names_and_changes_no_number(name, device):
    skip_drift(find(name))
    models = Pair(find(name), device)
    plain, model = models.plain(), models.plain()
    report = lk.MODEL_TYPE_TO_APPLY_LIGER_FN[name](model=model)
    defaults = inspect.signature(lk.MODEL_TYPE_TO_APPLY_LIGER_FN[name]).parameters
    on = [flag for flag in FLAGS if flag in defaults and defaults[flag].default]
    assert ops(report) <= {op for flag in on for op in FLAGS[flag]}
    asked = [flag for flag in on if defaults[flag].kind is not inspect.Parameter.KEYWORD_ONLY]
    assert all(ops(report) & set(FLAGS[flag]) for flag in asked), report
    expect_equal_step(plain, model, **models.batch())


def test_a_type_that_transformers_lacks_raises():
    with pytest.raises(ValueError, match="the installed transformers has no model type 'gpt1'"):
        _apply.to_types("gpt1", {"rope": True})


# -- What trainers call ------------------------------------------------------------------------------------------------
def test_a_trainers_flag_of_another_type_is_said_once_and_an_unknown_one_raises(pair):
    with pytest.warns(_said.CompatWarning, match="geglu=True does nothing for model type 'llama'"):
        report = lk.monkey_patch._apply_liger_kernel_to_instance(model=pair.plain(), geglu=True, rope=False)
    assert ops(report) == {"rms_norm", "silu_mul", "linear_cross_entropy"}
    with pytest.raises(TypeError, match="unknown flags nrope; known: rope"):
        lk.monkey_patch._apply_liger_kernel_to_instance(model=pair.plain(), nrope=True)


def test_by_type(pair):
    report = lk.trainer_integration._apply_liger_kernel("llama", swiglu=False)
    model = pair.plain()
    model(**pair.batch())
    assert liger.is_patched(model)
    report.revert()
    with pytest.warns(_said.CompatWarning, match="no model type"):
        assert lk.trainer_integration._apply_liger_kernel("") is None
    with pytest.warns(_said.CompatWarning, match="has no model type 'foobar', so nothing is patched"):
        assert lk.trainer_integration._apply_liger_kernel("foobar", rope=False) is None


def test_the_function_that_somebody_registered_is_called(pair, monkeypatch):
    calls = []

    def mine(rope=True, special=False, model=None):
        calls.append({"rope": rope, "special": special, "model": model})

    table = lk.monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN
    assert table is lk.MODEL_TYPE_TO_APPLY_LIGER_FN
    for model_type in ("llama", "foobar"):
        monkeypatch.setitem(table, model_type, mine)
    model = pair.plain()
    with pytest.warns(_said.CompatWarning, match="swiglu=True does nothing for model type 'llama': it has rope, spec"):
        lk.monkey_patch._apply_liger_kernel_to_instance(model=model, special=True, swiglu=True)
    lk.monkey_patch._apply_liger_kernel("foobar", rope=False)
    assert calls == [
        {"rope": True, "special": True, "model": model},
        {"rope": False, "special": False, "model": None},
    ]
    assert not liger.is_patched(model)
    with pytest.raises(TypeError, match="unknown flags nrope"):
        lk.monkey_patch._apply_liger_kernel("foobar", nrope=True)


def test_every_function_is_in_the_table_and_in_the_module():
    listed = {getattr(lk.monkey_patch, name) for name in dir(lk.monkey_patch) if name.startswith("apply_liger_")}
    assert listed == set(lk.MODEL_TYPE_TO_APPLY_LIGER_FN.values())


def test_a_type_that_no_table_has_is_recognised(device):
    from transformers import AutoModelForCausalLM, StableLmConfig

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(StableLmConfig(**sizes, intermediate_size=64)).to(device)
    report = lk.monkey_patch._apply_liger_kernel_to_instance(model=model, layer_norm=False)
    assert "silu_mul" in ops(report) and "layer_norm" not in ops(report)


def test_the_auto_class_takes_flags_beside_transformers_arguments(pair, tmp_path):
    plain = pair.plain()
    plain.save_pretrained(tmp_path)
    model = lk.AutoLigerKernelForCausalLM.from_pretrained(tmp_path, rope=False, dtype=torch.float32).to(pair.device)
    assert ops(liger_kernel.last_report()) == {"rms_norm", "silu_mul", "linear_cross_entropy"}
    expect_equal_step(plain, model.train(), **pair.batch())
    assert liger.is_patched(lk.AutoLigerKernelForCausalLM.from_config(plain.config))
