"""``liger.kit``: families, composite models, symbols of any module, refusals, undo, plain data, the recipe's test."""

import copy
import gc
import importlib
import json
import pickle
import re
import subprocess
import sys
import threading
from collections import UserDict, UserList

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.gemma import modeling_gemma
from transformers.models.llama import modeling_llama
from transformers.models.qwen2_vl import modeling_qwen2_vl
from typer.testing import CliRunner

import liger
from liger.cli import build
from liger.errors import AlreadyPatched, ContractViolation, PatchRefused, UnpatchConflict, WrongOrder
from liger.kit import KitResult, LigerKernelKit, LigerPatch
from liger.testing import check_recipe, count_ops
from liger.testing.models import Pair, expect_equal_step, find, step
from liger_hf import fits
from liger_hf.groups import GROUPS, LOSSES
from liger_hf.samples import MADE

LLAMA, GEMMA = modeling_llama.__name__, modeling_gemma.__name__
QWEN2_VL = modeling_qwen2_vl.__name__
VENDORED = """
import torch
from torch import nn
from torch.nn import LayerNorm


class EncoderNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super(EncoderNorm, self).__init__()  # as older code has it
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class OffsetNorm(EncoderNorm):
    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).to(x.dtype)


class SameNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class DerivedNorm(EncoderNorm):
    pass


class RenamedNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))


class EncoderMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(32, 48), nn.Linear(32, 48)
        self.down_proj, self.act_fn = nn.Linear(48, 32), config.act()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class SlowMLP(EncoderMLP):
    pass


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y


class OtherTwoInputs(TwoInputs):
    def forward(self, x, y):
        return x - y


Alias = EncoderNorm


class FixedEps(SameNorm):
    def __init__(self, dim, eps=1e-6):
        super().__init__(dim)


class FlippedNorm(SameNorm):
    def __init__(self, dim, bias=False, eps=1e-6):
        super().__init__(dim, eps)


class OptionalNorm(SameNorm):
    def __init__(self, dim, eps=1e-6, bias=False):
        super().__init__(dim, eps)


class NoBias(SameNorm):
    def __init__(self, dim, eps=1e-6, bias=False):
        if bias:
            raise NotImplementedError("bias")
        super().__init__(dim, eps)


class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight, self.p = nn.Parameter(torch.ones(dim)), 0.5

    def forward(self, x):
        return nn.functional.dropout(x * self.weight, self.p, self.training)


class NoDropout(Scale):
    def forward(self, x):
        return x * self.weight


class SameScale(Scale):
    pass


class Widened(Scale):
    def forward(self, x):
        return super().forward(x).float()


class Flat(Scale):
    def forward(self, x):
        return super().forward(x).flatten()


class Buffered(Scale):
    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("scale", torch.ones(1))


class FrozenScale(Scale):
    def __init__(self, dim):
        super().__init__(dim)
        self.weight.requires_grad_(False)


class Gelu(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.up = nn.Linear(dim, dim)

    def forward(self, x):
        return nn.functional.gelu(self.up(x))


class TanhGelu(Gelu):
    def forward(self, x):
        return nn.functional.gelu(self.up(x), approximate="tanh")


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, ids):
        return nn.functional.embedding(ids, self.weight)


class SameTable(Table):
    def forward(self, ids):
        return self.weight[ids]


class OtherTable(Table):
    def forward(self, ids):
        return self.weight[ids - 1]


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def apply_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    parts = mrope_section * 2
    cos, sin = (
        torch.cat([m[i % 3] for i, m in enumerate(t.split(parts, dim=-1))], dim=-1).unsqueeze(unsqueeze_dim)
        for t in (cos, sin)
    )
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class MultimodalAttention(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.q = nn.Linear(dim, dim)

    def forward(self, hidden_states, position_embeddings):
        q = self.q(hidden_states)[:, None]
        return apply_multimodal_rotary_pos_emb(q, q, *position_embeddings, [4, 6, 6])[0]


class Encoder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.norm, self.proj = EncoderNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(self.norm(x))


def mlp_example(cls):
    class Config:
        act = nn.SiLU
    return cls(Config()), (torch.randn(2, 3, 32),)
"""


@pytest.fixture
def vendored(tmp_path, monkeypatch, request):
    """A module with classes of somebody's own, as a file on the path."""
    name = f"vendored_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(VENDORED)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    del sys.modules[name]


@pytest.fixture(autouse=True, scope="module")
def of_others():
    """Models of tests before these, which dynamo and fixtures keep, are not what a kit may complain about."""
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.Module):
            MADE.add(one)


@pytest.fixture(autouse=True)
def nothing_left():
    """Each test ends what it began: a failed one must not take the others down."""
    classes = LlamaForCausalLM, modeling_llama.LlamaModel, modeling_gemma.GemmaRMSNorm

    def patched():
        return [[vars(cls).get(name) for name in ("__init__", "from_pretrained", "_from_config")] for cls in classes]

    before = patched()
    yield
    for kit in [one for one in gc.get_referrers(LigerKernelKit) if type(one) is LigerKernelKit]:
        kit.revert()
    assert patched() == before


@pytest.fixture
def kit():
    return LigerKernelKit()


@pytest.fixture
def pair():
    """On the CPU, also where there is a GPU: what a kit does does not depend on the device."""
    return Pair(find("llama"), "cpu")


class Composite(torch.nn.Module):
    """A known text model and an encoder of one's own."""

    def __init__(self, encoder, text):
        super().__init__()
        self.encoder, self.text = encoder, text

    def forward(self, input_ids, labels):
        embedded = self.text.get_input_embeddings()(input_ids)
        return self.text(inputs_embeds=embedded + self.encoder(embedded), labels=labels)


def patched_ops(model):
    return {type(m).__liger_spec__.op for m in model.modules() if "__liger_spec__" in type(m).__dict__} - {""}


# -- Importing ---------------------------------------------------------------------------------------------------------
def test_the_module_loads_no_torch():
    code = "import sys, liger.kit; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_it_needs_no_pytest():
    code = f"""
import sys
sys.modules["pytest"] = None
from liger.kit import LigerKernelKit
fit = {{"fit": "rms_norm", "cast": "gemma", "eps": "eps"}}
norm = {{"module": {GEMMA!r}, "attr": "GemmaRMSNorm", "replacement": fit}}
print(*LigerKernelKit().apply("llama", custom_patches={{"rms_norm": norm}}).ops)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "rms_norm rope silu_mul\n", done.stderr


def test_without_liger_hf_it_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "liger_hf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "liger_hf", None)
    with pytest.raises(ImportError, match="pip install liger-hf"):
        importlib.import_module("liger.kit").LigerKernelKit  # noqa: B018
    with pytest.raises(AttributeError, match="LigerKit"):
        importlib.import_module("liger.kit").LigerKit  # noqa: B018


# -- Families ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["model type", "path", "config", "mapping", "class", "family", "path and family"])
def test_a_family_is_found(kit, pair, tmp_path, how):
    older = pair.plain()
    older.save_pretrained(tmp_path)
    config, state = older.config, older.state_dict()
    del older
    arguments = {
        "model type": {"model_name_or_path": "llama"},
        "path": {"model_name_or_path": str(tmp_path)},
        "config": {"model_name_or_path": config},
        "mapping": {"model_name_or_path": wrapped(json.loads(config.to_json_string()))},
        "class": {"model_name_or_path": LlamaForCausalLM},
        "family": {"model_family": "llama"},
        "path and family": {"model_name_or_path": tmp_path, "model_family": "llama"},
    }[how]
    result = kit.apply(**arguments)
    assert isinstance(result, KitResult)
    assert (result.route, result.family) == ("family", "llama")
    assert result.selection == {
        "rms_norm": "applied",
        "rope": "applied",
        "swiglu": "applied",
        "fused_linear_cross_entropy": "left out by excluded_modules=",
    }
    assert f"{LLAMA}.LlamaForCausalLM.__init__" in result.symbols and f"{LLAMA}.LlamaModel.__init__" in result.symbols
    made = {"built": LlamaForCausalLM(config), "loaded": AutoModelForCausalLM.from_pretrained(tmp_path)}
    assert liger.is_patched(made["loaded"])
    assert len([row for row in result.report.applied if row.op == "rms_norm"]) == 5
    for model in made.values():
        model.load_state_dict(state)
        out = model.train()(**pair.batch())
        assert out.logits is not None and patched_ops(model) == {"rms_norm", "rope", "silu_mul"}
    kit.revert()
    plain = LlamaForCausalLM(config).train()
    plain.load_state_dict(state)
    expect_equal_step(plain, made["built"], **pair.batch())
    assert not liger.is_patched(plain)


def test_a_name_of_which_one_op_is_left_out_is_applied():
    kit = LigerKernelKit(excluded_modules=["gated_rms_norm", "linear_cross_entropy"])
    result = kit.apply("falcon_h1")
    assert result.selection["rms_norm"] == "applied" and "gated_rms_norm" not in result.ops
    assert "rms_norm" in result.ops
    kit.revert()


def test_losses_are_patched_where_they_are_not_excluded(pair):
    kit = LigerKernelKit(excluded_modules=[])
    assert kit.apply("llama").applied == ["fused_linear_cross_entropy", "rms_norm", "rope", "swiglu"]
    model = pair.plain()
    assert liger.supports(model, "fused_loss") and model(**pair.batch()).logits is None
    kit.revert()


@pytest.mark.parametrize(
    ("modules", "applied"),
    [
        ("auto", ["rms_norm", "rope", "swiglu"]),
        (["rms_norm"], ["rms_norm"]),
        (("rope", "silu_mul"), ["rope", "swiglu"]),
        ({"rope": False}, ["rms_norm", "swiglu"]),
        ({"rope": False, "swiglu": True}, ["rms_norm", "swiglu"]),
        (UserDict({"swiglu": False, "rms_norm": False}), ["rope"]),
    ],
)
def test_modules(kit, pair, modules, applied):
    result = kit.apply("llama", modules)
    assert result.applied == applied
    model = pair.plain()
    model(**pair.batch())
    assert patched_ops(model) == set(result.ops)


def test_what_was_asked_for_by_name_is_patched_in_the_model_that_is_built_or_raises(kit, pair):
    config = pair.plain().config
    config.hidden_act = "gelu"
    kit.apply("llama", ["swiglu"])
    with pytest.raises(PatchRefused, match=r"strict=True and 2 of [\s\S]*its activation \w+ does not compute silu"):
        LlamaForCausalLM(config)(**pair.batch())


class DerivedLlama(LlamaForCausalLM):
    pass


def test_a_class_that_a_user_derived_is_patched_itself(pair):
    kit, config, state = LigerKernelKit([]), pair.plain().config, pair.plain().state_dict()
    gc.collect()
    result = kit.apply(DerivedLlama)
    assert f"{__name__}.DerivedLlama.__init__" in result.symbols
    model = DerivedLlama(config).train()
    model.load_state_dict(state)
    loss, _, out = step(model, **pair.batch())
    assert out.logits is None and liger.supports(model, "fused_loss")
    kit.revert()
    assert "__init__" not in vars(DerivedLlama)
    torch.testing.assert_close(loss, step(pair.plain(), **pair.batch())[0], rtol=1e-5, atol=0)


MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_first_forward_in_any_mode(pair, mode):
    kit, config = LigerKernelKit([]), pair.plain().config
    gc.collect()
    with MODES[mode]():
        kit.apply("llama")
        assert kit.apply("stablelm").applied == ["layer_norm", "fused_linear_cross_entropy", "rope", "swiglu"]
    model = LlamaForCausalLM(config)
    with MODES[mode]():
        model(input_ids=pair.batch()["input_ids"])
    assert patched_ops(model) == {"rms_norm", "rope", "silu_mul", "linear_cross_entropy"}


def test_random_numbers_are_those_without_a_kit(kit, pair, vendored):
    config = pair.plain().config
    gc.collect()
    torch.manual_seed(3)
    plain = LlamaForCausalLM(config).lm_head.weight.detach().clone()
    gc.collect()
    torch.manual_seed(3)
    norm = LigerPatch(vendored.__name__, "EncoderNorm", fits.rms_norm(cast="llama", eps="eps"))
    kit.apply("llama", custom_patches={"rms_norm": norm})
    vendored.EncoderNorm(8)
    model = LlamaForCausalLM(config)
    before = torch.get_rng_state()
    model(**pair.batch())
    assert torch.equal(model.lm_head.weight, plain) and torch.equal(torch.get_rng_state(), before)


def test_a_type_that_no_package_declares_is_recognised(kit):
    result = kit.apply("stablelm", modules=["layer_norm", "swiglu"])
    assert result.route == "recognised" and result.applied == ["layer_norm", "swiglu"]
    assert any("no installed plugin declares model_type 'stablelm'" in lack for lack in result.lacks)
    assert not any("validate" in command for command in result.commands)


def test_an_encoder_is_a_family_too(kit):
    result = kit.apply(model_family="siglip_vision_model")
    assert "layer_norm" in result.applied
    assert kit.apply(model_family="llama").family == "llama" and len(kit.results) == 2


@pytest.mark.parametrize("model_type", ["gemma", "qwen2_vl", "llava"])
def test_other_families_train_the_same(device, model_type):
    pair = Pair(find(model_type), device)
    inputs = {**pair.seen(torch.arange(3, 27).view(2, 12)), "labels": torch.arange(3, 27).view(2, 12).to(device)}
    loss, gradients, _ = step(pair.plain(), **inputs)
    gc.collect()
    kit = LigerKernelKit(excluded_modules=[])
    kit.apply(model_family=model_type)
    model = pair.plain()
    assert liger.is_patched(model)
    found, got, _ = step(model, **inputs)
    kit.revert()
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=0)
    assert got.keys() == gradients.keys()


# -- Composite models --------------------------------------------------------------------------------------------------
def composite(vendored, config):
    torch.manual_seed(0)
    return Composite(vendored.Encoder(config.hidden_size), LlamaForCausalLM(config)).train()


@pytest.mark.parametrize("calls", ["one", "two"])
def test_a_composite_model(kit, pair, vendored, calls):
    config, batch = pair.plain().config, pair.batch()
    loss, gradients, _ = step(composite(vendored, config), **batch)
    patch = {"rms_norm": LigerPatch(vendored.__name__, "EncoderNorm", fits.rms_norm(cast="llama", eps="eps"))}
    if calls == "one":
        result = kit.apply(model_family="llama", custom_patches=patch)
        assert result.route == "family+custom"
    else:
        kit.apply(model_family="llama")
        result = kit.apply(custom_patches=patch)
        assert (result.route, result.family, result.ops) == ("custom", None, ("rms_norm",))
    assert f"{vendored.__name__}.EncoderNorm.__init__" in result.symbols and not result.unchecked
    model = composite(vendored, config)
    assert isinstance(model.encoder.norm, vendored.EncoderNorm) and liger.is_patched(model.encoder)
    with count_ops() as counts:
        found, got, out = step(model, **batch)
    assert [op for op, _ in counts.elements()].count("rms_norm") == 6 and out.logits is not None
    torch.testing.assert_close(found, loss, rtol=1e-6, atol=0)
    assert got.keys() == gradients.keys()
    kit.revert()
    assert type(vendored.EncoderNorm(8)) is vendored.EncoderNorm
    liger.unpatch(model)
    assert type(model.encoder.norm) is vendored.EncoderNorm and not liger.is_patched(model)


class SeeingConfig(PretrainedConfig):
    model_type = "seeing_for_tests"
    sub_configs = {"text_config": type(AutoConfig.for_model("llama"))}  # noqa: RUF012

    def __init__(self, text_config=None, **kwargs):
        if isinstance(text_config, dict):
            text_config = AutoConfig.for_model(**text_config)
        self.text_config = text_config
        super().__init__(**kwargs)


class Seeing(PreTrainedModel):
    config_class = SeeingConfig
    base_model_prefix = "text"

    def __init__(self, config):
        super().__init__(config)
        self.text = LlamaForCausalLM(config.text_config)
        self.post_init()

    def forward(self, input_ids, labels=None):
        return self.text(input_ids=input_ids, labels=labels)


def test_a_composite_that_is_loaded(kit, pair, tmp_path):
    plain = Seeing(SeeingConfig(text_config=pair.plain().config)).train()
    plain.save_pretrained(tmp_path)
    loss, config = step(plain, **pair.batch())[0], plain.config
    with pytest.raises(ValueError, match=r"seeing_for_tests[\s\S]*model_family='llama'"):
        kit.apply(tmp_path)
    del plain
    gc.collect()
    assert kit.apply(tmp_path, model_family="llama").family == "llama"
    model = Seeing.from_pretrained(tmp_path).train()
    assert torch.equal(step(model, **pair.batch())[0], loss) and patched_ops(model) == {"rms_norm", "rope", "silu_mul"}
    kit.revert()
    model = None
    gc.collect()
    assert kit.apply(config, model_family="llama").family == "llama"


def test_what_waits_can_be_patched_before_it_is_wrapped(kit, pair, vendored):
    config = pair.plain().config
    kit.apply(model_family="llama")
    model = composite(vendored, config)
    assert not patched_ops(model)
    with pytest.raises(Exception, match="compiled unpatched"):
        torch.compile(model, backend="eager", fullgraph=True)(**pair.batch())
    (report,) = kit.finish(model)
    assert {row.op for row in report.applied} == patched_ops(model) == {"rms_norm", "rope", "silu_mul"}
    torch.compile(model, backend="eager")(**pair.batch())
    assert kit.finish(model) == []
    torch.compiler.reset()  # which keeps the model


# -- Symbols -----------------------------------------------------------------------------------------------------------
def patch_of(group, *arguments, **named):
    return {"custom_patches": {group: LigerPatch(*arguments, **named)}}


def test_a_plain_norm_for_one_with_an_offset_is_refused_with_the_numbers(kit, vendored):
    numbers = r"cannot be replaced by [\s\S]*the largest error of the tensor is [\d.]+, allowed are [\d.e-]+"
    plain = fits.rms_norm(cast="llama", eps="eps")
    for where in ((GEMMA, "GemmaRMSNorm"), (vendored.__name__, "OffsetNorm")):
        with pytest.raises(PatchRefused, match=numbers) as refusal:
            kit.apply(**patch_of("rms_norm", *where, plain))
        assert 'what suits it: fits.rms_norm(cast="gemma", eps="eps")' in str(refusal.value)
    for cls in (modeling_llama.LlamaRMSNorm, vendored.EncoderNorm):
        with pytest.raises(PatchRefused, match=numbers):
            kit.apply(**patch_of("rms_norm", GEMMA, "GemmaRMSNorm", cls))
    with pytest.raises(PatchRefused, match=numbers):
        kit.apply(**patch_of("rms_norm", vendored.__name__, "OffsetNorm", vendored.EncoderNorm))
    with pytest.raises(
        PatchRefused, match=r"no float attribute 'variance_epsilon'; verify: .* error of the tensor is \d"
    ):
        kit.apply(**patch_of("rms_norm", GEMMA, "GemmaRMSNorm", fits.rms_norm(cast="llama")))
    assert not kit.results and "__init__" in vars(modeling_gemma.GemmaRMSNorm)
    assert not hasattr(vars(modeling_gemma.GemmaRMSNorm)["__init__"], "__wrapped__")


@pytest.mark.parametrize(
    ("original", "replacement", "message"),
    [
        ("OptionalNorm", "FixedEps", "OptionalNorm is built with .dim, eps, bias., which FixedEps does not take"),
        ("SameNorm", "FixedEps", r"with eps=8e-06 in torch.float32 a result is outside"),
        ("OptionalNorm", "FlippedNorm", "FlippedNorm takes by position eps as bias, bias as eps: keep their order"),
        ("NoBias", "NoBias", "NoBias is its own replacement"),
        ("Scale", "NoDropout", "only the original computes something else in training, as dropout does"),
        ("NoDropout", "Scale", "only the replacement computes something else in training, as dropout does"),
        ("Scale", "Widened", r"in torch.bfloat16 it returns torch.float32 \(3, 2, 32\), expected torch.bfloat16"),
        ("Scale", "Flat", r"it returns torch.float32 \(192,\), expected torch.float32 \(3, 2, 32\)"),
        ("Scale", "Buffered", "its parameters are .*'scale': .*, expected .*, or checkpoints do not load"),
        ("Scale", "FrozenScale", r"the parameters that it trains are \[\], expected \['weight'\]"),
        ("Gelu", "TanhGelu", "the largest error of the tensor is 0.000"),
    ],
)
def test_a_class_that_is_not_quite_the_same_is_refused(kit, vendored, original, replacement, message):
    before = dict(vars(vendored))
    with pytest.raises((PatchRefused, TypeError, ValueError), match=message):
        kit.apply(**patch_of("rms_norm", vendored.__name__, original, f"{vendored.__name__}:{replacement}"))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises((PatchRefused, TypeError, ValueError), match=message):
        kit.apply(**patch_of("rms_norm", vendored.__name__, original, f"{vendored.__name__}:{replacement}"))
    assert dict(vars(vendored)) == before


def test_a_class_may_raise_for_an_option_that_it_does_not_have(kit, vendored):
    kit.apply(**patch_of("rms_norm", vendored.__name__, "OptionalNorm", vendored.NoBias))
    assert vendored.OptionalNorm(4, 1e-3).eps == 1e-3
    with pytest.raises(NotImplementedError, match="bias"):
        vendored.OptionalNorm(4, bias=True)


def test_dropout_on_both_sides_is_the_same(kit, vendored):
    kit.apply(**patch_of("rms_norm", vendored.__name__, "Scale", vendored.SameScale))
    assert type(vendored.Scale(4)) is vendored.SameScale


def test_a_class_that_takes_whole_numbers(kit, vendored):
    example = lambda cls: (cls(), torch.tensor([[1, 3, 7]]))  # noqa: E731
    with pytest.raises(PatchRefused, match="OtherTable: in torch.float32 a result is outside the contract"):
        kit.apply(**patch_of("rms_norm", vendored.__name__, "Table", vendored.OtherTable, example))
    kit.apply(**patch_of("rms_norm", vendored.__name__, "Table", vendored.SameTable, example))
    made = vendored.Table()
    assert type(made) is vendored.SameTable and torch.equal(made(torch.tensor([3])), made.weight[3:4])


class TextRope(modeling_qwen2_vl.Qwen2VLRotaryEmbedding):
    """One stream of positions for three."""

    def forward(self, x, position_ids):
        return super().forward(x, position_ids[:1].expand(3, -1, -1))


def test_text_rope_for_mrope_is_refused_with_the_numbers(kit, vendored):
    with pytest.raises(PatchRefused, match=r"by TextRope: [\s\S]*largest error of the tensor is 0\.\d+, allowed are"):
        kit.apply(**patch_of("rope", QWEN2_VL, "Qwen2VLRotaryEmbedding", TextRope))
    with pytest.raises(PatchRefused, match=r"by LlamaRotaryEmbedding: [\s\S]*\(\d+,\) on cpu, expected"):
        kit.apply(**patch_of("rope", QWEN2_VL, "Qwen2VLRotaryEmbedding", modeling_llama.LlamaRotaryEmbedding))
    text = fits.rope("half", function="apply_multimodal_rotary_pos_emb")
    with pytest.raises(PatchRefused, match=r"three streams of positions, and with one the result differs by up to \d"):
        kit.apply(**patch_of("rope", vendored.__name__, "MultimodalAttention", text))


@pytest.mark.parametrize("replaced", ["fit", "class"])
def test_a_symbol_is_replaced_and_put_back(kit, vendored, replaced):
    before = dict(vars(vendored)), dict(vars(vendored.EncoderNorm))
    original, fit = vendored.EncoderNorm, fits.rms_norm(cast="llama", eps="eps")
    patch = patch_of("rms_norm", vendored.__name__, "EncoderNorm", fit if replaced == "fit" else vendored.SameNorm)
    result = kit.apply(**patch)
    x = torch.randn(3, 16)
    made = vendored.EncoderNorm(16)
    assert isinstance(made, vendored.EncoderNorm)
    assert torch.equal(made(x), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    assert result.symbols == [f"{vendored.__name__}.EncoderNorm" + (".__init__" if replaced == "fit" else "")]
    if replaced == "fit":
        for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert liger.is_patched(copied) and torch.equal(copied(x), made(x))
        assert type(vendored.DerivedNorm(16)) is vendored.DerivedNorm  # not a class derived from it
        with pytest.raises(AlreadyPatched, match="already patched by a kit"):
            LigerKernelKit().apply(**patch)
        liger.unpatch(made)
        assert type(made) is original and "_liger_journal" not in made.__dict__
    result.revert()
    result.revert()
    assert (dict(vars(vendored)), dict(vars(original))) == before


def test_a_class_that_names_itself_cannot_be_replaced_by_one_derived_from_it(kit, vendored):
    with pytest.raises(ValueError, match=r"super\(EncoderNorm, self\), which would then be DerivedNorm"):
        kit.apply(**patch_of("rms_norm", vendored.__name__, "EncoderNorm", vendored.DerivedNorm))


def test_a_symbol_that_someone_replaced_meanwhile_is_not_touched(vendored):
    kit = LigerKernelKit()
    kit.apply(**patch_of("rms_norm", vendored.__name__, "EncoderNorm", vendored.SameNorm))
    vendored.EncoderNorm = theirs = vendored.OffsetNorm
    with pytest.raises(UnpatchConflict, match="EncoderNorm: expected what the kit put there, found"):
        kit.revert()
    assert vendored.EncoderNorm is theirs
    vendored.EncoderNorm = vendored.SameNorm
    kit.revert()


def test_a_class_under_two_names_is_patched_once(kit, vendored):
    name, fit = vendored.__name__, fits.rms_norm(cast="llama", eps="eps")
    before = dict(vars(vendored.EncoderNorm))
    for second in ("EncoderNorm", "Alias"):
        both = [LigerPatch(name, "EncoderNorm", fit), LigerPatch(name, second, fit)]
        with pytest.raises(AlreadyPatched, match=f"{name}.EncoderNorm.__init__ is already patched by a kit"):
            kit.apply(custom_patches={"rms_norm": both})
        assert dict(vars(vendored.EncoderNorm)) == before
    assert kit.apply(**patch_of("rms_norm", name, "Alias", fit)).symbols == [f"{name}.EncoderNorm.__init__"]


def test_threads_that_patch_the_same_symbol(vendored):
    before, start, outcomes = dict(vars(vendored.EncoderNorm)), threading.Barrier(4), []
    kits = [LigerKernelKit() for _ in range(4)]

    def patch(kit):
        start.wait()
        try:
            kit.apply(**patch_of("rms_norm", vendored.__name__, "EncoderNorm", fits.rms_norm(cast="llama", eps="eps")))
            outcomes.append("applied")
        except AlreadyPatched:
            outcomes.append("refused")

    threads = [threading.Thread(target=patch, args=(kit,)) for kit in kits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["applied", "refused", "refused", "refused"]
    for kit in kits:
        kit.revert()
    assert dict(vars(vendored.EncoderNorm)) == before


def test_an_error_in_the_middle_leaves_nothing(kit, vendored, pair):
    before = dict(vars(vendored.EncoderNorm))
    liger.autopatch(LlamaForCausalLM, only="rope")
    good = LigerPatch(vendored.__name__, "EncoderNorm", fits.rms_norm(cast="llama", eps="eps"))
    with pytest.raises(AlreadyPatched, match="LlamaForCausalLM is already marked with other options"):
        kit.apply(model_family="llama", custom_patches={"rms_norm": good})
    liger.unpatch(LlamaForCausalLM)
    assert dict(vars(vendored.EncoderNorm)) == before and not kit.results
    assert modeling_llama.LlamaModel.__init__.__qualname__ == "LlamaModel.__init__"


def test_a_class_that_needs_a_config_is_checked_when_it_is_built(kit, vendored):
    result = kit.apply(**patch_of("swiglu", vendored.__name__, "EncoderMLP", fits.gated_mlp(act="silu")))
    assert result.unchecked == result.symbols
    good, bad = type("Config", (), {"act": torch.nn.SiLU}), type("Config", (), {"act": torch.nn.GELU})
    with torch.device("meta"):  # as from_pretrained does
        assert liger.is_patched(vendored.EncoderMLP(good()))
    with pytest.raises(
        PatchRefused, match="EncoderMLP with the fit gated_mlp.silu., which does not suit this one: its act"
    ):
        vendored.EncoderMLP(bad())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_symbols_of_a_model_that_is_loaded_in_16_bits(kit, pair, tmp_path, dtype):
    pair.plain().save_pretrained(tmp_path)
    gc.collect()
    kit.apply(
        custom_patches={
            "rms_norm": LigerPatch(LLAMA, "LlamaRMSNorm", fits.rms_norm(cast="llama")),
            "swiglu": LigerPatch(LLAMA, "LlamaMLP", fits.gated_mlp(act="silu")),
            "rope": LigerPatch(LLAMA, "LlamaAttention", fits.rope("half")),
        }
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert model.dtype == dtype and patched_ops(model) == {"rms_norm", "silu_mul", "rope"}


def test_an_example_builds_what_a_signature_cannot(kit, vendored):
    where = (vendored.__name__, "EncoderMLP", vendored.SlowMLP)
    with pytest.raises(
        PatchRefused, match="cannot be compared with SlowMLP: it is built with 'config'[^;]*; give .* example="
    ):
        kit.apply(**patch_of("swiglu", *where))
    kit.apply(**patch_of("swiglu", *where, example=f"{vendored.__name__}:mlp_example"))
    assert type(vendored.mlp_example(vendored.EncoderMLP)[0]) is vendored.SlowMLP
    with pytest.raises(PatchRefused, match=r"only hidden states can be made up"):
        kit.apply(**patch_of("swiglu", vendored.__name__, "TwoInputs", vendored.OtherTwoInputs))
    example = lambda cls: (cls(), (torch.ones(2, 3), torch.ones(2, 3)))  # noqa: E731
    with pytest.raises(PatchRefused, match="largest error of the tensor is 2, allowed"):
        kit.apply(**patch_of("swiglu", vendored.__name__, "TwoInputs", vendored.OtherTwoInputs, example=example))


def test_several_symbols_under_one_name(kit, vendored):
    name, fit = vendored.__name__, fits.rms_norm(cast="gemma", eps="eps")
    patches = [LigerPatch(name, "EncoderNorm", f"{name}:SameNorm"), LigerPatch(name, "OffsetNorm", fit)]
    result = kit.apply(custom_patches={"rms_norm": patches})
    assert result.symbols == [f"{name}.EncoderNorm", f"{name}.OffsetNorm.__init__"] and result.ops == ("rms_norm",)
    assert type(vendored.EncoderNorm(8)) is vendored.SameNorm


def test_the_same_family_twice(kit, pair):
    assert kit.apply("llama").symbols
    again = kit.apply("llama")
    assert not again.symbols and again.applied
    again.revert()
    model = pair.plain()
    assert liger.is_patched(model)
    with pytest.raises(AlreadyPatched, match="already marked with other options"):
        kit.apply("llama", ["rope"])


def test_a_mark_of_somebody_else_stays(kit, pair):
    kit.apply("llama")
    liger.unpatch(LlamaForCausalLM)
    theirs = liger.autopatch(LlamaForCausalLM, only="rope")
    kit.revert()
    model = pair.plain()
    model(**pair.batch())
    assert patched_ops(model) == {"rope"}
    theirs.revert()
    assert not liger.is_patched(pair.plain())


def test_a_symbol_of_a_family_composes_with_it(kit, pair):
    kit.apply("llama", {"rope": False})
    kit.apply(**patch_of("rms_norm", LLAMA, "LlamaRMSNorm", fits.rms_norm(cast="llama")))
    model = pair.plain()
    model(**pair.batch())
    assert patched_ops(model) == {"rms_norm", "silu_mul"}


REMOTE = """
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
import torch


class RemoteConfig(PretrainedConfig):
    model_type = "remote_for_tests"
    dim = 32


class RemoteNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class RemoteModel(PreTrainedModel):
    config_class = RemoteConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed, self.norm = nn.Embedding(16, 32), RemoteNorm(32)
        self.post_init()

    def forward(self, input_ids):
        return self.norm(self.embed(input_ids))
"""


def test_remote_code(kit, tmp_path, monkeypatch):
    from transformers import AutoModel

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "cache")
    repo = tmp_path / "remote_kit"
    repo.mkdir()
    (repo / "modeling_remote.py").write_text(REMOTE)
    cls = get_class_from_dynamic_module("modeling_remote.RemoteModel", str(repo))
    made = cls(cls.config_class())
    made.config.auto_map = {"AutoConfig": "modeling_remote.RemoteConfig", "AutoModel": "modeling_remote.RemoteModel"}
    made.save_pretrained(repo)
    del made
    gc.collect()
    module, plain = cls.__module__, {"fit": "rms_norm", "cast": "llama", "eps": "eps"}
    with pytest.raises(PatchRefused, match="largest error"):
        kit.apply(custom_patches={"rms_norm": {"module": module, "attr": "RemoteNorm", "replacement": plain}})
    result = kit.apply(**patch_of("rms_norm", module, "RemoteNorm", {**plain, "cast": "gemma"}))
    assert result.symbols == [f"{module}.RemoteNorm.__init__"]
    model = AutoModel.from_pretrained(repo, trust_remote_code=True)
    assert type(model).__module__ == module and liger.is_patched(model.norm)
    kit.revert()
    plain = AutoModel.from_pretrained(repo, trust_remote_code=True)
    ids = torch.arange(6)[None]
    assert not liger.is_patched(plain) and torch.equal(plain(ids), model(ids))


def test_remote_code_of_a_config_is_not_run_and_not_asked_for(kit, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    auto = {"AutoConfig": "configuration_remote.RemoteConfig"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "remote_for_tests", "auto_map": auto}))
    (tmp_path / "configuration_remote.py").write_text("raise RuntimeError('run')")
    with pytest.raises(ValueError, match="Name its family: model_family="):
        kit.apply(tmp_path)
    assert kit.apply(tmp_path, model_family="llama").commands[0] == "liger plan llama"


# -- Refusals ----------------------------------------------------------------------------------------------------------
def test_a_model_that_exists_is_for_autopatch(kit, pair):
    model = pair.plain()
    with pytest.raises(WrongOrder, match=r"this LlamaForCausalLM is built already[\s\S]*liger.autopatch\(model\)"):
        kit.apply(model)
    with pytest.raises(
        WrongOrder, match=r"LlamaForCausalLM and LlamaModel already built[\s\S]*liger.autopatch\(model\)"
    ):
        kit.apply(model_family="llama")
    liger.autopatch(model)
    kit.apply(model_family="llama")  # a patched one is in nobody's way


def test_an_instance_of_a_symbol_that_exists(kit, vendored):
    norm = vendored.EncoderNorm(8)
    with pytest.raises(WrongOrder, match="EncoderNorm already built"):
        kit.apply(**patch_of("rms_norm", vendored.__name__, "EncoderNorm", fits.rms_norm(cast="llama", eps="eps")))
    assert norm is not None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "nothing to patch: give model_name_or_path"),
        ({"model_family": "gemma", "modules": ["swiglu"]}, PatchRefused, "gemma has no swiglu to patch; it has geglu"),
        ({"model_family": "llama", "modules": {"layer_norm": True}}, PatchRefused, "llama has no layer_norm"),
        ({"model_family": "llama", "modules": ["dyt"]}, PatchRefused, "llama has no dyt to patch"),
        ({"model_family": "llama", "modules": ["swigloo"]}, ValueError, "no module is called 'swigloo'; known: rope"),
        ({"model_family": "llama", "modules": "rope"}, TypeError, r"expected 'auto', a list .*write \['rope'\]"),
        ({"model_family": "llama", "modules": None}, TypeError, "modules is None"),
        ({"model_family": "llama", "modules": {"rope": "false"}}, TypeError, "'false'. are no bools"),
        ({"model_family": "llama", "modules": []}, ValueError, "nothing is left to patch"),
        ({"model_family": "llama", "modules": ["fused_linear_cross_entropy"]}, ValueError, "which excluded_modules="),
        ({"model_family": "llama", "modules": ["linear_cross_entropy"]}, ValueError, "which excluded_modules="),
        (
            {"model_family": "lama"},
            ValueError,
            "model_family is 'lama', which the installed transformers does not know",
        ),
        ({"model_name_or_path": "./nowhere"}, ValueError, r"'./nowhere' is no model directory[\s\S]*model_family="),
        ({"model_name_or_path": 3}, TypeError, "model_name_or_path is 3, expected a model type"),
        ({"model_name_or_path": {"hidden_size": 8}}, TypeError, "model_name_or_path is {'hidden_size': 8}, expected"),
        ({"model_name_or_path": "gemma", "model_family": "llama"}, ValueError, "but the config is of gemma"),
        ({"model_name_or_path": "stablelm", "model_family": "llama"}, ValueError, "but the config is of stablelm"),
        ({"model_family": ""}, ValueError, "model_family is '', which the installed transformers does not know"),
        ({"model_family": ["llama"]}, TypeError, r"model_family is \['llama'\], expected a model type"),
        ({"model_family": "llama", "modules": {"swiglu": True, "silu_mul": False}}, ValueError, "silu_mul on and off"),
        ({"model_family": "llama", "custom_patches": ["rms_norm"]}, TypeError, "custom_patches is .* expected {name:"),
        (
            {"custom_patches": {"rms_norm": []}},
            TypeError,
            r"'rms_norm'\] is \[\], expected a LigerPatch",
        ),
    ],
)
def test_what_cannot_be_meant_raises(kit, arguments, error, message):
    with pytest.raises(error, match=message):
        kit.apply(**arguments)
    assert not kit.results


@pytest.mark.parametrize(
    ("group", "patch", "error", "message"),
    [
        (
            "rms_norm",
            ("no.such.module", "X", torch.nn.Identity),
            ValueError,
            "cannot be imported: No module named 'no'",
        ),
        ("rms_norm", (LLAMA, "LlamaRMSNrom", torch.nn.Identity), ValueError, "no such name; did you mean LlamaRMSNorm"),
        ("rope", (LLAMA, "apply_rotary_pos_emb", torch.nn.Identity), TypeError, "is a function; name the class whose"),
        ("rope", (LLAMA, "ACT2FN", torch.nn.Identity), TypeError, "expected a subclass of torch.nn.Module"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", len), TypeError, "expected a fit or a subclass of torch.nn.Module"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", fits.layer_norm()), ValueError, "is for layer_norm, not for rms_norm"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", {"fit": "rmsnorm"}), ValueError, "names no fit; .* one of rms_norm"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", torch.nn.Identity), PatchRefused, "its parameters are {}, expected"),
        (
            "layer_norm",
            ("torch.nn", "LayerNorm", fits.layer_norm()),
            ValueError,
            "is defined in torch.nn.modules.normal",
        ),
        ("layer_norm", (LLAMA, "LlamaForCausalLM", fits.causal_lm_head()), ValueError, "is for linear_cross_entropy"),
        ("cross_entropy", (LLAMA, "LlamaMLP", torch.nn.Identity), ValueError, "left out by excluded_modules="),
        ("norms", (LLAMA, "LlamaRMSNorm", torch.nn.Identity), ValueError, "no module is called 'norms'"),
        ("rms_norm", ("", "X", torch.nn.Identity), ValueError, "the module cannot be imported: Empty module name"),
        ("rms_norm", (".x", "X", torch.nn.Identity), ValueError, "the module cannot be imported: .* relative import"),
        ("rms_norm", (modeling_llama, "X", torch.nn.Identity), TypeError, "name its module and class by strings"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", "rms_norm"), ValueError, "'rms_norm' cannot be loaded: expected 'package"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", "no.such:X"), ValueError, "'no.such:X' cannot be loaded: No module"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", {"fit": "rms_norm"}), TypeError, r"LlamaRMSNorm: rms_norm\(\) missing 1"),
        ("rms_norm", (LLAMA, "LlamaRMSNorm", torch.nn.Identity, len), ValueError, "example= of a LigerPatch failed"),
    ],
)
def test_a_patch_that_cannot_be_meant_raises(kit, group, patch, error, message):
    with pytest.raises(error, match=message):
        kit.apply(**patch_of(group, *patch))


def test_other_wrong_arguments():
    with pytest.raises(TypeError, match=r"expected a list of names: \['rope'\]"):
        LigerKernelKit("rope")
    for wrong in (None, 3, {"rope": False}):
        with pytest.raises(TypeError, match="excluded_modules is .*, expected a list of names$"):
            LigerKernelKit(wrong)
    with pytest.raises(ValueError, match="no module is called 'ropes'"):
        LigerKernelKit(["ropes"])
    with pytest.raises(TypeError, match="expected a LigerPatch or its fields"):
        LigerKernelKit().apply(custom_patches={"rope": 3})
    with pytest.raises(TypeError, match="LlamaDecoderLayer does not take: "):
        LigerKernelKit().apply(**patch_of("rms_norm", LLAMA, "LlamaRMSNorm", modeling_llama.LlamaDecoderLayer))
    head = LigerPatch(LLAMA, "LlamaForCausalLM", fits.causal_lm_head())
    with pytest.raises(TypeError, match="spans several modules; patch the model"):
        LigerKernelKit([]).apply(custom_patches={"fused_linear_cross_entropy": head})
    with pytest.raises(ValueError, match="custom_patches has rope, which is left out by modules="):
        LigerKernelKit().apply("llama", {"rope": False}, custom_patches={"rope": head})


# -- Plain data --------------------------------------------------------------------------------------------------------
CONFIG = """
excluded_modules: [cross_entropy, fused_linear_cross_entropy]
apply:
  - model_family: llama
    modules: {rope: false}
  - custom_patches:
      rms_norm:
        module: NAME
        attr: EncoderNorm
        replacement: {fit: rms_norm, cast: llama, eps: eps}
"""


def wrapped(value):
    """As OmegaConf gives it: mappings and sequences that are no dicts and lists."""
    if isinstance(value, dict):
        return UserDict({k: wrapped(v) for k, v in value.items()})
    return UserList(map(wrapped, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("form", ["yaml", "json", "omegaconf"])
def test_from_plain_data(vendored, form):
    given = yaml.safe_load(CONFIG.replace("NAME", vendored.__name__))
    if form == "omegaconf":
        given = wrapped(given)
    elif form == "json":
        given = json.loads(json.dumps(given))
    kit = LigerKernelKit.from_config(given)
    assert [r.route for r in kit.results] == ["family", "custom"]
    assert kit.results[0].selection["rope"] == "left out by modules="
    assert liger.is_patched(vendored.EncoderNorm(8))
    kit.revert()
    assert json.loads(json.dumps(kit.apply(**wrapped({"model_family": "llama"})).to_dict()))["family"] == "llama"
    kit.revert()


def test_a_configuration_is_applied_whole_or_not_at_all(vendored):
    given = yaml.safe_load(CONFIG.replace("NAME", vendored.__name__).replace("EncoderNorm", "OffsetNorm"))
    before = vars(LlamaForCausalLM)["__init__"]
    with pytest.raises(PatchRefused, match="OffsetNorm"):
        LigerKernelKit.from_config(given)
    assert vars(LlamaForCausalLM)["__init__"] is before
    with pytest.raises(TypeError, match=r"has excluded_modules and apply, found \['modules'\]"):
        LigerKernelKit.from_config({"modules": "auto"})
    with pytest.raises(TypeError, match="found list"):
        LigerKernelKit.from_config([])
    for wrong in ({}, {"apply": None}, {"apply": []}, {"apply": "llama"}, {"apply": ["llama"]}):
        with pytest.raises(TypeError, match="apply is .*, expected the arguments of one call, or a list of several"):
            LigerKernelKit.from_config(wrong)


# -- The result --------------------------------------------------------------------------------------------------------
def test_the_result_says_how_to_validate_it_and_what_is_lacking(kit, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    result = kit.apply("llama")
    assert result.commands == [
        "liger plan llama",
        "liger validate model llama",
        *(f"liger explain {op}" for op in ("rms_norm", "rope", "silu_mul")),
        "liger doctor",
    ]
    kit.revert()
    for command in (*result.commands[:1], *result.commands[2:-1]):
        assert CliRunner().invoke(build(), command.split()[1:]).exit_code == 0
    assert any(lack.startswith("an accelerator: on a CPU ops run as plain torch") for lack in result.lacks)
    text = str(result)
    assert "family llama" in text and "fused_linear_cross_entropy: left out by excluded_modules=" in text
    assert result.commands[0] in text and result.symbols[0] in text


def test_a_device_without_kernels_is_lacking_them(kit, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("hpu"))
    assert "a kernel of rope for hpu: `liger explain rope` says what each needs" in kit.apply("llama").lacks


def test_names():
    assert set(LOSSES) <= GROUPS.keys()
    ops = [op for group in GROUPS.values() for op in group]
    assert len(ops) == len(set(ops))


# -- The test of a recipe ----------------------------------------------------------------------------------------------
@pytest.fixture
def recipe(device):
    pair = Pair(find("llama"), device)
    config, batch = pair.plain().config, pair.batch()
    return {
        "build": lambda dtype=torch.float32: LlamaForCausalLM(config).to(device, dtype),
        "batches": [batch] * 3,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_recipe_that_is_right(recipe, dtype):
    build = recipe.pop("build")
    report = check_recipe(
        lambda: LigerKernelKit().apply("llama"),
        lambda: build(dtype),
        wiring={"rms_norm": 5, "rope": 2, "silu_mul": 2},
        **recipe,
    )
    assert report.calls == {"rms_norm": 5, "rope": 2, "silu_mul": 2} and len(report.patched) == 3
    assert report.plain[0] > report.plain[-1]


def test_a_recipe_may_be_any_that_can_be_reverted(recipe):
    def mark():
        return liger.autopatch(LlamaForCausalLM)

    report = check_recipe(mark, loss=lambda model, batch: model(**batch).loss * 2, **recipe)
    assert report.modules == {"rms_norm": 5, "rope": 2, "silu_mul": 2, "linear_cross_entropy": 2}


def test_a_recipe_that_is_wrong(recipe, monkeypatch):
    apply = lambda: LigerKernelKit().apply("llama")  # noqa: E731
    with pytest.raises(ContractViolation, match=r"patched are .*'rms_norm': 5.*, expected \{'rms_norm': 4\}"):
        check_recipe(apply, wiring={"rms_norm": 4}, **recipe)
    with pytest.raises(ContractViolation, match="patched no module"):
        check_recipe(lambda: LigerKernelKit().apply("gemma"), **recipe)
    with pytest.raises(ValueError, match="batches is empty"):
        check_recipe(apply, recipe["build"], [])

    def drifting():
        result = apply()
        monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: self.down_proj(self.up_proj(x)))
        return result

    with pytest.raises(ContractViolation, match=r"no module is patched with silu_mul"):
        check_recipe(drifting, **recipe)
    monkeypatch.undo()

    def wrong():
        result = apply()
        monkeypatch.setattr(modeling_llama.LlamaDecoderLayer, "forward", lambda self, x, **kwargs: self.mlp(x))
        return result

    with pytest.raises(ContractViolation, match="rope is patched and was not called|not called in the first step"):
        check_recipe(wrong, **recipe)
    monkeypatch.undo()


def test_a_recipe_whose_losses_differ(recipe):
    def off():
        result = LigerKernelKit().apply("llama")
        recipe["scale"] = 1.001
        return result

    loss = lambda model, batch: model(**batch).loss * recipe.get("scale", 1.0)  # noqa: E731
    with pytest.raises(
        ContractViolation, match=r"the loss of step 1 is [\d.]+ with the recipe and [\d.]+ without: off by"
    ):
        check_recipe(off, recipe["build"], recipe["batches"], loss=loss)


def test_a_recipe_that_leaves_something(recipe):
    kit = LigerKernelKit()

    class Kept:
        ops = ()

        def revert(self):
            pass

    def apply():
        kit.apply("llama")
        return Kept()

    with pytest.raises(ContractViolation, match="after revert.. a new model still calls"):
        check_recipe(apply, **recipe)
    with pytest.raises(ContractViolation, match="patched before the recipe"):
        check_recipe(apply, lambda: _patched_at_once(recipe["build"]()), recipe["batches"])
    kit.revert()


def _patched_at_once(model):
    liger.autopatch(model)
    return model


def test_a_recipe_with_weights_of_its_own_each_time(recipe):
    generator = torch.Generator()

    def build():
        model = recipe["build"]()
        torch.nn.init.normal_(model.lm_head.weight.data, generator=generator)
        return model

    with pytest.raises(ValueError, match=r"build\(\) makes other weights each time, first in lm_head.weight"):
        check_recipe(lambda: LigerKernelKit().apply("llama"), build, recipe["batches"])
    assert re.fullmatch("LlamaForCausalLM", LlamaForCausalLM.__name__)
