"""Model types that no package declares: each part is recognised and right, or left alone with the reason."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import random
import sys
import types
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

import liger
from liger.declare import Fit, load
from liger.errors import PatchRefused, WrongOrder
from liger.registry import registry
from liger.swap import quiet
from liger.testing import count_ops
from liger.testing.models import expect_equal_step, expect_unchanged, snapshot, step
from liger_hf import fits, transform
from liger_hf.plugin import liger_recognise_module
from liger_hf.recognise import recognise_module
from liger_hf.standin import gradients_differ

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
USUAL = {"linear_cross_entropy": 1, "rms_norm": 5, "rope": 2, "silu_mul": 2}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {  # model type: prefix of classes, config, ops
    "mistral": ("Mistral", {}, USUAL),
    "qwen2": ("Qwen2", {}, USUAL),
    "qwen3": ("Qwen3", {}, {**USUAL, "rms_norm": 9}),
    "phi3": ("Phi3", {}, {"linear_cross_entropy": 1, "rms_norm": 5, "rope": 2, "silu_mul_packed": 2}),
    "olmo2": ("Olmo2", {}, {**USUAL, "rms_norm": 9}),
    "granite": ("Granite", {"logits_scaling": 6.0, "residual_multiplier": 0.3}, USUAL),
    "cohere": ("Cohere", {"logit_scale": 0.25}, {
        "linear_cross_entropy": 1, "cohere_norm": 3, "rope": 2, "silu_mul": 2}),
    "gpt_oss": ("GptOss", EXPERTS, {
        "linear_cross_entropy": 1, "rms_norm": 5, "rope": 2, "silu_mul_clamped_packed": 2}),
    "mixtral": ("Mixtral", {**EXPERTS, "output_router_logits": True}, {
        "linear_cross_entropy": 1, "rms_norm": 5, "rope": 2, "silu_mul_packed": 2}),
}  # fmt: skip


DECLARED = registry().models


@pytest.fixture(autouse=True)
def no_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no model package were installed."""
    monkeypatch.setattr(registry(), "models", {})


def build(model_type: str) -> Any:
    """A small causal LM; norms get weights that show whether they are read."""
    prefix, changes, _ = MODELS[model_type]
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, f"{prefix}Config")(**SMALL | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(22).view(2, 11) * 7 % 91
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("model_type", MODELS)
def test_undeclared_types_are_recognised_and_right(model_type: str) -> None:
    assert model_type not in registry().models
    plain = build(model_type)
    patched = copy.deepcopy(plain)
    step(patched, **batch())  # upstream adds attributes in its first forward
    before = snapshot(patched)
    with count_ops() as counts:
        report = liger.autopatch(patched, strict=True, prefer="reference")
    assert not counts  # what recognises runs no kernel
    assert {row.reason for row in report.rows} == {"recognised"}
    assert all(row.owner.startswith("liger-hf ") for row in report.rows)
    found = {op: sum(row.op == op for row in report.rows) for op in {row.op for row in report.rows}}
    assert found == MODELS[model_type][2]
    expect_equal_step(plain, patched, **batch())
    liger.unpatch(patched)
    expect_unchanged(before, snapshot(patched), "unpatch")


def test_again_and_verified() -> None:
    model = build("qwen3")
    report = liger.autopatch(model, verify=True)
    assert all(row.reason.startswith("recognised; verified with ") for row in report.applied)
    again = liger.autopatch(model)
    assert {row.reason for row in again.rows} == {"already patched with the same options"}
    assert "(recognised" in str(report)


def test_one_layer_of_a_kind_is_enough_for_a_large_model() -> None:
    """70B-shaped, on the meta device. The bound is 2 s; it takes a tenth of that."""
    import time

    transformers = importlib.import_module("transformers")
    config = transformers.Qwen2Config(hidden_size=8192, intermediate_size=29568, num_hidden_layers=80)
    with torch.device("meta"):
        model = transformers.Qwen2ForCausalLM(config)
    start = time.process_time()
    report = liger.plan(model)
    assert time.process_time() - start < 2
    assert len(report.applied) == 80 * 4 + 2 and not report.skipped


# -- A model of nobody's -----------------------------------------------------------------------------------------------
class AcmeConfig(PretrainedConfig):
    model_type = "acme"
    hidden_size, vocab_size = 16, 40


class AcmeNorm(nn.Module):
    """Rounds 1 / rms before it is used: an order of casts that no fit has, seen in bf16 alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(width)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (x * scale.to(x.dtype))


class AcmeMLP(nn.Module):
    """Gated, with a clamp."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(width, width) for _ in range(3))
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=0.4) * self.up_proj(x))


class AcmeModel(PreTrainedModel):
    config_class = AcmeConfig

    def __init__(self, config: AcmeConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, width)
        self.norm, self.mlp, self.last = AcmeNorm(width), AcmeMLP(width), nn.RMSNorm(width, eps=1e-6)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        x = self.embed(input_ids)
        return BaseModelOutput(last_hidden_state=self.last(x + self.mlp(self.norm(x))))


class AcmeForCausalLM(PreTrainedModel):
    config_class, base_model_prefix = AcmeConfig, "model"

    def __init__(self, config: AcmeConfig) -> None:
        super().__init__(config)
        self.model = AcmeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> CausalLMOutput:
        logits = self.lm_head(self.model(input_ids, **kwargs).last_hidden_state) * 0.5
        logits = 5 * torch.tanh(logits / 5)
        logits = logits**3 if getattr(self.config, "cube", 0) else logits
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)


def acme() -> Any:
    torch.manual_seed(0)
    model = AcmeForCausalLM(AcmeConfig())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model.train()


IDS = {name: torch.arange(14).view(2, 7) * 5 % 37 for name in ("input_ids", "labels")}


def test_a_model_of_nobodys_is_left_right() -> None:
    plain, patched = acme(), acme()
    report = liger.autopatch(patched, prefer="reference")
    assert {row.cls: row.op for row in report.applied} == {
        "RMSNorm": "rms_norm",
        "AcmeForCausalLM": "linear_cross_entropy",
    }
    left = {row.cls: row.reason for row in report.skipped}
    assert left.keys() == {"AcmeNorm", "AcmeMLP"}
    assert "does not compute rms_norm with cast='llama'" in left["AcmeNorm"] and "bfloat16" in left["AcmeNorm"]
    assert "gated_mlp[silu]: its forward does not compute silu_mul" in left["AcmeMLP"]
    assert expect_equal_step(plain, patched, **IDS).logits is None
    assert liger.supports(patched, "fused_loss")
    with pytest.raises(PatchRefused, match="AcmeMLP"):
        liger.autopatch(acme(), strict=True)


@pytest.mark.parametrize(
    "norm, reason",
    [
        (nn.RMSNorm(8), "rms_norm: it has no float attribute 'eps', it is None"),
        (nn.BatchNorm1d(8), "no fit is for a module with forward(input) and the parts weight, bias"),
    ],
)
def test_what_a_norm_lacks_is_the_reason(norm: nn.Module, reason: str) -> None:
    found = recognise_module(norm)
    assert isinstance(found, str) and found.endswith(reason)


def test_a_tensor_as_epsilon_is_left_right() -> None:
    class TensorNorm(nn.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

    plain = acme()
    plain.model.last = TensorNorm(16)
    plain.model.last.eps = torch.tensor(0.01)
    patched = copy.deepcopy(plain)
    row = next(row for row in liger.autopatch(patched, prefer="reference").rows if row.cls == "TensorNorm")
    assert row.status == "refused" and "it has no float attribute 'eps', it is tensor(0.0100)" in row.reason
    expect_equal_step(plain, patched, **IDS)


class NestedHead(nn.Module):
    """Scales, then computes logits."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.decoder = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder(0.5 * hidden)


class AcmeLMHeadModel(AcmeForCausalLM):
    def __init__(self, config: AcmeConfig) -> None:
        super().__init__(config)
        self.cls = NestedHead(self._modules.pop("lm_head"))

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.decoder

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> CausalLMOutput:
        logits = self.cls(self.model(input_ids, **kwargs).last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)


def test_a_head_inside_another_module_and_what_is_done_before_it() -> None:
    torch.manual_seed(0)
    plain = AcmeLMHeadModel(AcmeConfig()).train()
    patched = copy.deepcopy(plain)
    assert "linear_cross_entropy" in {row.op for row in liger.autopatch(patched, verify=True).applied}
    expect_equal_step(plain, patched, **IDS)
    lazy = patched(**IDS, logits="lazy")
    assert torch.allclose(lazy.logits, plain(**IDS).logits, atol=1e-6)


def test_logits_that_are_used_after_the_loss() -> None:
    class Model(AcmeForCausalLM):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            out = super().forward(input_ids, labels)
            return CausalLMOutput(loss=out.loss * out.logits.amax(), logits=out.logits)

    row = next(row for row in liger.plan(Model(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and row.reason.startswith("its forward uses the logits for more than its loss: ")


@pytest.mark.parametrize("of", [torch.sum, lambda x: x.logsumexp(-1).square().mean()])
def test_a_term_of_the_loss_that_needs_no_logits_to_be_computed(of: Any) -> None:
    """Of logits of no width it has a value, which is another one."""

    class Model(AcmeForCausalLM):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            out = super().forward(input_ids, labels)
            return CausalLMOutput(loss=out.loss + of(out.logits), logits=out.logits)

    row = next(row for row in liger.plan(Model(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and row.reason.startswith("its forward uses the logits for more than its loss: ")


def test_a_parameter_between_head_and_loss() -> None:
    class Model(AcmeForCausalLM):
        def __init__(self, config: AcmeConfig) -> None:
            super().__init__(config)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            logits = self.lm_head(self.model(input_ids).last_hidden_state) * self.scale
            return CausalLMOutput(loss=self.loss_function(logits, labels, self.config.vocab_size), logits=logits)

    row = next(row for row in liger.plan(Model(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and "between head and loss, its forward uses a parameter" in row.reason


def double_the_loss(model: Any) -> None:
    upstream = model.loss_function
    model.loss_function = functools.wraps(upstream)(lambda *args, **kwargs: 2 * upstream(*args, **kwargs))


def double_the_logits(model: Any) -> None:
    model.lm_head.forward = lambda x: nn.functional.linear(2 * x, model.lm_head.weight)


@pytest.mark.parametrize(
    "change, reason",
    [
        (double_the_loss, "its loss function is a wrapper of ForCausalLMLoss, neither ForCausalLMLoss"),
        (double_the_logits, f"a hook or forward of {__name__}.double_the_logits"),
    ],
)
def test_a_loss_or_a_head_that_was_replaced_on_the_model(change: Any, reason: str) -> None:
    """Before patching it is refused, afterwards upstream's path runs."""
    before, after, plain = acme(), acme(), acme()
    change(before)
    row = next(row for row in liger.plan(before).rows if row.cls == "AcmeForCausalLM")
    assert row.status == "refused" and reason in row.reason
    liger.autopatch(after, prefer="reference")
    change(after), change(plain)
    expect_equal_step(plain, after, **IDS)
    assert not liger.supports(after, "fused_loss")


def test_a_gradient_cut_between_head_and_loss() -> None:
    class Model(AcmeForCausalLM):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            logits = self.lm_head(self.model(input_ids).last_hidden_state)
            logits = logits.detach() + 0 * logits
            return CausalLMOutput(loss=self.loss_function(logits, labels, self.config.vocab_size), logits=logits)

    row = next(row for row in liger.plan(Model(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and "between head and loss, a gradient of its forward" in row.reason


@pytest.mark.parametrize("part", ["norm", "mlp"])
def test_parts_work_by_themselves(part: str) -> None:
    """From the wrapper, the model without its head and one part of it alone."""
    model = acme()
    assert {row.cls for row in liger.plan(model.model).applied} == {"RMSNorm"}
    (row,) = liger.plan(getattr(model.model, part)).rows
    assert row.status == "skipped" and "no config.model_type" in row.reason  # no model of transformers


def test_an_error_of_a_probe_is_a_reason() -> None:
    class BrokenNorm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("planted")

    model = acme()
    model.model.norm = BrokenNorm()
    model.model.norm.eps = 1e-6
    reason = next(row.reason for row in liger.plan(model).rows if row.cls == "BrokenNorm")
    assert "a probe of its forward failed with ZeroDivisionError: planted" in reason
    assert recognise_module(nn.ModuleList()) is None


def test_a_gradient_that_upstream_cuts_is_seen() -> None:
    class CutNorm(nn.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.detach() + 0 * x)

    assert isinstance(recognise_module(nn.RMSNorm(8, eps=1e-6)), Fit)
    assert "a gradient of its forward" in str(recognise_module(CutNorm(8, eps=1e-6)))
    x = torch.randn(3, 4)
    assert gradients_differ(torch.sin, torch.sin, [x]) is None
    assert "outside the contract" in str(gradients_differ(torch.cos, torch.sin, [x]))


# -- Models in models --------------------------------------------------------------------------------------------------
class Container(nn.Module):
    """A vision-language model of an unknown type around a declared one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.config, self.language_model = SimpleNamespace(model_type="acme_vision"), inner
        self.vision_norm = nn.LayerNorm(8)


def llama() -> Any:
    transformers = importlib.import_module("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def test_a_declaration_wins_over_recognition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry(), "models", DECLARED)
    report = liger.plan(Container(llama()))
    by_class = {row.cls: row for row in report.rows}
    assert by_class["LayerNorm"].reason == "recognised" and by_class["LayerNorm"].owner.startswith("liger-hf ")
    for name in ("LlamaRMSNorm", "LlamaMLP", "LlamaAttention"):
        assert by_class[name].status == "applied" and by_class[name].owner.startswith("liger-models-llama ")
        assert by_class[name].reason == ""
    head = by_class["LlamaForCausalLM"]
    assert head.status == "skipped" and "Container around it may need its logits" in head.reason


@pytest.mark.parametrize("act, applied", [("silu", True), ("gelu", True), ("relu", False)])
def test_a_declaration_that_leaves_a_class_to_recognition(act: str, applied: bool) -> None:
    """Pixtral's MLP: what no fit suits is refused, for the declaration names the class."""
    config = importlib.import_module("liger_models_mistral.mini").mistral3().vision_config
    config.hidden_act = act
    tower = importlib.import_module("transformers").PixtralVisionModel(config)
    rows = [row for row in liger.plan(tower).rows if row.cls == "PixtralMLP"]
    assert len(rows) == 2 and {row.status for row in rows} == {"applied" if applied else "refused"}
    assert {row.op for row in rows} == ({f"{act}_mul"} if applied else {""})
    assert all(row.reason == "recognised" if applied else "its activation ReLU" in row.reason for row in rows)


@pytest.mark.parametrize("patch", ["wrapper", "text", "tower"])
def test_vision_language_models(patch: str) -> None:
    transformers = importlib.import_module("transformers")
    text = transformers.LlamaConfig(**SMALL)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4
    )
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=90)

    def make() -> Any:
        torch.manual_seed(0)
        return transformers.LlavaForConditionalGeneration(config).train()

    plain, patched = make(), make()
    target = {"wrapper": patched, "text": patched.model.language_model, "tower": patched.model.vision_tower}[patch]
    report = liger.autopatch(target, prefer="reference")
    ops = {row.op for row in report.applied}
    expected = {"text": {"rms_norm", "rope", "silu_mul"}, "tower": {"layer_norm"}}
    assert ops == expected.get(patch, {"rms_norm", "rope", "silu_mul", "layer_norm", "linear_cross_entropy"})
    assert {row.cls for row in report.skipped} == (set() if patch == "text" else {"CLIPMLP"})
    ids = torch.arange(3, 25).view(2, 11)
    ids[:, 1:5] = 90  # four patches of the image
    pixels = torch.randn(2, 3, 8, 8)
    expect_equal_step(plain, patched, input_ids=ids, labels=ids, pixel_values=pixels)


def apply_multimodal_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mrope_section: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return q * cos, k * sin


def test_the_rope_of_text_is_never_given_to_sections() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, position_embeddings: Any) -> torch.Tensor:
            return apply_multimodal_rotary_pos_emb(x, x, *position_embeddings, [1, 1])[0]

    found = recognise_module(Attention())
    assert isinstance(found, str) and "takes (q, k, cos, sin, mrope_section), expected" in found


# -- The hook ----------------------------------------------------------------------------------------------------------
def test_hook_liger_recognise_module() -> None:
    found = liger_recognise_module(nn.LayerNorm(8))
    assert isinstance(found, Fit) and (found.op, found.options) == ("layer_norm", {"eps": "eps", "fp32": False})
    assert liger_recognise_module(nn.Linear(2, 2)) is None
    assert "no fit is for a module with forward(input) and the parts none" in str(liger_recognise_module(PlainMLP()))


class PlainMLP(nn.Sequential):
    """A name that makes one expect a fit, and nothing to fit."""


def test_two_plugins_that_recognise_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = registry().plugins
    call = plugins.call

    def twice(hook: str, **kwargs: Any) -> Any:
        answers = call(hook, **kwargs)
        return answers * 2 if hook == "liger_recognise_module" else answers

    monkeypatch.setattr(plugins, "call", twice)
    reasons = {row.reason for row in liger.plan(build("mistral")).rows}
    assert any(
        "it is recognised by liger-hf" in reason and "disable one of the plugins" in reason for reason in reasons
    )


def test_known_words_of_the_generator_are_the_same_fits() -> None:
    assert recognise_module(build("phi3").model.layers[0].mlp) == fits.packed_mlp(act="silu")
    assert step(build("phi3"), **batch())[0] > 0


class DropoutMLP(AcmeMLP):
    """Gated, with a dropout that no child shows."""

    rate = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(nn.functional.dropout(hidden, self.config.rate, self.training))


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_seen_also_in_evaluation(rate: float, training: bool) -> None:
    module = DropoutMLP(8).train(training)
    module.config = SimpleNamespace(rate=rate)
    state = torch.random.get_rng_state()
    found = recognise_module(module)
    assert torch.equal(state, torch.random.get_rng_state())
    assert found == fits.gated_mlp(act="silu") if rate == 0 else "differs in training" in str(found)


def test_a_norm_over_other_dimensions_is_refused() -> None:
    """Over positions: without its number of channels it would be a layer norm of them."""
    assert "size at dim=1 to match num_features" in str(recognise_module(nn.InstanceNorm1d(8, affine=True)))


class HoldingMLP(AcmeMLP):
    """Gated, with a factor that it holds in some way."""

    def __init__(self, factor: Any, layer_idx: int = 0) -> None:
        super().__init__(8)
        self.factor, self.layer_idx = factor, layer_idx

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor["x"][self.layer_idx] if isinstance(self.factor, dict) else self.factor
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden) * (factor(1.0) if callable(factor) else factor)


@pytest.mark.parametrize(
    "one, two",
    [
        ((torch.tensor(1.0),), (torch.tensor(2.0),)),
        ((lambda x: x,), (lambda x: 2 * x,)),
        (({"x": [1.0]},), ({"x": [2.0]},)),
        (({"x": [1.0, 2.0]}, 0), ({"x": [1.0, 2.0]}, 1)),
    ],
    ids=["tensor", "function", "nested", "layer"],
)
def test_modules_of_one_class_that_hold_something_else(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    """What was found out about the first must not be taken for the second."""
    match = load("liger_hf.mlps:match_gated_mlp")
    assert match(HoldingMLP(*one), {}) is None
    assert "does not compute silu_mul" in match(HoldingMLP(*two), {})


class WatchedMLP(AcmeMLP):
    """Gated, and in training something else happens."""

    def __init__(self, does: Any) -> None:
        super().__init__(8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.does, self.log = does, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        if self.training:
            self.does(self, hidden)
        return self.down_proj(hidden)


@pytest.mark.parametrize(
    "does, reason",
    [
        (lambda m, hidden: None, None),
        (lambda m, hidden: setattr(m, "last", hidden), "its forward changes last of the module"),
        (lambda m, hidden: m.log.append(hidden), "its forward changes log of the module"),
        (lambda m, hidden: m.calls.add_(1), "its forward changes calls of the module"),
        (lambda m, hidden: random.random(), "its forward draws random numbers"),
        (lambda m, hidden: torch.rand(()), "its forward draws random numbers"),
    ],
    ids=["nothing", "attribute", "list", "buffer", "python's numbers", "torch's numbers"],
)
def test_what_a_forward_does_beside_its_result(does: Any, reason: str | None) -> None:
    """An op would not do it: a layer that is dropped at times looks right in most calls."""
    module = WatchedMLP(does)
    state = random.getstate(), torch.random.get_rng_state().tolist()
    assert load("liger_hf.mlps:match_gated_mlp")(module, {}) == reason
    assert (random.getstate(), torch.random.get_rng_state().tolist()) == state
    assert module.calls == 0 and not hasattr(module, "last")


class DropoutSiLU(nn.SiLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_in_an_activation_is_seen_also_in_evaluation(training: bool) -> None:
    module = AcmeMLP(8)
    module.act_fn = DropoutSiLU()
    module.train(training)
    reason = load("liger_hf.mlps:match_gated_mlp")(module, {})
    assert reason == "its activation DropoutSiLU does not compute silu"
    assert module.act_fn.training == training


def test_the_rotary_function_is_that_of_an_inherited_forward() -> None:
    """The module of the subclass has a function of the same name that rotates otherwise."""
    from transformers.models.cohere import modeling_cohere
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    home = ModuleType("acme_attention")
    vars(home).update(Base=modeling_cohere.CohereAttention, apply_rotary_pos_emb=apply_rotary_pos_emb)
    sys.modules[home.__name__] = home
    exec("class Attention(Base): pass", vars(home))
    try:
        found = recognise_module(home.Attention(build("cohere").config, 0))
    finally:
        del sys.modules[home.__name__]
    assert found == fits.rope("interleaved", cast="fp32") == recognise_module(build("cohere").model.layers[0].self_attn)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_on_an_activation_that_would_no_longer_be_called(kind: str) -> None:
    module = AcmeMLP(8)
    getattr(module.act_fn, f"register_{kind}_hook")(lambda *args: None)
    reason = load("liger_hf.mlps:match_gated_mlp")(module, {})
    assert reason == "hooks on its activation SiLU would no longer be called"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_projections_outside_autocast(device: str) -> None:
    """Upstream computes them in fp32; ours would not."""

    class FullMLP(AcmeMLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, enabled=False):
                return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    reason = load("liger_hf.mlps:match_gated_mlp")(FullMLP(8), {})
    assert reason == "its forward turns autocast off or on for its projections"
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")


def returning(output: Any) -> type:
    """A model whose forward returns, or keeps on the model, something else made of the logits."""

    class Model(AcmeForCausalLM):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            logits = self.lm_head(self.model(input_ids).last_hidden_state)
            return output(self, self.loss_function(logits, labels, self.config.vocab_size), logits)

    return Model


@pytest.mark.parametrize(
    "output, reason",
    [
        (
            lambda m, loss, x: CausalLMOutput(loss, x, hidden_states=(x.logsumexp(-1),)),
            "more than its loss: for hidden",
        ),
        (lambda m, loss, x: setattr(m, "seen", x) or CausalLMOutput(loss, x), "more than its loss: for seen"),
        (
            lambda m, loss, x: CausalLMOutput(loss, x, attentions=x.argmax(-1)),
            "more than its loss: without them it fails",
        ),
        (lambda m, loss, x: (x, loss), "returns a tuple, expected a ModelOutput with loss and logits"),
        (lambda m, loss, x: loss, "returns a Tensor, expected a ModelOutput with loss and logits"),
        (lambda m, loss, x: CausalLMOutput(loss + m.missing.x, x), "after its loss upstream's own forward, unpatched"),
    ],
    ids=["output", "attribute", "prediction", "order", "loss", "failure"],
)
def test_an_output_that_needs_logits(output: Any, reason: str) -> None:
    row = next(row for row in liger.plan(returning(output)(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and reason in row.reason


class OtherHead(AcmeForCausalLM):
    """What lies between head and loss is ``finish``."""

    finish: Any = None

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> CausalLMOutput:
        hidden = self.model(input_ids).last_hidden_state
        with torch.autocast("cpu") if self.finish == "autocast" else nullcontext():
            logits = self.lm_head(hidden)
        if callable(self.finish):
            logits = self.finish(logits, hidden)
        if self.finish == "labels" and not (labels != -100).any():
            return CausalLMOutput(logits=logits)
        return CausalLMOutput(self.loss_function(logits, labels, self.config.vocab_size), logits)


@pytest.mark.parametrize(
    "finish, reason",
    [
        (lambda m, x, hidden: x * hidden.norm(dim=-1, keepdim=True), "neither a scale nor a soft cap"),
        (lambda m, x, hidden: x if m.training else 3 * x, "does something else in evaluation"),
        (lambda m, x, hidden: x if torch.is_grad_enabled() else 3 * x, "does something else in evaluation"),
        ("autocast", "turns autocast or gradients off or on for its head or its loss"),
        ("labels", "does not call self.loss_function"),
    ],
    ids=["hidden states", "mode", "gradients", "autocast", "labels"],
)
def test_logits_that_depend_on_more(finish: Any, reason: str) -> None:
    cls = type("Model", (OtherHead,), {"finish": finish})
    row = next(row for row in liger.plan(cls(AcmeConfig())).rows if row.cls == "Model")
    assert row.status == "refused" and reason in row.reason


def test_a_loss_of_ones_own_with_upstreams_name() -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss as upstreams

    def ForCausalLMLoss(*args: Any, **kwargs: Any) -> torch.Tensor:
        return 2 * upstreams(*args, **kwargs)

    before, after, plain = acme(), acme(), acme()
    before.loss_function = ForCausalLMLoss
    row = next(row for row in liger.plan(before).rows if row.cls == "AcmeForCausalLM")
    assert row.reason == f"its loss function is {__name__}.ForCausalLMLoss, neither ForCausalLMLoss nor ForMaskedLMLoss"
    liger.autopatch(after, prefer="reference")
    after.loss_function = plain.loss_function = ForCausalLMLoss
    expect_equal_step(plain, after, **IDS)


def test_a_plan_counts_nothing() -> None:
    class Model(AcmeForCausalLM):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            self.calls.add_(1)
            return super().forward(input_ids, labels, **kwargs)

    model = Model(AcmeConfig())
    model.register_buffer("calls", torch.zeros((), dtype=torch.long))
    assert "linear_cross_entropy" in {row.op for row in liger.plan(model).applied} and model.calls == 0


# -- Uses that one probe does not show ---------------------------------------------------------------------------------
class UsualNorm(nn.Module):
    """Llama's, with something that its subclass does before it or behind it."""

    before = after = staticmethod(lambda module, x: x)

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(width)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, self.before(self, x).float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.after(self, self.weight * x.to(dtype))


class UsualMLP(AcmeMLP):
    before = after = staticmethod(lambda module, x: x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(self, x)
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(self.after(self, hidden))


def unless(condition: bool, x: torch.Tensor) -> torch.Tensor:
    return x if condition else 2 * x


USES = {
    "float16": ("after", lambda m, x: unless(x.dtype != torch.float16, x)),
    "mixed": ("after", lambda m, x: x.to(m.weight.dtype) if "weight" in m._parameters else unless(False, x)),
    "large": ("before", lambda m, x: x.clamp(-1e4, 1e4)),
    "zero": ("before", lambda m, x: torch.where((x == 0).all(-1, keepdim=True), 1.0, x)),
    "one token": ("after", lambda m, x: unless(x.shape[-2] > 1, x)),
    "no batch": ("after", lambda m, x: unless(x.dim() > 2, x)),
    "bfloat16 in evaluation": ("after", lambda m, x: unless(m.training or x.dtype != torch.bfloat16, x)),
    "no gradients": ("after", lambda m, x: unless(torch.is_grad_enabled(), x)),
}  # fmt: skip
"""What a forward may do in one use alone, and where."""


NORM, MLP = fits.rms_norm(cast="llama", eps="eps"), fits.gated_mlp(act="silu")


@pytest.mark.parametrize("kind, fit", [(UsualNorm, NORM), (UsualMLP, MLP)])
@pytest.mark.parametrize("use", USES)
def test_something_else_in_one_use_alone(kind: Any, fit: Fit, use: str) -> None:
    place, does = USES[use]
    assert recognise_module(kind(16)) == fit
    found = recognise_module(type("Other" + kind.__name__, (kind,), {place: staticmethod(does)})(16))
    assert isinstance(found, str) and "does not compute" in found


@pytest.mark.parametrize("does", [lambda m, x: x.data.clamp_(-5, 5), lambda m, x: x.detach().add_(1)])
def test_an_input_that_is_written_to(does: Any) -> None:
    def before(module: Any, x: torch.Tensor) -> torch.Tensor:
        does(module, x)
        return x

    found = recognise_module(type("WritingNorm", (UsualNorm,), {"before": staticmethod(before)})())
    assert isinstance(found, str) and "does not compute rms_norm" in found
    found = recognise_module(type("LateNorm", (UsualNorm,), {"forward": lambda self, x: late(self, x, does)})())
    assert isinstance(found, str) and "its forward changes its input" in found


def late(module: UsualNorm, x: torch.Tensor, does: Any) -> torch.Tensor:
    """Writes when the result is there."""
    result = UsualNorm.forward(module, x)
    does(module, x)
    return result


def test_a_limit_of_an_activation_in_float16() -> None:
    class LimitedSiLU(nn.SiLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.clamp(max=100.0) if x.dtype == torch.float16 else x)

    module = AcmeMLP(8)
    module.act_fn = LimitedSiLU()
    assert "its activation LimitedSiLU does not compute silu" in str(load("liger_hf.mlps:match_gated_mlp")(module, {}))


def test_the_reason_of_a_gated_mlp_is_about_its_gate() -> None:
    module = UsualMLP(16)
    module.act_fn = nn.ReLU()
    assert "gated_mlp[silu]: its activation ReLU does not compute silu" in str(recognise_module(module))
    tuples = type("TupleMLP", (UsualMLP,), {"forward": lambda self, x: (UsualMLP.forward(self, x), None)})(16)
    assert "its forward returns a tuple, expected a tensor" in str(recognise_module(tuples))


def backwards(self: Any, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """Another forward: of the tokens from the last to the first."""
    return AcmeForCausalLM.forward(self, input_ids.flip(-1), labels)


def expect_equal_head(cls: Any) -> None:
    """The fused loss is in a model of a class, with the numbers of the class as it is now."""
    torch.manual_seed(0)
    plain = cls(AcmeConfig()).train()
    patched = copy.deepcopy(plain)
    assert "linear_cross_entropy" in {row.op for row in liger.autopatch(patched, prefer="reference").applied}
    expect_equal_step(plain, patched, **IDS)


def test_a_class_that_gets_another_forward_between_two_models() -> None:
    """From its own module, as in a notebook: neither what was found nor what was made for the old one counts."""
    norm, head = type("ANorm", (UsualNorm,), {}), type("AHead", (AcmeForCausalLM,), {})
    for cls, base in ((norm, UsualNorm), (head, AcmeForCausalLM)):
        cls.forward = types.FunctionType(base.forward.__code__, globals(), "forward", (None,) * (cls is head))
    assert isinstance(recognise_module(norm()), Fit)
    liger.autopatch(head(AcmeConfig()), prefer="reference")
    norm.forward = lambda self, x: 2 * UsualNorm.forward(self, x)
    assert "does not compute rms_norm" in str(recognise_module(norm()))
    head.forward = backwards
    expect_equal_head(head)


def test_a_class_that_inherits_another_forward_between_two_models() -> None:
    """The class itself is untouched, the one above it is not."""
    above = type("Above", (AcmeForCausalLM,), {"forward": AcmeForCausalLM.forward})
    cls: Any = type("Below", (above,), {})
    liger.autopatch(cls(AcmeConfig()), prefer="reference")
    above.forward = backwards
    expect_equal_head(cls)


def test_a_registry_of_classes_is_told_nothing() -> None:
    class Registered(UsualNorm):
        known: ClassVar[dict[str, type]] = {}

        def __init_subclass__(cls, *, kind: str) -> None:
            assert kind not in cls.known
            cls.known[kind] = cls

    class RegisteredNorm(Registered, kind="rms"):
        pass

    model = acme()
    model.model.last = RegisteredNorm()
    assert "RegisteredNorm" in {row.cls for row in liger.autopatch(model, prefer="reference").applied}
    assert Registered.known == {"rms": RegisteredNorm}


def test_a_module_without_a_forward_that_can_be_read() -> None:
    model = acme()
    model.model.last = torch.jit.script(nn.LayerNorm(16))
    rows = liger.plan(model).rows
    assert any("looking at it failed" in row.reason or row.cls == "AcmeNorm" for row in rows)
    assert any(row.status == "applied" and row.cls == "AcmeForCausalLM" for row in rows)


# -- What a model may do to us -----------------------------------------------------------------------------------------
class Raises(nn.Module):
    """A module whose property of that name cannot be read, and whose head neither."""

    @property
    def config(self) -> Any:
        raise RuntimeError("not now")

    def get_output_embeddings(self) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_config_that_cannot_be_read() -> None:
    model = AcmeForCausalLM(AcmeConfig())
    model.extra = Raises()
    assert len(liger.autopatch(model).applied) == len(liger.plan(AcmeForCausalLM(AcmeConfig())).applied)
    (row,) = liger.plan(Raises()).rows
    assert row.reason.startswith("it has no config.model_type")


class Gate(nn.Module):
    """All parts of a gated MLP, in another formula, under a name that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down_proj, self.act_fn = nn.Linear(24, 16, bias=False), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * 2


def test_a_known_structure_is_named_whatever_it_is_called() -> None:
    found = recognise_module(Gate())
    assert isinstance(found, str) and "its forward does not compute silu_mul" in found
    assert recognise_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) is None


class RememberingMLP(AcmeMLP):
    """It notes what it was given, and in a buffer that is replaced."""

    def __init__(self) -> None:
        super().__init__(16)
        self.notes: dict[str, list[int]] = {"rows": []}
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes["rows"].append(len(x))
        self.last = x
        return super().forward(x)


def test_probes_leave_lists_and_buffers_of_a_module_alone() -> None:
    module = RememberingMLP()
    found = recognise_module(module)
    assert isinstance(found, str) and "its forward does not compute" in found
    assert module.notes == {"rows": []} and module.last is None


def test_probes_of_a_module_whose_attributes_hold_each_other() -> None:
    model = switched()[0]
    model.notes = {}
    model.notes["same"] = model.again = model.notes
    copied = quiet(model)
    assert copied.notes["same"] is copied.again is copied.notes is not model.notes
    row = next(row for row in liger.plan(model).rows if row.op == "linear_cross_entropy")
    assert row.status == "applied"


@pytest.mark.parametrize("model_type", ["granite", "cohere"])
def test_a_scale_that_is_changed_after_patching(model_type: str) -> None:
    plain = build(model_type)
    patched = copy.deepcopy(plain)
    liger.autopatch(patched, prefer="reference")
    for holder in (plain, patched):
        if model_type == "granite":
            holder.config.logits_scaling = 3.0
        else:
            holder.logit_scale = 0.75
        holder.steps = 1  # a number that changes nothing
    expect_equal_step(plain, patched, **batch())
    expect_equal_step(plain, copy.deepcopy(patched), **batch())
    with torch.inference_mode():
        patched.steps = 2
        expected, found = plain(**batch()).loss, patched(**batch(), skip_logits=True).loss
    assert torch.allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "scales",
    [
        [torch.tensor(0.5), torch.tensor(2.0)],  # numbers of other types than float, in turn
        [np.float32(0.5), np.float32(2.0)],
        [1.0, 1.000001, 1.5],  # the probe takes the second for 1
    ],
    ids=["tensors", "numpy", "drift"],
)
def test_a_scale_that_is_changed_more_than_once(scales: list[Any]) -> None:
    plain = build("cohere")
    patched = copy.deepcopy(plain)
    liger.autopatch(patched, prefer="reference")
    for scale in scales:
        plain.logit_scale = patched.logit_scale = scale
        expect_equal_step(plain, patched, **batch())


at_tracing = pytest.mark.skipif(
    not transform.AT_TRACING, reason="with torch before 2.13 a compiled graph keeps what was found at patching"
)


@at_tracing
@pytest.mark.parametrize("model_type, copied", [("granite", False), ("cohere", True)])
def test_a_scale_that_is_changed_in_a_compiled_model(model_type: str, copied: bool) -> None:
    """Before it is compiled and twice after: of a float that has changed once dynamo makes a variable."""
    plain = build(model_type)
    patched = copy.deepcopy(plain)
    liger.autopatch(patched, only="linear_cross_entropy")
    patched = copy.deepcopy(patched) if copied else patched
    patched.compile(fullgraph=True, backend="eager")
    for scale in (8.0, 3.0, 0.5):
        for model in (plain, patched):
            holder, name = (model.config, "logits_scaling") if model_type == "granite" else (model, "logit_scale")
            setattr(holder, name, scale)
        expect_equal_step(plain, patched, **batch())


@at_tracing
def test_a_head_that_becomes_unknown_before_it_is_compiled() -> None:
    plain, patched = acme(), acme()
    liger.autopatch(patched, only="linear_cross_entropy")
    for model in (plain, patched):
        model.config.cube = 1
    patched.compile(fullgraph=True, backend="eager")
    assert expect_equal_step(plain, patched, **IDS).logits is not None


class Switched(AcmeForCausalLM):
    """A factor that counts once it is switched on."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.scaled, self.factor = False, 2.0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> CausalLMOutput:
        logits = self.lm_head(self.model(input_ids, **kwargs).last_hidden_state)
        logits = logits * self.factor if self.scaled else logits
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)


def switched() -> list[Any]:
    plain = Switched(AcmeConfig())
    return [plain, copy.deepcopy(plain)]


def test_a_scale_of_0_is_upstreams_to_compute() -> None:
    model = build("cohere")
    liger.autopatch(model, only="linear_cross_entropy")
    model.logit_scale = 0.0
    assert float(model(**batch()).loss) == pytest.approx(math.log(model.config.vocab_size))


def test_a_buffer_that_is_loaded_after_patching() -> None:
    models = switched()
    for model in models:
        model.scaled = True
        del model.factor
        model.register_buffer("factor", torch.tensor(0.5))
    liger.autopatch(models[1], only="linear_cross_entropy")
    for model in models:
        model.load_state_dict({**model.state_dict(), "factor": torch.tensor(3.0)})
    assert expect_equal_step(*models, **IDS).logits is None


def test_a_scale_that_changed_nothing_until_it_was_switched_on() -> None:
    models = switched()
    liger.autopatch(models[1], only="linear_cross_entropy")
    for name, value in (("factor", 3.0), ("scaled", True), ("factor", 9.0)):
        for model in models:
            setattr(model, name, value)
        assert expect_equal_step(*models, **IDS).logits is None


def test_a_head_that_becomes_unknown_runs_as_upstream() -> None:
    plain, patched = acme(), acme()
    liger.autopatch(patched, only="linear_cross_entropy")
    assert expect_equal_step(plain, patched, **IDS).logits is None
    for model in (plain, patched):
        model.config.cube = 1
    assert expect_equal_step(plain, patched, **IDS).logits is not None


def test_an_activation_that_is_changed_after_patching() -> None:
    model = build("mistral")
    mlp = model.model.layers[0].mlp
    liger.autopatch(model)
    for change, words in (
        (lambda: setattr(mlp, "act_fn", nn.ReLU()), "become ReLU"),
        (lambda: mlp.add_module("act_fn", nn.ReLU()), "become ReLU"),
        (lambda: mlp.register_module("act_fn", nn.ReLU()), "become ReLU"),
        (lambda: delattr(mlp, "act_fn"), "be deleted"),
    ):
        with pytest.raises(
            WrongOrder, match=rf"act_fn of a patched MistralMLP was to {words}.*unpatch the model, change it"
        ):
            change()
    mlp.add_module("probe", nn.Identity())
    del mlp.probe
    copy.deepcopy(mlp)
    liger.unpatch(model)
    mlp.act_fn = nn.ReLU()
    row = next(row for row in liger.autopatch(model).rows if row.path == "model.layers.0.mlp")
    assert row.status == "refused" and "its activation ReLU does not compute" in row.reason


def test_the_input_of_a_patched_mlp_by_name() -> None:
    model = build("mistral")
    mlp, x = model.model.layers[0].mlp, torch.randn(2, 32)
    expected = mlp(x)
    liger.autopatch(model, prefer="reference")
    assert torch.equal(mlp(x=x), expected)


def test_the_head_of_a_causal_lm_inside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama4 that sees: labels go to the model around, the head is in the text model's causal LM."""
    transformers = importlib.import_module("transformers")
    output = importlib.import_module("transformers.modeling_outputs").MoeCausalLMOutputWithPast
    # transformers 5.24 asks for it, and nothing has it
    monkeypatch.setattr(output, "image_outputs", None, raising=False)
    text = {**SMALL, "intermediate_size_mlp": 48, "num_local_experts": 2, "moe_layers": [1]}
    vision = {
        "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 8,
        "patch_size": 4, "vision_output_dim": 48, "projector_input_dim": 48, "projector_output_dim": 48,
    }  # fmt: skip
    torch.manual_seed(0)
    plain = transformers.Llama4ForConditionalGeneration(
        transformers.Llama4Config(text_config=text, vision_config=vision, image_token_index=95)
    ).train()
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, prefer="reference")
    heads = {row.cls: row.status for row in report.rows if row.op == "linear_cross_entropy"}
    assert heads == {"Llama4ForConditionalGeneration": "applied", "Llama4ForCausalLM": "skipped"}
    with count_ops() as counts:
        out = expect_equal_step(plain, patched, **batch())
    assert out.logits is None and counts["linear_cross_entropy", "reference"] == 1
    liger.unpatch(patched)
    assert not liger.is_patched(patched)
