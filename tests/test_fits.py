"""Norms, MLPs and experts of real models, patched with each fit: upstream's bits both ways; and refusals."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
import os
from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN

import liger
from liger.declare import Fit, ModelPatch, load
from liger.registry import registry
from liger.swap import is_swapped
from liger.testing import count_ops
from liger.testing.models import expect_equal_step
from liger_hf import fits
from liger_hf.mlps import match_gated_mlp
from liger_hf.norms import match_layer_norm, match_rms_norm, t5_norm
from liger_hf.recognise import as_source, recognise_module

LAYER_NORM = {"torch.nn.modules.normalization.LayerNorm": fits.layer_norm()}
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
MAMBA = {"num_heads": 4, "head_dim": 16, "expand": 2, "state_size": 8, "n_groups": 2, "chunk_size": 8}
MIXED = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_NORM = fits.gated_rms_norm(norm_before_gate=True)
MAMBA_NORM = fits.gated_rms_norm(norm_before_gate=False, group_size="group_size")
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Fit]]] = {  # model_type: prefix of classes, config, fits
    "phi": ("Phi", {"qk_layernorm": True}, LAYER_NORM),
    "gpt_neox": ("GPTNeoX", {}, LAYER_NORM),
    "starcoder2": ("Starcoder2", {}, LAYER_NORM),
    "olmo": ("Olmo", {}, {"OlmoLayerNorm": fits.layer_norm(eps=1e-5, fp32=True)}),
    "cohere": ("Cohere", {"use_qk_norm": True}, {"CohereLayerNorm": fits.cohere_norm()}),
    "cohere2": ("Cohere2", {}, {"Cohere2LayerNorm": fits.cohere_norm()}),
    "nanochat": ("NanoChat", {}, {"NanoChatRMSNorm": fits.rms_norm(cast="fp32-weight", eps="eps")}),
    "mamba2": ("Mamba2", MAMBA, {"MambaRMSNormGated": MAMBA_NORM}),
    "bamba": ("Bamba", {**MIXED, "attn_layer_indices": [1]}, {"BambaRMSNormGated": MAMBA_NORM}),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {**MIXED, **EXPERTS, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 48},
        {
            "GraniteMoeHybridRMSNormGated": MAMBA_NORM,
            "GraniteMoeHybridMLP": fits.packed_mlp(
                act="silu", merged="input_linear", down="output_linear", act_fn="activation"
            ),
        },
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 0, "mlp_only_layers": [0, 1],
        },
        {"Qwen3NextRMSNormGated": QWEN_NORM},
    ),
    "falcon_h1": (
        "FalconH1",
        {**MIXED, "mamba_d_ssm": 64, "mamba_rms_norm": True, "mlp_multipliers": [0.7, 0.3]},
        {
            "FalconH1RMSNormGated": fits.gated_rms_norm(
                norm_before_gate=True, cast="fp32-weight", groups="n_groups"
            ),
            "FalconH1MLP": fits.gated_mlp(act="silu", multipliers=True),
        },
    ),
    "phi3": ("Phi3", {}, {"Phi3MLP": fits.packed_mlp(act="silu")}),
    "glm4": ("Glm4", {}, {"Glm4MLP": fits.packed_mlp(act="silu")}),
    "nemotron": ("Nemotron", {}, {"NemotronLayerNorm1P": fits.layer_norm_1p(), "NemotronMLP": fits.mlp()}),
    "lfm2": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
        {"Lfm2MLP": fits.gated_mlp(act="silu", gate="w1", up="w3", down="w2", act_fn=None)},
    ),
    "gpt_oss": ("GptOss", EXPERTS, {"GptOssExperts": fits.clamped_experts()}),
}  # fmt: skip


def build(model_type: str, dtype: torch.dtype) -> torch.nn.Module:
    """A small causal LM."""
    prefix, changes, _ = MODELS[model_type]
    config = getattr(importlib.import_module("transformers"), f"{prefix}Config")(**SMALL | changes)
    torch.manual_seed(0)
    model = getattr(importlib.import_module("transformers"), f"{prefix}ForCausalLM")(config).to(dtype).train()
    with torch.no_grad():  # norms start with weights of 1 and 0, which would hide a mistake
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(params=MODELS)
def model_type(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model type whose patch declares the fits under test and no others."""
    name = request.param
    module = f"transformers.models.{name}.modeling_{name}"
    patch = ModelPatch(model_type=name, module=module, fits=MODELS[name][2], head=None, mini="")
    monkeypatch.setitem(registry().models, name, patch)
    monkeypatch.setitem(registry()._owners, ("model", name), ["tests"])
    return name


def step(model: torch.nn.Module) -> list[torch.Tensor]:
    """Logits and all gradients."""
    ids = torch.arange(22).view(2, 11) * 7 % 61
    out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    return [out.logits.detach(), *[p.grad for p in model.parameters() if p.grad is not None]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_patched_models_have_upstreams_bits(model_type: str, dtype: torch.dtype) -> None:
    plain = build(model_type, dtype)
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, prefer="reference", strict=True)
    assert {row.cls for row in report.applied} == {key.rpartition(".")[2] for key in MODELS[model_type][2]}
    with count_ops() as counts:
        found = step(patched)
    assert {op for op, _ in counts} == {row.op for row in report.applied}
    expected = step(plain)
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype and torch.equal(f, e)


INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=INTERPRETED)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_each_module_passes_its_probe(model_type: str, dtype: torch.dtype, kernel: str) -> None:
    report = liger.plan(build(model_type, dtype), prefer=kernel, verify=True, strict=True)
    assert all(f"/{kernel} on cpu" in row.reason for row in report.applied)


def test_each_module_compiles_as_one_graph(model_type: str) -> None:
    model = build(model_type, torch.float32)
    liger.autopatch(model, prefer="reference", strict=True)
    patched = {type(m).__name__: m for m in model.modules() if is_swapped(type(m))}
    for module in patched.values():
        torch._dynamo.reset()
        fit = next(f for key, f in MODELS[model_type][2].items() if key.endswith(type(module).__name__))
        probe = load(fit.probe)(module, torch.Generator().manual_seed(0))
        compiled = torch.compile(lambda *x, m=module, run=probe.run: run(m, *x), backend="eager", fullgraph=True)
        assert torch.equal(compiled(*probe.inputs), probe.run(module, *probe.inputs))


def replace(fit: Fit, **options: Any) -> Fit:
    """The fit with other options."""
    return dataclasses.replace(fit, options={**fit.options, **options})


WRONG: dict[str, tuple[str, Fit, str]] = {  # class, fit, reason
    "eps": ("OlmoLayerNorm", fits.layer_norm(eps=1e-6), "compute layer_norm with eps=1e-06, fp32=False: torch.float32"),
    "no eps": ("OlmoLayerNorm", fits.layer_norm(), "it has no float attribute 'eps'"),
    "not 1p": ("NemotronLayerNorm1P", fits.layer_norm(), "its forward does not compute layer_norm"),
    "heads": ("CohereLayerNorm", fits.rms_norm(cast="fp32-weight"), "its weight has shape (4, 8), expected one dim"),
    "rms": ("NanoChatRMSNorm", fits.rms_norm(cast="fp32-weight", eps="eps", offset=0.5), "does not compute rms_norm"),
    "weight": ("CohereLayerNorm", fits.l2norm(eps="variance_epsilon"), "it has the parameters weight, expected none"),
    "order": ("MambaRMSNormGated", replace(MAMBA_NORM, norm_before_gate=True), "norm_before_gate=True"),
    "groups": ("MambaRMSNormGated", replace(MAMBA_NORM, group_size=None), "does not compute gated_rms_norm"),
    "count": ("MambaRMSNormGated", replace(MAMBA_NORM, groups="groups"), "it has no integer attribute 'groups'"),
    "cast": ("Qwen3NextRMSNormGated", replace(QWEN_NORM, cast="fp32-weight"), "torch.bfloat16 with torch.bfloat16"),
    "gate": ("Qwen3NextRMSNormGated", replace(QWEN_NORM, activation="sigmoid"), "activation='sigmoid'"),
    "multipliers": ("FalconH1MLP", fits.gated_mlp(act="silu"), "its forward does not compute silu_mul"),
    "no multipliers": (
        "Phi3MLP",
        fits.gated_mlp(act="silu", multipliers=True),
        "it has no gate_proj, up_proj, gate_mul",
    ),
    "layout": ("Phi3MLP", fits.packed_mlp(act="silu", layout="up_gate"), "layout='up_gate'"),
    "activation": ("Glm4MLP", fits.packed_mlp(act="gelu"), "its activation SiLUActivation does not compute gelu"),
    "function": (
        "Lfm2MLP",
        fits.gated_mlp(act="gelu", gate="w1", up="w3", down="w2", act_fn=None),
        "its forward does not compute gelu_mul",
    ),
    "relu2": ("FalconH1MLP", fits.mlp(), "its activation SiLUActivation does not compute relu2"),
    "experts": ("GptOssExperts", fits.experts(act="silu", layout="interleaved"), "does not compute silu_mul_packed"),
    "clamp": ("GptOssExperts", fits.clamped_experts(layout="gate_up"), "does not compute silu_mul_clamped_packed"),
    "limit": ("GptOssExperts", fits.clamped_experts(limit="swiglu_limit"), "it has no float attribute 'swiglu_limit'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_word_is_refused(wrong: str) -> None:
    cls, fit, reason = WRONG[wrong]
    model_type = next(name for name, (_, _, declared) in MODELS.items() if cls in declared)
    module = next(m for m in build(model_type, torch.float32).modules() if type(m).__name__ == cls)
    found = load(fit.match)(module, fit.options)
    assert found is not None and reason in found


def test_experts_whose_forward_does_not_call_the_method() -> None:
    transformers = importlib.import_module("transformers")
    config = transformers.MixtralConfig(**SMALL | EXPERTS)
    experts = next(m for m in transformers.MixtralForCausalLM(config).modules() if type(m).__name__ == "MixtralExperts")
    fit = fits.experts(act="silu")
    experts.config._experts_implementation = "eager"
    assert "its eager forward does not call _apply_gate" in load(fit.match)(experts, fit.options)
    experts.config._experts_implementation = "grouped_mm"
    assert load(fit.match)(experts, fit.options) is None
    patched = load(fit.adapter)(type(experts), load(registry().op(fit.op).reference), **fit.options)["_apply_gate"]
    x = torch.randn(3, 8)
    assert torch.equal(patched(experts, x), experts._apply_gate(x))


WIDE = fits.rms_norm(cast="fp32-weight", eps="eps")
KIMI_NORM = replace(QWEN_NORM, cast="fp32-weight", activation="sigmoid")
OTHERS = {  # class: model, arguments, fit, whether upstream computes it
    "Gemma3nRMSNorm": ("gemma3n", (8,), WIDE, True),
    "Gemma4RMSNorm": ("gemma4", (8, 1e-6, False), WIDE, True),  # without a weight
    "Llama4TextL2Norm": ("llama4", (), WIDE, True),
    "Llama4TextRMSNorm": ("llama4", (8,), fits.rms_norm(cast="llama", eps="eps"), True),
    "DoryL2Norm": ("dory", (), fits.l2norm(), True),
    "DeepseekV4UnweightedRMSNorm": ("deepseek_v4", (), WIDE, False),  # it rounds 1 / rms
    "FalconMambaWeightlessRMSNorm": ("falcon_mamba", (8,), WIDE, False),  # it has a weight and ignores it
    "T5LayerNorm": ("t5", (8,), fits.rms_norm(cast="llama"), False),  # it does not round 16-bit rows for fp32 weights
    "MT5LayerNorm": ("mt5", (8,), fits.t5_norm(), True),
    "LlamaRMSNorm": ("llama", (8,), fits.t5_norm(), False),
    "Zamba2RMSNormGated": ("zamba2", (8, 4), MAMBA_NORM, True),
    "NemotronHRMSNormGated": ("nemotron_h", (8, 4), MAMBA_NORM, True),
    "FalconH1RMSNormGated": (
        "falcon_h1", (8, 1e-6, 2, False), replace(MAMBA_NORM, cast="fp32-weight", groups="n_groups", group_size=None),
        True,
    ),
    "KimiLinearRMSNormGated": ("kimi_linear", (8,), KIMI_NORM, True),
    "OlmoHybridRMSNormGated": ("olmo_hybrid", (8,), QWEN_NORM, True),
}  # fmt: skip


@pytest.mark.parametrize("cls", OTHERS)
def test_norms_of_other_families(cls: str) -> None:
    model, arguments, fit, fits_it = OTHERS[cls]
    module = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), cls)(*arguments)
    found = load(fit.match)(module, fit.options)
    assert found is None if fits_it else f"its forward does not compute {fit.op}" in found


def adapted(fit: Fit, op: Any = ...) -> Any:
    """The fit's forward as a function of module and inputs; that of an unpatched module's class would be upstream's."""
    op = load(registry().op(fit.op).reference) if op is ... else op
    return functools.partial(load(fit.adapter).__liger_adapter__, op, **fit.options)


WEIGHTLESS = {  # class: model, arguments, whether it rounds 1 / rms
    "DeepseekV4UnweightedRMSNorm": ("deepseek_v4", (), True),
    "Glm5NextTextUnweightedRMSNorm": ("glm5_next", (), True),
    "FalconMambaWeightlessRMSNorm": ("falcon_mamba", (8,), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", WEIGHTLESS)
def test_norms_without_a_weight_have_upstreams_bits(cls: str, dtype: torch.dtype) -> None:
    """The op computes them, but where upstream rounds 1 / rms to 16 bits its own forward does."""
    model, arguments, rounded = WEIGHTLESS[cls]
    module = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), cls)(*arguments)
    assert as_source(module) == f"fits.weightless_norm({'rounded=True' if rounded else ''})"
    assert load((other := fits.weightless_norm(rounded=not rounded)).match)(module, other.options) is None or rounded
    called: list[torch.dtype] = []

    def op(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        called.append(x.dtype)
        return load(registry().op("rms_norm").reference)(x, *args, **options)

    fit = fits.weightless_norm(rounded=rounded)
    patched = adapted(fit, op)
    x = (torch.randn(3, 5, 8) * torch.tensor([1e-3, 1.0, 30.0])[:, None, None]).to(dtype)
    with torch.no_grad():
        assert torch.equal(patched(module, x), module(x))
    assert called == ([] if rounded and dtype != torch.float32 else [dtype])


def test_a_norm_with_a_weight_is_not_weightless() -> None:
    norm = importlib.import_module("transformers.models.llama.modeling_llama").LlamaRMSNorm(8)
    fit = fits.weightless_norm(eps="variance_epsilon")
    assert load(fit.match)(norm, fit.options) == "it has the parameters weight, expected none"


@pytest.mark.parametrize("fit", [WIDE, fits.l2norm(cast="none")])
def test_dorys_norm_is_neither_a_mean_nor_rounded_at_each_step(fit: Fit) -> None:
    norm = importlib.import_module("transformers.models.dory.modeling_dory").DoryL2Norm()
    assert f"its forward does not compute {fit.op}" in load(fit.match)(norm, fit.options)


def test_a_model_on_the_unit_sphere() -> None:
    """Dory, whose every norm is an ``l2norm``; its type is declared by no package."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    plain = transformers.DoryForCausalLM(transformers.DoryConfig(**SMALL, n_input_layers=1, n_output_layers=0))
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, only="l2norm", prefer="reference")
    assert len(report.applied) == sum(type(m).__name__ == "DoryL2Norm" for m in plain.modules()) > 10
    ids = torch.arange(22).view(2, 11)
    expect_equal_step(plain, patched, input_ids=ids, labels=ids)


@pytest.mark.parametrize("dtype, weights", list(itertools.product((torch.float32, torch.bfloat16), repeat=2)))
def test_the_weight_of_t5_decides_what_is_rounded(dtype: torch.dtype, weights: torch.dtype) -> None:
    norm = importlib.import_module("transformers.models.t5.modeling_t5").T5LayerNorm(8).to(weights)
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(3, 8).to(dtype)
    expected = norm(x)
    found = t5_norm.__liger_adapter__(load(registry().op("rms_norm").public), norm, x, eps="variance_epsilon")
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_layer_norm_over_two_dimensions_is_refused() -> None:
    fit = fits.layer_norm()
    norm = torch.nn.LayerNorm((3, 4))
    assert load(fit.match)(norm, fit.options) == "it normalises over (3, 4), expected one dimension"


def test_without_a_gate_upstream_runs() -> None:
    norm = next(m for m in build("mamba2", torch.float32).modules() if type(m).__name__ == "MambaRMSNormGated")
    adapter = adapted(MAMBA_NORM, None)
    x = torch.randn(2, 3, norm.weight.numel())
    assert torch.equal(adapter(norm, x), norm(x))


class MLP(torch.nn.Module):
    """As llama's, with an activation of choice."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.gate_proj = self.up_proj = self.down_proj = torch.nn.Identity()
        self.act_fn = ACT2FN[act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("declared", fits.GATED)
@pytest.mark.parametrize("actual", [*fits.GATED, "gelu_new", "relu", "gelu_fast"])
def test_activation_is_compared_bit_by_bit(declared: str, actual: str) -> None:
    reason = match_gated_mlp(MLP(actual), fits.gated_mlp(act=declared).options)
    assert (reason is None) == (declared == actual), reason


NAMED = {  # model: class, fit
    "llama4": ("Llama4TextMLP", fits.gated_mlp(act="silu", act_fn="activation_fn")),
    "lfm2": ("Lfm2MLP", fits.gated_mlp(act="silu", gate="w1", up="w3", down="w2", act_fn=None)),
}


@pytest.mark.parametrize("model", NAMED)
def test_gated_mlps_with_other_names(model: str) -> None:
    cls, fit = NAMED[model]
    upstream = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    configs = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    config = (configs.Llama4TextConfig if model == "llama4" else configs.Lfm2Config)(**SMALL)
    module = getattr(upstream, cls)(config)
    assert load(fit.match)(module, fit.options) is None
    patched = adapted(fit)
    x = torch.randn(3, 32)
    assert torch.equal(patched(module, x), module(x))
    swapped = {**fit.options, "gate": fit.options.get("up", "up_proj"), "up": fit.options.get("gate", "gate_proj")}
    assert "does not compute silu_mul" in load(fit.match)(module, swapped)
    with pytest.raises(ValueError, match="takes no other names"):
        fits.gated_mlp(act="silu", multipliers=True, act_fn=None)


FURTHER = {  # class: model, its config, what suits it
    "SeedOssMLP": ("seed_oss", "SeedOssConfig", 'gated_mlp(act="silu", residual="residual_dropout")'),
    "T5GemmaMLP": ("t5gemma", "T5GemmaModuleConfig", 'gated_mlp(act="gelu_pytorch_tanh", dropout="dropout")'),
    "MiniMaxM3VLDenseMLP": ("minimax_m3_vl", "MiniMaxM3VLTextConfig", "clamped_mlp()"),
}


def with_more(cls: str) -> tuple[Any, Fit]:
    """An MLP that does more than multiply, in training, and the fit that suits it."""
    model, config, _ = FURTHER[cls]
    made = getattr(importlib.import_module(f"transformers.models.{model}.configuration_{model}"), config)(**SMALL)
    made.dropout_rate = 0.3
    torch.manual_seed(0)
    module = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), cls)(made).train()
    return module, recognise_module(module)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cls", FURTHER)
def test_mlps_with_dropout_or_a_clamp(cls: str, training: bool) -> None:
    module, fit = with_more(cls)
    assert as_source(module.train(training)) == f"fits.{FURTHER[cls][2]}"
    patched = adapted(fit)
    inputs = 40 * torch.randn(2, 3, 32)  # as far as a limit of 7
    results = []
    for forward in (type(module).forward, patched):
        x = inputs.clone().requires_grad_()
        torch.manual_seed(1)
        y = forward(module, x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])))
    for found, expected in zip(*reversed(results), strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("how", [{"factor": 2}, {"training": True}], ids=["probability", "mode"])
def test_a_dropout_that_the_attribute_and_the_mode_do_not_decide_is_refused(how: dict[str, Any]) -> None:
    class Other(type(with_more("SeedOssMLP")[0])):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
            return torch.nn.functional.dropout(
                y, p=how.get("factor", 1) * self.residual_dropout, training=how.get("training", self.training)
            )

    module, fit = with_more("SeedOssMLP")
    module.__class__ = Other
    reason = load(fit.match)(module, fit.options)
    assert reason == "its forward does not end with a dropout of probability residual_dropout, in training alone"
    assert load(fit.match)(MLP("silu"), fit.options) == "it has no residual_dropout"


@pytest.mark.parametrize("affine", [True, False])
def test_norms_of_torch_with_and_without_parameters(affine: bool) -> None:
    assert match_layer_norm(torch.nn.LayerNorm(8, elementwise_affine=affine), fits.layer_norm().options) is None
    plain = torch.nn.RMSNorm(8, eps=1e-6, elementwise_affine=affine)
    assert match_rms_norm(plain, fits.rms_norm(cast="fp32-weight", eps="eps").options) is None


def test_layer_norm_under_autocast_keeps_the_dtype_of_upstream(device: str) -> None:
    norm = torch.nn.LayerNorm(16, device=device)
    x = torch.randn(3, 16, device=device).bfloat16()
    patched = adapted(fits.layer_norm())
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert patched(norm, x).dtype == norm(x).dtype


def test_layer_norm_1p_under_autocast_keeps_the_bits_of_upstream(device: str) -> None:
    upstream = importlib.import_module("transformers.models.nemotron.modeling_nemotron")
    norm, x = upstream.NemotronLayerNorm1P(16).to(device), torch.randn(3, 16, device=device)
    patched = adapted(fits.layer_norm_1p())
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        found, expected = patched(norm, x), norm(x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_clamped_experts_with_halves_and_other_names() -> None:
    upstream = importlib.import_module("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")
    configs = importlib.import_module("transformers.models.minimax_m3_vl.configuration_minimax_m3_vl")
    module = upstream.MiniMaxM3VLExperts(configs.MiniMaxM3VLTextConfig(**SMALL | EXPERTS))
    fit = fits.clamped_experts(layout="gate_up", alpha="swiglu_alpha", limit="swiglu_limit")
    op = load(registry().op(fit.op).reference)
    patched = load(fit.adapter)(type(module), op, **fit.options)["_apply_gate"]
    assert load(fit.match)(module, fit.options) is None
    x = 6 * torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(patched(module, x.to(dtype)), module._apply_gate(x.to(dtype)))
    assert load(fit.match)(module, fits.clamped_experts(limit="swiglu_limit", alpha="swiglu_alpha").options) is not None
