"""What to patch, what not, and what is refused."""

import dataclasses
import logging
import threading
from collections import Counter

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama import modeling_llama

import liger
from liger import dispatch
from liger.errors import (
    CarrierLeaked,
    KernelUnavailable,
    PatchRefused,
    UnpatchConflict,
    WrongOrder,
)
from liger.plugins import Plugins
from liger.registry import Registry, registry, use
from liger.swap import forward
from liger.testing import count_ops
from liger.testing.models import Pair, expect_equal_step, expect_unchanged, find, snapshot, step
from liger_hf import rope, standin
from liger_hf.head import LossCall
from liger_kernels_loss import _chunked


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


@pytest.fixture
def gemma2(device):
    return Pair(find("gemma2"), device)


def applied(report):
    return Counter(row.op for row in report.applied)


def test_plan_touches_nothing_and_says_what_autopatch_does(pair):
    model = pair.plain()
    step(model, **pair.batch())
    before = snapshot(model)
    planned = liger.plan(model)
    expect_unchanged(before, snapshot(model), "plan")
    done = liger.autopatch(model)
    assert planned.rows == done.rows
    assert planned.planned and not done.planned
    with pytest.raises(RuntimeError, match="nothing to revert"):
        planned.revert()


def test_only_and_skip(pair):
    assert set(applied(liger.plan(pair.plain(), only="rms_norm"))) == {"rms_norm"}
    assert set(applied(liger.plan(pair.plain(), only={"rms_norm", "rope"}))) == {"rms_norm", "rope"}
    assert "rope" not in applied(liger.plan(pair.plain(), skip="rope"))
    assert applied(liger.plan(pair.plain(), only="model.layers.0.*"))["rms_norm"] == 2
    report = liger.plan(pair.plain(), only="model.layers.*", skip=["model.layers.1.*", "rope"])
    assert applied(report) == {"rms_norm": 2, "silu_mul": 1}
    reasons = {row.path: row.reason for row in report.skipped}
    assert reasons["model.layers.1.mlp"] == "left out by skip="
    assert reasons["model.norm"] == "left out by only="


def test_what_is_left_out_but_patched_already_is_said(pair):
    model = pair.plain()
    liger.autopatch(model, only=["rms_norm", "rope"])
    again = liger.autopatch(model, skip="rope")
    assert {row.reason for row in again.skipped if row.op == "rope"} == {
        "left out by skip=, but an earlier call patched it: liger.unpatch(model) first"
    }
    assert applied(again)["silu_mul"] == 2


@pytest.mark.parametrize("name", ["only", "skip"])
def test_unknown_names_raise_and_list_the_known(pair, name):
    model = pair.plain()
    with pytest.raises(ValueError, match=f"{name}='rms_nrm' is neither an op nor .* ops: .*rms_norm"):
        liger.autopatch(model, **{name: "rms_nrm"})
    assert not liger.is_patched(model)


def test_unknown_option_names_raise(pair):
    with pytest.raises(TypeError, match="'z_los' is not an option of linear_cross_entropy"):
        liger.autopatch(pair.plain(), options={"linear_cross_entropy": {"z_los": 1.0}})
    with pytest.raises(KernelUnavailable, match="op 'no_op' is not installed"):
        liger.autopatch(pair.plain(), options={"no_op": {}})
    with pytest.raises(KernelUnavailable, match="no kernel of any op has this name"):
        liger.autopatch(pair.plain(), prefer="nonsense")
    with pytest.raises(TypeError):
        liger.autopatch(pair.plain(), oly="rms_norm")


def test_options_change_the_result_and_with_wins_over_autopatch(pair):
    model = pair.plain()
    plain = float(step(model, **pair.batch())[0])
    liger.autopatch(model, options={"linear_cross_entropy": {"z_loss": 0.5}})
    penalised = float(step(model, **pair.batch())[0])
    assert penalised > plain + 1
    with liger.options(linear_cross_entropy={"z_loss": 0.0}):
        assert float(step(model, **pair.batch())[0]) == pytest.approx(plain, rel=1e-5)
    assert float(step(model, **pair.batch())[0]) == penalised


@pytest.fixture
def chunks(monkeypatch):
    """Rows of each product with the head."""
    seen = []
    inner = _chunked.head
    monkeypatch.setattr(_chunked, "head", lambda h, *args, **kwargs: seen.append(len(h)) or inner(h, *args, **kwargs))
    return seen


def test_the_workspace_of_the_loss_is_an_option_and_with_wins(pair, chunks):
    model = pair.plain()
    liger.autopatch(model, options={"linear_cross_entropy": {"workspace_mb": 1e-6}})
    step(model, **pair.batch(ignored=1))
    assert len(chunks) > 10 and set(chunks) == {1}
    chunks.clear()
    with liger.options(linear_cross_entropy={"workspace_mb": 64}):
        step(model, **pair.batch(ignored=1))
    assert len(chunks) == 1


def test_labels_on_the_host_leave_ignored_rows_out_of_the_head(pair, chunks):
    plain, patched = pair.both()
    batch = pair.batch(ignored=9)
    batch["labels"] = batch["labels"].cpu()
    expect_equal_step(plain, patched, **batch)
    assert sum(chunks) == int((batch["labels"][:, 1:] != -100).sum()) < batch["labels"].numel() / 2


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["llama", "llava"])
def test_c14_sums_over_parts_of_a_sequence_add_up(device, name, training):
    """With ``shift_labels`` a part knows the label of its last token, which lies in the next one."""
    models = Pair(find(name), device)
    plain, model = (each.train(training) for each in models.both())
    ids = models.batch(tokens=9)["input_ids"]
    shifted = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous()
    whole = plain(ids, labels=ids, num_items_in_batch=1).loss
    for labels in ({"labels": ids}, {"labels": ids, "shift_labels": shifted}):
        assert float(model(ids, **labels, num_items_in_batch=1).loss) == pytest.approx(float(whole), rel=1e-5)
    hidden = model.model(ids).last_hidden_state
    total = 0.0
    for at in (slice(5), slice(5, 9)):
        call = LossCall(ids[:, at], shifted[:, at], 1, -100, logit_scale=1.0, softcap=None, accuracy=False)
        total += float(model.lm_head(hidden[:, at], call)[0])
    assert total == pytest.approx(float(whole), rel=1e-5)


def test_prefer_reaches_the_ops_and_with_wins(pair):
    model = pair.plain()
    report = liger.autopatch(model, prefer={"linear_cross_entropy": "reference"})
    with count_ops() as counts:
        step(model, **pair.batch())
    assert counts["linear_cross_entropy", "reference"] == 1
    assert report.kernels["linear_cross_entropy"].startswith("reference on")
    with liger.prefer({"linear_cross_entropy": "torch"}), count_ops() as counts:
        step(model, **pair.batch())
    assert counts["linear_cross_entropy", "torch"] == 1


def test_report_reads_kernels_live(pair):
    from liger import dispatch

    dispatch.reset()
    model = pair.plain()
    report = liger.autopatch(model)
    assert set(report.kernels.values()) == {"pending"}
    step(model, **pair.batch())
    assert "pending" not in report.kernels.values()
    text = str(report)
    for word in ("rms_norm", "LlamaMLP", "x5", "LlamaForCausalLM", f"on {pair.device}"):
        assert word in text
    data = report.to_dict()
    assert data["rows"][0].keys() == {"path", "cls", "fit", "op", "status", "reason", "owner"}
    assert data["rows"][0]["owner"].startswith("liger-models-llama ")


def test_revert_and_context_manager(pair):
    model = pair.plain()
    step(model, **pair.batch())
    before = snapshot(model)
    liger.autopatch(model).revert()
    expect_unchanged(before, snapshot(model), "revert")
    with liger.patched(model, only="rms_norm") as report:
        assert liger.is_patched(model) and set(applied(report)) == {"rms_norm"}
    expect_unchanged(before, snapshot(model), "patched()")
    with pytest.raises(RuntimeError, match="inside"), liger.patched(model):
        raise RuntimeError("inside")
    expect_unchanged(before, snapshot(model), "patched() with an error inside")


def test_revert_undoes_what_its_report_applied_and_nothing_else(pair):
    model = pair.plain()
    norms = liger.autopatch(model, only="rms_norm")
    ropes = liger.autopatch(model, only="rope")
    again = liger.autopatch(model, only="rms_norm")
    assert not again.applied
    again.revert()
    norms.revert()
    assert {r.op for r in liger.plan(model).rows if "already" in r.reason} == {"rope"}
    norms.revert()  # a second time: nothing
    with liger.patched(model, only="silu_mul"):
        assert {r.op for r in liger.plan(model).rows if "already" in r.reason} == {"rope", "silu_mul"}
    ropes.revert()
    assert not liger.is_patched(model) and "_liger_journal" not in model.__dict__


def test_a_preference_for_all_counts_where_there_is_such_a_kernel(pair):
    model = pair.plain()
    liger.autopatch(model, prefer="torch")
    with count_ops() as counts:
        step(model, **pair.batch())
    assert counts["linear_cross_entropy", "torch"] == 1 and ("rms_norm", "torch") not in counts


def test_supports_and_is_patched(pair):
    model = pair.plain()
    assert not liger.is_patched(model) and not liger.supports(model, "fused_loss")
    liger.autopatch(model, only="rms_norm")
    assert liger.is_patched(model) and not liger.supports(model, "skip_logits")
    liger.autopatch(model)
    assert all(liger.supports(model, f) for f in ("fused_loss", "skip_logits", "shift_labels", "num_items_in_batch"))
    with pytest.raises(ValueError, match="unknown feature 'fuse_loss'; known: fused_loss"):
        liger.supports(model, "fuse_loss")


def test_one_info_line_on_rank_0_and_silence_otherwise(pair, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "liger")
    model = pair.plain()
    liger.plan(model)
    liger.autopatch(model)
    step(model, **pair.batch())
    liger.unpatch(model)
    (record,) = [r for r in caplog.records if r.name == "liger"]
    assert record.levelname == "INFO" and record.getMessage().startswith("LlamaForCausalLM: applied ")
    caplog.clear()
    monkeypatch.setenv("RANK", "1")
    liger.autopatch(model)
    assert not [r for r in caplog.records if r.name == "liger"]


@pytest.fixture
def without_recogniser(monkeypatch):
    monkeypatch.setenv("LIGER_DISABLE_PLUGINS", "hf")
    previous = use(Registry(Plugins()))
    yield
    use(previous)


def test_unknown_model_type_is_returned_untouched(device, without_recogniser):
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64)).to(device)
    before = snapshot(model)
    report = liger.autopatch(model)
    expect_unchanged(before, snapshot(model), "autopatch of an unknown model")
    (row,) = report.rows
    assert row.status == "skipped" and "'gpt2'" in row.reason
    with pytest.raises(PatchRefused, match="'gpt2'"):
        liger.autopatch(model, strict=True)
    liger.unpatch(model)  # a no-op
    plain = liger.autopatch(torch.nn.Linear(2, 2))
    assert "no config.model_type" in plain.rows[0].reason


def test_known_type_without_its_package_names_the_package(pair, monkeypatch, without_recogniser):
    monkeypatch.delitem(registry().models, "llama")
    (row,) = liger.autopatch(pair.plain()).rows
    assert row.reason == "model_type 'llama' needs its package: pip install liger-models-llama"


def test_missing_op_is_skipped_with_the_package_to_install(pair, monkeypatch):
    monkeypatch.delitem(registry().ops, "rope")
    report = liger.plan(pair.plain())
    reasons = {row.reason for row in report.skipped}
    assert reasons == {"op 'rope' is not installed; pip install liger-kernels-rope"}
    with pytest.raises(PatchRefused, match="pip install liger-kernels-rope"):
        liger.autopatch(pair.plain(), strict=True)


def test_module_overridden_by_another_tool_is_skipped_and_named(pair):
    model = pair.plain()
    norm = model.model.norm

    def faster(x):
        return type(norm).forward(norm, x)

    norm.forward = faster
    report = liger.autopatch(model)
    (row,) = report.skipped
    assert row.path == "model.norm" and f"{__name__}.{faster.__qualname__}" in row.reason
    assert norm.forward is faster and applied(report)["rms_norm"] == 4
    expect_equal_step(pair.plain(), model, **pair.batch())
    liger.unpatch(model)
    assert norm.forward is faster


def test_subclass_of_an_upstream_class_is_left_alone(pair):
    class Mine(modeling_llama.LlamaRMSNorm):
        def forward(self, hidden_states):
            return 2 * super().forward(hidden_states)

    model = pair.plain()
    model.model.norm.__class__ = Mine
    assert applied(liger.autopatch(model))["rms_norm"] == 4 and type(model.model.norm) is Mine


def test_weights_that_cannot_be_read_are_refused(pair):
    class Packed(torch.nn.Parameter):
        pass

    model = pair.plain()
    model.model.norm.weight = Packed(model.model.norm.weight.data)
    model.lm_head.weight = Packed(model.lm_head.weight.data)
    reasons = {row.path: row.reason for row in liger.plan(model).skipped}
    assert "Packed, not a plain parameter" in reasons["model.norm"] and "head's weight" in reasons[""]


def test_other_activation_is_refused(device):
    model = Pair(find("llama"), device).plain(hidden_act="relu")
    reasons = {row.reason for row in liger.plan(model).skipped}
    assert reasons == {"its activation ReLU does not compute silu"}


def test_hooks_on_the_activation_are_not_lost(pair):
    model = pair.plain()
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda *a: None)
    (row,) = liger.plan(model).skipped
    assert row.path == "model.layers.0.mlp" and "hooks on its activation" in row.reason


def test_parametrised_module_is_wrong_order(pair):
    model = pair.plain()
    torch.nn.utils.parametrizations.weight_norm(model.lm_head)
    with pytest.raises(WrongOrder, match="lm_head is ParametrizedLinear: patch before register_parametrization"):
        liger.autopatch(model)
    assert not liger.is_patched(model)


def test_a_parametrised_convolution_is_upstreams_own(pair):
    model = pair.plain()
    model.model.positions = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 4, 3))
    assert liger.autopatch(model).applied


@pytest.mark.parametrize("change", ["class", "forward"])
def test_unpatch_conflict_changes_nothing(pair, change):
    model = pair.plain()
    liger.autopatch(model)
    norm = model.model.norm
    if change == "class":
        norm.__class__ = type("Stolen", (type(norm),), {})
    else:
        norm.forward = lambda x: x
    before = snapshot(model)
    with pytest.raises(UnpatchConflict, match="(?s)nothing was undone.*model.norm: expected .* found"):
        liger.unpatch(model)
    expect_unchanged(before, snapshot(model), "a conflict")
    if change == "class":
        norm.__class__ = type(norm).__mro__[1]
    else:
        del norm.forward
    liger.unpatch(model)
    assert not liger.is_patched(model)


def test_class_replaced_altogether_is_a_conflict(pair):
    model = pair.plain()
    liger.autopatch(model)
    model.model.norm.__class__ = torch.nn.Identity
    with pytest.raises(UnpatchConflict, match="found torch.nn.modules.linear.Identity"):
        liger.unpatch(model)


def test_wrapper_without_a_config(pair):
    class RewardModel(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    model = RewardModel(pair.plain())
    report = liger.autopatch(model)
    assert applied(report)["linear_cross_entropy"] == 1 and report.rows[0].path.startswith("inner.")
    liger.unpatch(model)
    assert not liger.is_patched(model)


def test_resized_embeddings_fall_back_to_real_logits(pair):
    plain, patched = pair.both()
    for model in (plain, patched):
        torch.manual_seed(0)
        model.resize_token_embeddings(300, mean_resizing=False)
    out = expect_equal_step(plain, patched, **pair.batch())
    assert out.loss is not None
    liger.unpatch(patched)
    assert not liger.is_patched(patched)


def test_own_loss_function_is_used(pair):
    plain, patched = pair.both()

    def loss(logits, labels, vocab_size, **kwargs):
        return logits.float().square().mean()

    plain.loss_function = patched.loss_function = loss
    out = expect_equal_step(plain, patched, **pair.batch())
    assert out.logits.shape[-1] == 256  # not fused, so the logits are there
    assert patched(**pair.batch(), skip_logits=True).logits is None


def test_model_with_its_own_loss_is_refused_at_once(pair):
    model = pair.plain()
    model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.mean()
    (row,) = liger.plan(model).skipped
    assert row.op == "linear_cross_entropy" and "neither ForCausalLMLoss nor" in row.reason


def test_soft_cap_is_read_at_each_call(gemma2):
    plain, patched = gemma2.both()
    for cap in (1.5, None, 8.0):
        plain.config.final_logit_softcapping = patched.config.final_logit_softcapping = cap
        expect_equal_step(plain, patched, **gemma2.batch())


def test_declared_soft_cap_must_agree_with_upstream(gemma2, monkeypatch):
    head = registry().models["gemma2"].head
    wrong = dataclasses.replace(head, options={"softcap_path": "config.attn_logit_softcapping"})
    monkeypatch.setitem(registry().models, "gemma2", dataclasses.replace(registry().models["gemma2"], head=wrong))
    (row,) = liger.plan(gemma2.plain()).skipped
    assert row.status == "refused" and "soft cap of 5.0" in row.reason


class Forgetful(modeling_llama.LlamaForCausalLM):
    """Calls its loss function or not."""

    forgets = False

    def forward(self, input_ids=None, labels=None, use_cache=None, **kwargs):
        hidden = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        logits = self.lm_head(hidden)
        loss = None if self.forgets else self.loss_function(logits, labels, self.config.vocab_size)
        return modeling_llama.CausalLMOutputWithPast(loss=loss, logits=logits)


def test_ignored_labels_on_the_host_never_reach_the_heads_product(pair, monkeypatch):
    """A masked prompt costs no logits; loss and gradients stay upstream's, and accuracy needs no further product."""
    if pair.device != "cpu":
        pytest.skip("labels lie beside the model, here on a device, where counting them would make the host wait")
    from liger_kernels_loss import _chunked

    seen, inner = [], _chunked.head
    monkeypatch.setattr(_chunked, "head", lambda h, *args, **kwargs: seen.append(len(h)) or inner(h, *args, **kwargs))
    plain, patched = pair.both()
    batch = pair.batch(tokens=40)
    batch["labels"][:, :25] = -100
    expect_equal_step(plain, patched, **batch)
    patched(**batch, return_token_accuracy=True)
    kept = int((batch["labels"][:, 1:] != -100).sum())
    assert seen == [kept, kept]


def test_carrier_never_leaves_the_model(pair, monkeypatch):
    patch = dataclasses.replace(registry().models["llama"], module=__name__)
    monkeypatch.setitem(registry().models, "llama", patch)
    model = Forgetful(pair.plain().config).train()
    assert applied(liger.autopatch(model)) == {"linear_cross_entropy": 1}
    batch = Pair(patch, "cpu").batch()
    assert model(**batch).logits is None
    monkeypatch.setattr(Forgetful, "forgets", True)
    with pytest.raises(CarrierLeaked, match="Forgetful called its head but not self.loss_function"):
        model(**batch)
    assert model(**batch, logits="full").logits.shape[-1] == 256
    monkeypatch.setattr(Forgetful, "forgets", False)
    assert model(**batch).logits is None  # an error leaves no pending call behind


def test_second_thread_is_a_clear_error(pair):
    _, model = pair.both()
    slot = model._liger_slot
    inside, seen = threading.Event(), []

    def enter():
        inside.wait(10)
        try:
            model(**pair.batch())
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    slot.enter((2, 13))
    inside.set()
    thread.join(60)
    slot.leave()
    assert len(seen) == 1 and "second thread" in seen[0]
    model(**pair.batch())


def test_error_inside_the_forward_leaves_no_pending_call(pair):
    plain, patched = pair.both()
    with pytest.raises(RuntimeError, match="indices"):
        patched(input_ids=torch.full((2, 13), 0.5, device=pair.device), labels=pair.batch()["labels"])
    expect_equal_step(plain, patched, **pair.batch())


@forward
def slightly_off(op, module, x, /, *, cast, eps, offset):
    return op(x, module.weight, eps=getattr(module, eps), cast=cast, offset=offset + 0.01)


def test_verify_fires_no_hook_and_draws_no_random_number(pair):
    model = pair.plain(attention_dropout=0.5)
    fired = []
    for name, module in model.named_modules():
        if not name.endswith("act_fn"):  # hooks there are a reason to leave the MLP alone
            module.register_forward_hook(lambda *a: fired.append(a))
    state = torch.get_rng_state()
    rope._reached.clear()
    report = liger.plan(model, verify=True, skip="linear_cross_entropy")
    assert len(report.applied) == 9 and not fired and torch.equal(torch.get_rng_state(), state)


def test_verify_of_an_fp64_model(pair):
    plain, model = pair.plain(torch.float64), pair.plain(torch.float64)
    assert not liger.autopatch(model, verify=True).skipped
    expect_equal_step(plain, model, **pair.batch())


def test_verify_names_kernel_and_device_and_refuses_what_is_off(pair, monkeypatch):
    report = liger.autopatch(pair.plain(), verify=True)
    assert not report.skipped
    assert all(r.reason.startswith("verified with ") and f"on {pair.device}" in r.reason for r in report.rows)
    patch = registry().models["llama"]
    norm = patch.fits["LlamaRMSNorm"]
    wrong = dataclasses.replace(norm, adapter=f"{__name__}:slightly_off", match=None)
    monkeypatch.setitem(
        registry().models, "llama", dataclasses.replace(patch, fits={**patch.fits, "LlamaRMSNorm": wrong})
    )
    report = liger.autopatch(pair.plain(), verify=True)
    refused = [r for r in report.rows if r.status == "refused"]
    assert {r.op for r in refused} == {"rms_norm"} and len(refused) == 5
    assert "outside the contract" in refused[0].reason and "allowed are" in refused[0].reason


def test_verify_without_weights_is_deferred(pair):
    model = pair.plain().to("meta")
    report = liger.plan(model, verify=True)
    assert {r.status for r in report.rows} == {"deferred"} and "no weights yet" in report.rows[0].reason


def test_doctor_reports_a_global_replaced_after_patching(pair, monkeypatch):
    from liger.doctor import diagnose

    liger.autopatch(pair.plain())
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", lambda *a, **k: None)
    assert any("modeling_llama.eager_attention_forward was replaced" in p for p in diagnose().problems)


# -- Other tools, and things done to a model after patching ------------------------------------------------------------
def test_classes_changed_by_another_tool_are_skipped_and_named(pair, monkeypatch):
    def faster(self, hidden_states):
        return hidden_states

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", faster)
    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "forward", Forgetful.forward)
    report = liger.autopatch(pair.plain())
    reasons = {r.cls: r.reason for r in report.skipped}
    assert f"{__name__}.{faster.__qualname__}" in reasons["LlamaRMSNorm"]
    assert f"{__name__}.Forgetful.forward" in reasons["LlamaForCausalLM"]
    assert applied(report) == {"silu_mul": 2, "rope": 2}


def test_class_replaced_in_its_module_is_named(pair, monkeypatch):
    class Norm(torch.nn.Module):
        def __init__(self, size, eps):
            super().__init__()
            self.inner = torch.nn.RMSNorm(size, eps)

        def forward(self, x):
            return self.inner(x)

    monkeypatch.setattr(modeling_llama, "LlamaRMSNorm", Norm)
    rows = {r.cls: r for r in liger.autopatch(pair.plain()).skipped}
    assert rows["LlamaRMSNorm"].status == "skipped" and f"replaced by {__name__}" in rows["LlamaRMSNorm"].reason


@pytest.mark.parametrize("home", ["", "torch.nn.modules.normalization.", "no.such.module."])
def test_fit_for_a_class_that_does_not_exist_is_a_row(pair, monkeypatch, home):
    patch = registry().models["llama"]
    fits = {**patch.fits, f"{home}Typo": patch.fits["LlamaMLP"]}
    monkeypatch.setitem(registry().models, "llama", dataclasses.replace(patch, fits=fits))
    (row,) = liger.plan(pair.plain()).skipped
    where = home.removesuffix(".") or patch.module
    assert row.status == "refused" and row.reason == f"{where} has no class 'Typo'"


def test_hooks_on_the_head_see_logits(pair):
    plain, patched = pair.both()
    for model in (plain, patched):
        model.lm_head.register_forward_hook(lambda module, args, output: 2 * output)
    assert not liger.supports(patched, "fused_loss") and liger.supports(patched, "skip_logits")
    assert expect_equal_step(plain, patched, **pair.batch()).logits.shape[-1] == 256
    late = pair.plain()
    late.lm_head.register_full_backward_hook(lambda *a: None)
    (row,) = liger.autopatch(late).skipped
    assert row.op == "linear_cross_entropy" and "a hook or forward of" in row.reason and __name__ in row.reason


def test_options_that_the_fit_reads_from_the_model_are_refused(pair):
    for op, name in (("rms_norm", "eps"), ("linear_cross_entropy", "reduction"), ("rope", "unsqueeze_dim")):
        with pytest.raises(TypeError, match=f"options\\['{op}'\\]: '{name}' is read from the model by the fit"):
            liger.autopatch(pair.plain(), options={op: {name: 1}})


def test_a_value_that_the_op_takes_in_some_dtype_is_not_refused(pair):
    values = {"accum_dtype": torch.bfloat16}
    with liger.patched(pair.plain().bfloat16(), options={"linear_cross_entropy": values}) as report:
        assert report.applied


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"workspace_mb": "64"}, TypeError, "workspace_mb must be None or a number, got str"),
        ({"label_smoothing": 3.0}, ValueError, "label_smoothing is 3.0, expected a number in"),
    ],
)
def test_a_value_that_the_op_refuses_is_refused_before_anything_is_patched(pair, values, error, message):
    model = pair.plain()
    for act in (liger.autopatch, liger.plan):
        with pytest.raises(error, match=message):
            act(model, options={"linear_cross_entropy": values})
    assert not liger.is_patched(model)


@pytest.mark.parametrize("prefer", ["reference", "triton"])
def test_trying_options_is_no_use_of_a_kernel(pair, prefer, monkeypatch):
    """Neither the report nor an observer hears of it, and it needs no kernel that may be disabled."""
    monkeypatch.setenv("LIGER_DISABLE_KERNELS", "reference,torch")
    dispatch.reset()
    options = {"linear_cross_entropy": {"workspace_mb": 64.0}}
    with liger.prefer(prefer), count_ops() as counts:
        report = liger.autopatch(pair.plain(), prefer=prefer, only="linear_cross_entropy", options=options)
    assert not counts and report.kernels == {"linear_cross_entropy": "pending"}


def test_paths_of_modules_around_and_of_the_head(pair):
    assert "linear_cross_entropy" not in applied(liger.plan(pair.plain(), skip="lm_head"))
    assert applied(liger.plan(pair.plain(), only="lm_head")) == {"linear_cross_entropy": 1}
    assert applied(liger.plan(pair.plain(), only="model.layers.0")) == {"rms_norm": 2, "silu_mul": 1, "rope": 1}
    with pytest.raises(ValueError, match="skip='model.embed_tokens'"):
        liger.plan(pair.plain(), skip="model.embed_tokens")


def test_subclass_of_the_causal_lm_is_patched(pair):
    class Mine(modeling_llama.LlamaForCausalLM):
        pass

    plain = pair.plain()
    model = Mine(plain.config).train()
    model.load_state_dict(plain.state_dict())
    assert not liger.autopatch(model.to(pair.device)).skipped
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    liger.unpatch(model)
    assert type(model) is Mine


def test_wrapper_that_carries_the_config(pair):
    class Wrapper(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.config = base, base.config

    assert not liger.autopatch(Wrapper(pair.plain()), strict=True).skipped


def test_supports_says_what_holds_now(pair):
    _, model = pair.both()
    assert liger.supports(model, "fused_loss")
    model.resize_token_embeddings(300, mean_resizing=False)
    assert not liger.supports(model, "fused_loss") and liger.supports(model, "token_accuracy")


def test_undoing_a_part_and_then_the_whole(pair):
    model = pair.plain()
    step(model, **pair.batch())
    before = snapshot(model)
    liger.autopatch(model)
    liger.unpatch(model.model)
    assert liger.supports(model, "fused_loss")
    liger.unpatch(model)
    expect_unchanged(before, snapshot(model), "undo in two steps")


def test_head_shared_with_a_patched_model_is_refused(pair):
    _, first = pair.both()
    second = pair.plain()
    second.lm_head = first.lm_head
    (row,) = liger.autopatch(second).skipped
    assert "as a part of another model" in row.reason


def test_lazy_logits_are_there_for_every_reader(pair):
    import copy
    import pickle

    plain, patched = pair.both()
    expected = plain(**pair.batch())
    made = [patched(**pair.batch(), logits="lazy") for _ in range(6)]
    assert "logits" in made[0] and torch.allclose(made[0].get("logits"), expected.logits, atol=1e-5)
    found = [made[1].to_tuple()[1], made[2][1], copy.copy(made[3]).logits]
    with torch.no_grad():
        found.append(pickle.loads(pickle.dumps(patched(**pair.batch(), logits="lazy"))).logits)
    found.append(patched(pair.batch()["input_ids"], logits="lazy").logits)
    assert all(torch.allclose(logits, expected.logits, atol=1e-5) for logits in found)
    compiled = torch.compile(patched, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(**pair.batch(), logits="lazy").logits, expected.logits, atol=1e-5)


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, "meta"])
def test_the_callers_defaults_change_no_plan(pair, default, monkeypatch):
    expected, model = liger.plan(pair.plain(), verify=True).rows, pair.plain()
    monkeypatch.setattr(standin, "_compared", {})
    monkeypatch.setattr(rope, "_reached", set())
    rope._computes.cache_clear()
    before = torch.get_default_dtype()
    if isinstance(default, torch.dtype):
        torch.set_default_dtype(default)
    try:
        with torch.device("meta" if default == "meta" else "cpu"):
            assert liger.plan(model, verify=True).rows == expected
            assert isinstance(default, str) or torch.get_default_dtype() == default
            assert torch.empty(1).device.type == ("meta" if default == "meta" else "cpu")
    finally:
        torch.set_default_dtype(before)
