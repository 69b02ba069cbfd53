"""Models with adapters of PEFT's, patched before and after `get_peft_model`: losses, gradients and undo."""

import copy
from importlib.metadata import version

import bitsandbytes
import pytest
import torch
from packaging.version import Version
from peft import (
    AdaLoraConfig,
    IA3Config,
    LNTuningConfig,
    LoHaConfig,
    LoraConfig,
    OFTConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers.integrations.peft import MIN_PEFT_VERSION

import liger
from liger import dispatch
from liger.errors import KernelUnavailable
from liger.testing import count_ops
from liger.testing.compiled import count_graphs
from liger.testing.models import (
    Pair,
    deep_copies,
    expect,
    expect_close,
    expect_equal_step,
    expect_unchanged,
    find,
    snapshot,
    step,
)
from liger_hf import rope, rowwise

ORDERS = pytest.mark.parametrize("order", ["before", "after"])
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
HEAD = ["q_proj", "lm_head"]
OPS = 10  # rows of a patched Llama of two layers


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """What another model of the type has shown is not known, and what served an op here is not told to other tests."""
    monkeypatch.setattr(rope, "_reached", set())
    yield
    dispatch.reset()


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


def lora(*targets, **more):
    return LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=list(targets), **more)


def wrap(pair, order, config, prepare=lambda model: model, **more):
    """(unpatched, patched, report) with equal adapters."""
    plain, model = prepare(pair.plain()), prepare(pair.plain())
    report = liger.autopatch(model) if order == "before" else None
    wrapped = []
    for each in (plain, model):
        torch.manual_seed(5)
        wrapped.append(get_peft_model(each, copy.deepcopy(config), **more).train())
    return *wrapped, report or liger.autopatch(wrapped[1])


def expect_undone(plain, model, **batch):
    liger.unpatch(model)
    assert not liger.is_patched(model)
    expect_equal_step(plain, model, 0.0, **batch)


# -- Kinds of adapters -------------------------------------------------------------------------------------------------
FUSED = {
    "lora": lora(*LAYERS),
    "lora all-linear": LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"),
    "dora": lora(*LAYERS, use_dora=True),
    "embedding": lora("q_proj", "embed_tokens"),
    "trainable tokens": lora("q_proj", trainable_token_indices=[5, 6, 7]),
    "a parameter": lora("q_proj", target_parameters=["down_proj.weight"]),
    "a saved MLP": lora("q_proj", modules_to_save=["mlp"]),
    "a saved attention": lora("gate_proj", modules_to_save=["self_attn"]),
    "a saved embedding": lora("q_proj", modules_to_save=["embed_tokens"]),
    "saved norms and head": lora("q_proj", modules_to_save=["norm", "input_layernorm", "lm_head"]),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False),
    "vera": VeraConfig(target_modules=["q_proj"]),
    "oft": OFTConfig(target_modules=["q_proj"], oft_block_size=4, init_weights=False),
    "tuned norms": LNTuningConfig(target_modules=["input_layernorm", "norm"]),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "lora of the head": lora(*HEAD),
    "lora of the head alone": lora("lm_head", use_rslora=True, lora_bias=True),
    "dora of the head": lora(*HEAD, use_dora=True),
    "lora of embedding and head": lora("embed_tokens", "lm_head"),
    "ia3 of the head": IA3Config(target_modules=["lm_head"], feedforward_modules=[], init_ia3_weights=False),
    "loha of the head": LoHaConfig(target_modules=HEAD, init_weights=False),
    "adalora of the head": AdaLoraConfig(
        target_modules=HEAD, total_step=10, tinit=1, tfinal=1, init_lora_weights=False
    ),
}


@ORDERS
@pytest.mark.parametrize("kind", FUSED)
def test_loss_and_gradients_are_those_of_the_unpatched_model(pair, kind, order):
    plain, model, report = wrap(pair, order, FUSED[kind])
    assert not report.skipped and len(report.applied) >= OPS
    out = expect_equal_step(plain, model, **pair.batch())
    assert out.logits is None and liger.supports(model, "fused_loss")
    assert repr(model) == repr(plain) and list(model.state_dict()) == list(plain.state_dict())
    expect_undone(plain, model, **pair.batch())


@pytest.mark.parametrize("kind", FUSED)
def test_undo_leaves_nothing(pair, kind):
    model = get_peft_model(pair.plain(), copy.deepcopy(FUSED[kind])).train()
    step(model, **pair.batch())
    before = snapshot(model)
    liger.autopatch(model)
    step(model, **pair.batch())
    liger.unpatch(model)
    expect_unchanged(before, snapshot(model), "undo")


@ORDERS
@pytest.mark.parametrize("name", ["gemma2", "qwen3_moe", "granite", "phi3"])
def test_other_models_with_an_adapter_on_the_head(device, name, order):
    """With a soft cap and tied embeddings, with experts, with a scale, with packed projections."""
    models = Pair(find(name), device)
    plain, model, report = wrap(models, order, lora("o_proj", "lm_head"))
    assert not report.skipped
    assert expect_equal_step(plain, model, **models.batch()).logits is None
    expect_undone(plain, model, **models.batch())


@ORDERS
def test_mixed_adapters(pair, order):
    plain, model, report = wrap(pair, order, lora(*HEAD), mixed=True)
    assert not report.skipped and expect_equal_step(plain, model, **pair.batch()).logits is None
    expect_undone(plain, model, **pair.batch())


@pytest.mark.skipif(
    Version(version("peft")) < Version(MIN_PEFT_VERSION),
    reason=f"this transformers asks for peft >= {MIN_PEFT_VERSION}",
)
def test_transformers_own_adapters(pair):
    plain, model = pair.both()
    for each in (plain, model):
        torch.manual_seed(5)
        each.add_adapter(lora(*HEAD), adapter_name="one")
        each.train()
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    expect_undone(plain, model, **pair.batch())


@pytest.mark.parametrize("order", ["after"])
def test_a_head_that_rewrites_its_weight_keeps_its_logits_and_says_so(pair, order):
    plain, model, report = wrap(pair, order, lora("q_proj", trainable_token_indices={"lm_head": [5, 6]}))
    (row,) = report.skipped
    assert row.op == "linear_cross_entropy" and "TrainableTokensWrapper, not a plain Linear: real logits" in row.reason
    assert expect_equal_step(plain, model, **pair.batch()).logits is not None
    expect_undone(plain, model, **pair.batch())


# -- A head with adapters: in chunks of rows ---------------------------------------------------------------------------
class Shapes(TorchDispatchMode):
    """The shapes of all results but transposed weights."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and function is not torch.ops.aten.t.default:
            self.seen.add(tuple(out.shape))
        return out

    def rows(self, classes):
        """The most rows of a result that has as many columns."""
        return max(torch.Size(shape[:-1]).numel() for shape in self.seen if shape and shape[-1] == classes)


SMALL = {"linear_cross_entropy": {"workspace_mb": 0.004}}  # three rows of 307 fp32 logits


def test_only_a_chunk_of_logits_is_ever_there(pair):
    rows = []
    for options in (None, SMALL):
        torch.manual_seed(5)
        model = get_peft_model(pair.plain(vocab_size=307), lora(*HEAD)).train()
        if options:
            plain, model = model, get_peft_model(pair.plain(vocab_size=307), lora(*HEAD)).train()
            model.load_state_dict(plain.state_dict())
            liger.autopatch(model, options=options)
            expect_equal_step(plain, model, **pair.batch())
        with Shapes() as shapes:
            model(**pair.batch()).loss.backward()
        rows.append(shapes.rows(307))
    assert rows == [26, 3]


@ORDERS
@pytest.mark.parametrize(
    "options",
    [{"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7)}, {"num_items_in_batch": torch.tensor(7.0)}],
    ids=["number", "tensor", "float tensor"],
)
def test_num_items(pair, order, options):
    plain, model, _ = wrap(pair, order, lora(*HEAD))
    expect_equal_step(plain, model, **pair.batch(), **options)


def test_all_labels_ignored(pair):
    _, model, _ = wrap(pair, "after", lora(*HEAD))
    batch = pair.batch()
    batch["labels"].fill_(-100)
    loss, gradients, _ = step(model, **batch)
    assert loss.isnan() and all(not g.any() for g in gradients.values())
    loss, gradients, _ = step(model, **batch, num_items_in_batch=3)
    assert loss == 0 and all(not g.any() for g in gradients.values())


def test_evaluation_accuracy_and_logits(pair):
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    batch = pair.batch()
    labels = batch["labels"][:, 1:]
    with torch.no_grad():
        for each in (plain.eval(), model.eval()):
            each.eval()
        expected, found = plain(**batch), model(**batch, skip_logits=True, return_token_accuracy=True)
    assert found.logits is None
    expect_close(found.loss, expected.loss, "the loss")
    right = (expected.logits[:, :-1].argmax(-1) == labels)[labels != -100].float().mean()
    expect_close(found.token_accuracy, right, "the accuracy")
    with torch.no_grad():
        expect_close(model(**batch).logits, expected.logits, "logits")
        expect_close(model(**batch, logits="lazy").logits, expected.logits, "logits, lazily")


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(pair, reentrant):
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    for each in (plain, model):
        each.gradient_checkpointing_enable({"use_reentrant": reentrant})
        each.enable_input_require_grads()
    assert expect_equal_step(plain, model, **pair.batch()).logits is None


def test_autocast(pair):
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    liger.unpatch(model)
    liger.autopatch(model, options=SMALL)
    with torch.autocast(pair.device, torch.bfloat16):
        losses = [each(**pair.batch()).loss for each in (plain, model)]
    for loss in losses:
        loss.backward()
    expect_close(losses[1].detach(), losses[0].detach(), "the loss", 1e-3)
    for (name, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None)
        if expected.grad is not None:
            expect_close(found.grad, expected.grad, name, 0.03)


def test_scaled_fp16_does_not_underflow(pair):
    """A loss scaler multiplies the loss: gradients must not be divided to nothing before that."""
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    for each in (plain, model):
        with torch.autocast(pair.device, torch.float16):
            loss = each(**pair.batch(), num_items_in_batch=10**6).loss
        (loss * 2.0**16).backward()
    for (name, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
        if expected.grad is not None:
            assert expected.grad.any()
            expect_close(found.grad, expected.grad, name, 0.01)


def test_fp16_of_ignored_labels(pair):
    _, model, _ = wrap(pair, "after", lora(*HEAD))
    batch = pair.batch()
    batch["labels"].fill_(-100)
    with torch.autocast(pair.device, torch.float16):
        loss = model(**batch).loss
    loss.backward()
    assert loss.isnan()
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_a_second_backward_and_gradients_that_add_up(pair):
    plain, model, _ = wrap(pair, "before", lora(*HEAD))
    for each in (plain, model):
        each.zero_grad()
        loss = each(**pair.batch()).loss
        loss.backward(retain_graph=True)
        (3 * loss).backward()
    for (name, expected), found in zip(plain.named_parameters(), model.parameters(), strict=True):
        if expected.grad is not None:
            expect_close(found.grad, expected.grad, name)


def test_options_and_kernels_chosen_by_hand(pair):
    model = get_peft_model(pair.plain(), lora(*HEAD)).train()
    plain_loss = model(**pair.batch()).loss
    with liger.patched(model, options={"linear_cross_entropy": {"label_smoothing": 0.5}}):
        assert (model(**pair.batch()).loss - plain_loss).abs() > 0.01
    with liger.patched(model, options={"linear_cross_entropy": {"compact": True, "accum_dtype": "float32"}}):
        expect_close(model(**pair.batch()).loss.detach(), plain_loss.detach(), "the loss of kept rows")
    with (
        liger.patched(model, options={"linear_cross_entropy": {"accum_dtype": torch.bfloat16}}),
        pytest.raises(ValueError, match=r"accum_dtype is torch.bfloat16.*summed in torch.float32"),
    ):
        model(**pair.batch())
    with (
        pytest.raises(ValueError, match="workspace_mb is -1, expected None or a positive number"),
        liger.patched(model, options={"linear_cross_entropy": {"workspace_mb": -1}}),
    ):
        pass
    for kernel, served in (("reference", "reference"), ("torch", "reference")):
        with liger.patched(model, prefer={"linear_cross_entropy": kernel}) as report, count_ops() as counts:
            model(**pair.batch())
        assert counts["cross_entropy", served] == 1
        assert "cross_entropy in chunks of rows on " in report.kernels["linear_cross_entropy"]
    with pytest.raises(KernelUnavailable, match=r"'acme' of linear_cross_entropy was asked for.*reference, torch, tri"):
        rowwise._kernel("acme", "linear_cross_entropy")


@pytest.mark.parametrize("config", [lora(*HEAD), lora("q_proj", modules_to_save=["lm_head"])], ids=["lora", "saved"])
def test_verified_first(pair, config):
    """The head inside the wrapper is what is compared, not upstream's with itself."""
    report = liger.autopatch(get_peft_model(pair.plain(), config), verify=True, strict=True)
    (row,) = [row for row in report.applied if row.op == "linear_cross_entropy"]
    assert "verified with" in row.reason and "linear_cross_entropy/" in row.reason


def test_compiled_there_are_no_more_graphs(pair):
    plain, model, _ = wrap(pair, "after", lora("q_proj", "down_proj", modules_to_save=["norm", "lm_head"]))
    counts = []
    for each in (plain, model):
        with count_graphs() as graphs:
            compiled = torch.compile(each, backend="eager", fullgraph=True)
            outs = [step(compiled, **pair.batch(tokens=tokens)) for tokens in (13, 17, 19)]
        counts.append(graphs())
    assert counts[1] <= counts[0] and outs[-1][2].logits is None
    expect_close(outs[-1][0], step(plain, **pair.batch(tokens=19))[0], "the loss")


def test_compiled_it_keeps_its_logits(pair):
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    loss, _, _ = step(plain, **pair.batch())
    found, _, out = step(compiled, **pair.batch())
    expect_close(found, loss, "the loss")
    assert out.logits is not None
    expect_equal_step(plain, model, **pair.batch())


def test_a_hook_on_the_base_of_the_head_sees_logits(pair):
    plain, model, _ = wrap(pair, "after", lora(*HEAD))
    seen = []
    model.base_model.model.lm_head.base_layer.register_forward_hook(lambda m, args, out: seen.append(out.shape))
    assert expect_equal_step(plain, model, **pair.batch()).logits is not None and seen == [(2, 13, 256)]


def test_a_copy_and_an_unpickled_copy(pair):
    plain, model, _ = wrap(pair, "before", lora(*HEAD))
    expect_equal_step(plain, model, **pair.batch())
    for what, each in deep_copies(model).items():
        expect(expect_equal_step(plain, each, **pair.batch()).logits is None, f"{what} is not fused")
        expect_undone(plain, each, **pair.batch())


def test_a_report_takes_off_what_came_to_the_head_later(pair):
    plain, model, report = wrap(pair, "before", lora(*HEAD))
    expect_equal_step(plain, model, **pair.batch())
    report.revert()
    assert not liger.is_patched(model)
    expect_equal_step(plain, model, 0.0, **pair.batch())


# -- Switching, merging, saving ----------------------------------------------------------------------------------------
def both(plain, model, act):
    for each in (plain, model):
        torch.manual_seed(7)
        act(each)


@ORDERS
@pytest.mark.parametrize("targets", [LAYERS, HEAD], ids=["layers", "head"])
def test_adapters_switched_off(pair, order, targets):
    plain, model, _ = wrap(pair, order, lora(*targets))
    batch = pair.batch()
    expect_equal_step(plain, model, **batch)
    on = model(**batch).loss.detach()
    with plain.disable_adapter(), model.disable_adapter(), torch.no_grad():
        off = model(**batch).loss
        expect_close(off, plain(**batch).loss, "the loss without the adapter")
    assert (on - off).abs() > 1e-4
    expect_equal_step(plain, model, **batch)


@ORDERS
@pytest.mark.parametrize("targets", [LAYERS, HEAD], ids=["layers", "head"])
def test_several_adapters(pair, order, targets):
    plain, model, _ = wrap(pair, order, lora(*targets))
    batch = pair.batch()
    both(plain, model, lambda each: each.add_adapter("second", lora("v_proj", "lm_head", modules_to_save=["norm"])))
    losses = []
    for name in ("second", "default"):
        both(plain, model, lambda each, name=name: each.set_adapter(name))
        out = expect_equal_step(plain, model, **batch)
        assert out.logits is None
        losses.append(float(out.loss))
    assert losses[0] != losses[1]
    both(plain, model, lambda each: each.base_model.set_adapter(["default", "second"]))
    expect_equal_step(plain, model, **batch)
    both(plain, model, lambda each: each.set_adapter("default"))
    both(plain, model, lambda each: each.delete_adapter("second"))
    expect_equal_step(plain, model, **batch)
    expect_undone(plain, model, **batch)


@ORDERS
@pytest.mark.parametrize("targets", [LAYERS, HEAD], ids=["layers", "head"])
def test_merged_in_place_and_back(pair, order, targets):
    plain, model, _ = wrap(pair, order, lora(*targets))
    batch = pair.batch()
    before = model(**batch).loss.detach()
    both(plain, model, lambda each: each.merge_adapter())
    with torch.no_grad():
        expect_close(model(**batch).loss, plain(**batch).loss, "the merged loss")
        expect_close(model(**batch).loss, before, "the merged loss")
    both(plain, model, lambda each: each.unmerge_adapter())
    expect_equal_step(plain, model, **batch)


@ORDERS
@pytest.mark.parametrize("take_off", ["merge_and_unload", "unload"])
@pytest.mark.parametrize("targets", [LAYERS, HEAD], ids=["layers", "head"])
def test_taken_off(pair, order, take_off, targets):
    plain, model, _ = wrap(pair, order, lora(*targets))
    plain, model = getattr(plain, take_off)(), getattr(model, take_off)()
    assert liger.is_patched(model)
    for each in (plain, model):
        each.requires_grad_(True)
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    expect_undone(plain, model, **pair.batch())
    assert type(model.lm_head) is torch.nn.Linear


@ORDERS
def test_saved_and_loaded(pair, order, tmp_path):
    plain, model, _ = wrap(pair, order, lora(*HEAD, modules_to_save=["norm"]))
    model.save_pretrained(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain")
    unpatched = PeftModel.from_pretrained(pair.plain(), tmp_path / "ours", is_trainable=True).train()
    base = pair.plain()
    liger.autopatch(base)
    patched = PeftModel.from_pretrained(base, tmp_path / "plain", is_trainable=True).train()
    assert expect_equal_step(plain, patched, **pair.batch()).logits is None
    expect_equal_step(plain, unpatched, 0.0, **pair.batch())


@ORDERS
def test_c12_modules_to_save(pair, order):
    """Gradients land in the trainable copies only, and PEFT's switch keeps working."""
    plain, model, _ = wrap(pair, order, lora("q_proj", modules_to_save=["norm", "lm_head"]))
    for each in (plain, model):
        torch.nn.init.constant_(each.base_model.model.model.norm.modules_to_save["default"].weight, 2.0)
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    batch = pair.batch()
    changes = []
    for each in (plain, model):
        with torch.no_grad():
            enabled = each(batch["input_ids"]).logits
            with each.disable_adapter():
                changes.append((enabled, each(batch["input_ids"]).logits))
    expect_close(changes[1][0], changes[0][0], "logits")
    expect_close(changes[1][1], changes[0][1], "logits without the adapter")
    assert float((changes[0][0] - changes[0][1]).abs().max()) > 0.1
    with plain.disable_adapter(), model.disable_adapter():
        expect_close(model(**batch).loss.detach(), plain(**batch).loss.detach(), "the loss without the adapter")
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained == {n for n, p in plain.named_parameters() if p.grad is not None}
    assert any("norm.modules_to_save" in n for n in trained) and not any("original_module" in n for n in trained)
    expect_undone(plain, model, **batch)


@ORDERS
def test_e8_a_frozen_head_gets_no_gradient_and_no_memory_for_one(pair, order):
    plain, model, _ = wrap(pair, order, lora("q_proj"))
    head = model.get_base_model().lm_head
    with Shapes() as shapes:
        out = model(**pair.batch())
        out.loss.backward()
    assert out.logits is None and head.weight.grad is None and tuple(head.weight.shape) not in shapes.seen
    expect_equal_step(plain, model, **pair.batch())


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@ORDERS
@pytest.mark.parametrize("own", [False, True], ids=["head in the root", "head by itself"])
@pytest.mark.parametrize(
    "config", [lora(*HEAD), lora("q_proj", modules_to_save=["norm", "lm_head"])], ids=["lora", "saved"]
)
def test_e5_fsdp2(pair, group, order, own, config):
    """A unit that is a wrapper of PEFT's gathers what is inside it for the loss too."""
    plain, model, _ = wrap(pair, order, config)
    base, mesh = model.get_base_model(), init_device_mesh(pair.device, (1,))
    for part in (*base.model.layers, *([base.lm_head] if own else []), model):
        fully_shard(part, mesh=mesh)
    loss, wanted, _ = step(plain, **pair.batch())
    found, got, out = step(model, **pair.batch())
    expect_close(found, loss, "the loss")
    assert out.logits is None and got.keys() == wanted.keys()
    for name, gradient in wanted.items():
        expect_close(got[name].full_tensor(), gradient, name)


@ORDERS
def test_ddp(pair, group, order):
    plain, model, _ = wrap(pair, order, lora(*HEAD, modules_to_save=["norm"]))
    loss, wanted, _ = step(plain, **pair.batch())
    found, got, out = step(torch.nn.parallel.DistributedDataParallel(model), **pair.batch())
    expect_close(found, loss, "the loss")
    assert out.logits is None
    for name, gradient in wanted.items():
        expect_close(got[f"module.{name}"], gradient, name)


def test_parameters_that_are_gathered_module_by_module_keep_the_logits(pair):
    """ZeRO-3 leaves nothing of a parameter but around the call of the module that holds it."""
    _, model, _ = wrap(pair, "after", lora(*HEAD))
    assert liger.supports(model, "fused_loss")
    weight = model.get_base_model().lm_head.lora_A["default"].weight
    weight.data = weight.data.new_empty(0)
    assert not liger.supports(model, "fused_loss")


# -- Quantised bases ---------------------------------------------------------------------------------------------------
def bnb4(linear):
    made = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False, compute_dtype=torch.float32)
    made.weight = bitsandbytes.nn.Params4bit(linear.weight.detach().clone(), requires_grad=False, quant_type="nf4")
    return made


def bnb8(linear):
    made = bitsandbytes.nn.Linear8bitLt(linear.in_features, linear.out_features, bias=False, has_fp16_weights=False)
    made.weight = bitsandbytes.nn.Int8Params(linear.weight.detach().clone(), requires_grad=False)
    return made


def torchao8(linear):
    quantize_(linear.requires_grad_(False), Int8WeightOnlyConfig())
    return linear


class Packed(torch.nn.Module):
    """As GPTQ and AWQ have it: no Linear and no weight, but integers, scales and a forward that unpacks."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 7
        self.register_buffer("qweight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scales", scale)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.qweight * self.scales)


QUANTISED = {"bnb4": bnb4, "bnb8": bnb8, "torchao8": torchao8, "packed": Packed}
NAMES = {"bnb4": "Linear4bit", "bnb8": "Linear8bitLt", "torchao8": "Int8Tensor", "packed": "Packed"}


def quantised(kind, skip=()):
    """A function that quantises every Linear of a model but those whose names hold one of ``skip``."""

    def apply(model):
        model.requires_grad_(False)
        for path, module in list(model.named_modules()):
            if isinstance(module, torch.nn.Linear) and not any(name in path for name in skip):
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, QUANTISED[kind](module).to(module.weight.device))
        model.model.embed_tokens.requires_grad_(True)
        return model

    return apply


@ORDERS
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], HEAD], ids=["layers", "head"])
@pytest.mark.parametrize("kind", ["bnb4", "bnb8", "torchao8"])
def test_lora_on_quantised_layers(pair, kind, targets, order):
    plain, model, report = wrap(pair, order, lora(*targets), quantised(kind, skip=("lm_head",)))
    assert not report.skipped
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    expect_undone(plain, model, **pair.batch())


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_quantised_head_is_refused_by_name(pair, kind):
    plain, model = quantised(kind)(pair.plain()), quantised(kind)(pair.plain())
    report = liger.autopatch(model)
    (row,) = report.skipped
    assert (row.op, row.status) == ("linear_cross_entropy", "refused") and NAMES[kind] in row.reason
    assert expect_equal_step(plain, model, **pair.batch()).logits is not None
    expect_undone(plain, model, **pair.batch())


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_layers_are_probed_and_verified(pair, kind):
    model = quantised(kind, skip=("lm_head",))(pair.plain())
    assert {row.op for row in liger.plan(model).applied} == {"rope", "silu_mul", "rms_norm", "linear_cross_entropy"}
    report = liger.autopatch(model, verify=True)
    assert all("verified with" in row.reason for row in report.applied)


@pytest.mark.parametrize("kind", ["bnb4", "bnb8", "torchao8"])
def test_lora_on_a_quantised_head_reads_no_weight(pair, kind):
    plain, model, report = wrap(pair, "after", lora(*HEAD), quantised(kind))
    assert not report.skipped
    assert expect_equal_step(plain, model, **pair.batch()).logits is None
    expect_undone(plain, model, **pair.batch())


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_after_patching_it_computes_its_own_logits(pair, kind):
    plain, model = pair.both()
    plain, model = quantised(kind)(plain), quantised(kind)(model)
    assert expect_equal_step(plain, model, **pair.batch()).logits is not None


def test_weight_norm_on_the_head_is_honoured(pair):
    """Its hook makes the weight before each call, so the effective one is what the loss reads."""
    plain, model = pair.both()
    for each in (plain, model):
        torch.nn.utils.weight_norm(each.lm_head)
    out = expect_equal_step(plain, model, **pair.batch())
    assert out.logits is None and model.lm_head.weight_g.grad.any()
