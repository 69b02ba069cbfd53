"""Which rotary functions of upstream the fits accept, and that the patched attention has upstream's bits."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import liger
import sweep
import tiny_models
from liger.declare import ModelPatch, load
from liger.errors import PatchRefused
from liger.registry import registry
from liger.testing import count_ops
from liger.testing.models import Pair
from liger_hf import fits
from liger_hf.attention import probe_attention
from liger_hf.recognise import recognise_module
from liger_hf.rope import _computes, as_upstream, match, rope

SMALL = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32,
    "num_hidden_layers": 1, "vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
MODELS = {  # model: attention class, changes of its config, fit
    "llama": ("LlamaAttention", {}, fits.rope()),
    "olmo2": ("Olmo2Attention", {}, fits.rope(cast="output")),
    "cohere": ("CohereAttention", {}, fits.rope("interleaved", cast="fp32")),
    "glm": ("GlmAttention", {}, fits.rope("interleaved", tables="first half")),
    "ernie4_5": ("Ernie4_5Attention", {}, fits.rope("interleaved", tables="first half", cast="fp32")),
    "gpt_oss": ("GptOssAttention", {}, fits.rope(tables="pair")),
    "deepseek_v3": (
        "DeepseekV3Attention",
        MLA,
        fits.rope("deinterleave", tables="first half", function="apply_rotary_pos_emb_interleave"),
    ),
}


def attention(model: str) -> torch.nn.Module:
    """The model's attention, small, in bf16."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    name, changes, _ = MODELS[model]
    cls = getattr(module, name)
    configs = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    config = getattr(configs, name.replace("Attention", "Config"))(**SMALL | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    module = cls(config, layer_idx=0).bfloat16()
    for parameter in module.parameters():  # some are left as the memory was
        torch.nn.init.normal_(parameter, std=0.1)
    return module


@pytest.mark.parametrize("model", MODELS)
def test_each_family_is_accepted_by_its_own_fit_alone(model: str) -> None:
    module, mine = attention(model), MODELS[model][2]
    assert match(module, mine.options) is None
    for other, (_, _, fit) in MODELS.items():
        if fit.id != mine.id:
            options = {**fit.options, "function": mine.options["function"]}
            assert match(module, options) is not None, other


def test_the_last_columns_of_one_tensor() -> None:
    upstream = importlib.import_module("transformers.models.deepseek_v4.modeling_deepseek_v4").apply_rotary_pos_emb
    form = "interleaved", "pair", "fp32"
    assert _computes(upstream, *form, last=True) is None
    assert "does not rotate as layout='interleaved'" in str(_computes(upstream, *form, last=False))
    two = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    found = _computes(two, "half", "column", "none", last=True)
    assert found == "apply_rotary_pos_emb takes (q, k, cos, sin, unsqueeze_dim), expected (x, cos, sin, unsqueeze_dim)"


def test_fp32_tables_tell_olmo2_from_llama() -> None:
    """With tables of q's dtype both have the same bits; olmo2's tables are float32, and it rounds its result."""
    found = match(attention("olmo2"), fits.rope().options)
    assert found is not None and "torch.bfloat16 with torch.float32 tables differs" in found
    assert match(attention("llama"), fits.rope(cast="output").options) is not None


@pytest.mark.parametrize("model", MODELS)
def test_a_patched_attention_has_upstreams_bits(model: str) -> None:
    module, fit = attention(model), MODELS[model][2]
    op = load(registry().op("rope").public)
    patched = rope(type(module), op, **fit.options)["forward"]
    probe = load(fit.probe)(module, torch.Generator().manual_seed(0))
    hidden, *tables = probe.inputs
    wide = (
        [[t.float() for t in tables]] if fit.options["cast"] != "none" else []
    )  # else upstream's q would not fit its v
    for cos, sin in (tables, *wide):
        arguments = {"position_embeddings": (cos, sin), "attention_mask": None}
        expected, found = module(hidden, **arguments)[0], patched(module, hidden, **arguments)[0]
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_a_function_with_other_parameters_is_refused() -> None:
    module = attention("llama")
    assert probe_attention(module, torch.Generator()).inputs[1].shape == (1, 5, 8)
    found = match(module, {**fits.rope().options, "function": "repeat_kv"})
    assert found == "repeat_kv takes (hidden_states, n_rep), expected (q, k, cos, sin, unsqueeze_dim)"


def test_tables_without_a_batch() -> None:
    upstream = importlib.import_module("transformers.models.pixtral.modeling_pixtral").apply_rotary_pos_emb
    q, k, cos, sin = (torch.randn(shape) for shape in ((2, 4, 5, 8), (2, 4, 5, 8), (5, 8), (5, 8)))
    rotate = as_upstream(upstream, load(registry().op("rope").public), "half", "column", "none")
    for found, expected in zip(rotate(q, k, cos, sin, 0), upstream(q, k, cos, sin, 0), strict=True):
        assert torch.equal(found, expected)


VISION = fits.rope(cast="fp32", function="apply_rotary_pos_emb_vision")
TOWER = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}
FURTHER = {  # class: model, config class, changes of the config, fit, a fit that is refused and why
    "Llama4TextAttention": (
        "llama4", "Llama4TextConfig", {}, fits.rope_complex(),
        fits.rope_complex(unsqueeze_dim=1), "apply_rotary_emb failed on q, k and complex numbers: The size of",
    ),
    "Llama4VisionAttention": (
        "llama4", "Llama4VisionConfig", {"hidden_size": 32, "num_attention_heads": 4},
        fits.rope_complex(function="vision_apply_rotary_emb"),
        fits.rope_complex(function="reshape_for_broadcast"), "reshape_for_broadcast failed on q, k and complex numbers",
    ),
    "DeepseekV2Attention": (
        "deepseek_v2", "DeepseekV2Config", MLA, fits.rope_complex(unsqueeze_dim=1),
        fits.rope(function="apply_rotary_emb"), "apply_rotary_emb takes (xq, xk, freqs_cis)",
    ),
    "VisionAttention": (
        "qwen2_vl", "Qwen2VLVisionConfig", TOWER, VISION,
        fits.rope(function="apply_rotary_pos_emb_vision"), "does not rotate as layout='half', tables='column'",
    ),
    "Qwen3VLVisionAttention": (
        "qwen3_vl", "Qwen3VLVisionConfig", TOWER, VISION,
        fits.rope_complex(function="apply_rotary_pos_emb_vision"), "apply_rotary_pos_emb_vision failed on q, k and",
    ),
    "Qwen2VLAttention": (  # its tables are chosen by the rotary module, so the attention has plain ones
        "qwen2_vl", "Qwen2VLTextConfig", {}, fits.rope(),
        fits.rope(function="rotate"), "transformers.models.qwen2_vl.modeling_qwen2_vl has no function 'rotate'",
    ),
}  # fmt: skip


def further(name: str, dtype: torch.dtype) -> torch.nn.Module:
    """An attention of the table."""
    model, config, changes = FURTHER[name][:3]
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    configs = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    config = getattr(configs, config)(**(changes if "Vision" in config else SMALL | changes))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    cls = getattr(module, name)
    return (cls(config) if "Vision" in name else cls(config, layer_idx=0)).to(dtype)


# torch multiplies complex numbers with other roundings where a tensor is strided, as DeepSeek's float32 slices are
CASES = [(n, d) for n in FURTHER for d in (torch.float32, torch.bfloat16) if (n[:8], d) != ("Deepseek", torch.float32)]


@pytest.mark.parametrize("name, dtype", CASES)
def test_complex_numbers_and_vision_towers(name: str, dtype: torch.dtype) -> None:
    module, fit = further(name, dtype), FURTHER[name][3]
    assert load(fit.match)(module, fit.options) is None
    op = load(registry().op(fit.op).public)
    forward = load(fit.adapter)(type(module), op, **fit.options)["forward"]
    patched = type(name, (type(module),), {"forward": forward})
    probe = load(fit.probe)(module, torch.Generator().manual_seed(0))
    results = []
    for cls in (type(module), patched):
        module.__class__ = cls
        out = probe.run(module, *probe.inputs)
        results.append([out, *torch.autograd.grad(out, [probe.inputs[0], *module.parameters()], torch.ones_like(out))])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("name", FURTHER)
def test_another_form_of_rotation_is_refused(name: str) -> None:
    *_, wrong, reason = FURTHER[name]
    found = load(wrong.match)(further(name, torch.float32), wrong.options)
    assert found is not None and reason in found


# -- Layers without positional encoding --------------------------------------------------------------------------------
NOPE = {
    "smollm3": ("SmolLM3", {"no_rope_layers": [0, 1, 0, 1]}, {"SmolLM3Attention": fits.rope()}),
    "cohere2": (
        "Cohere2",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        {"Cohere2Attention": fits.rope("interleaved", cast="fp32")},
    ),
    "llama4_text": (
        "Llama4",
        {"no_rope_layers": [0, 1, 0, 1], "num_local_experts": 2, "intermediate_size_mlp": 32},
        {"Llama4TextAttention": fits.rope_complex()},
    ),
}


def layers(name: str, monkeypatch: pytest.MonkeyPatch, **changes: object) -> torch.nn.Module:
    """Four layers, the first and the third without positional encoding; their attention is declared."""
    prefix, config, declared = NOPE[name]
    folder = name.removesuffix("_text")
    patch = ModelPatch(
        model_type=name, module=f"transformers.models.{folder}.modeling_{folder}", fits=declared, head=None, mini=""
    )
    monkeypatch.setitem(registry().models, name, patch)
    monkeypatch.setitem(registry()._owners, ("model", name), ["tests"])
    kind = f"{prefix}TextConfig" if name.endswith("_text") else f"{prefix}Config"
    whole = {**SMALL, "num_hidden_layers": 4, **config, **changes}
    torch.manual_seed(0)
    transformers = importlib.import_module("transformers")
    return getattr(transformers, f"{prefix}ForCausalLM")(getattr(transformers, kind)(**whole)).train()


def step(model: torch.nn.Module) -> list[torch.Tensor]:
    """Logits and all gradients."""
    out = model(input_ids=torch.arange(14).view(2, 7), use_cache=False).logits
    return [out, *torch.autograd.grad(out.square().mean(), [p for p in model.parameters() if p.requires_grad])]


@pytest.mark.parametrize("name", NOPE)
def test_layers_without_positional_encoding_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = layers(name, monkeypatch)
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, prefer="reference", strict=True)
    assert [row.status for row in report.rows] == ["skipped", "applied"] * 2 and report.rows[0].idle
    assert report.rows[0].reason.startswith("its forward does not call apply_rotary_")
    with count_ops() as counts:
        found = step(patched)
    assert sum(counts.values()) == 2
    for f, e in zip(found, step(plain), strict=True):
        assert torch.equal(f, e)
    again = liger.plan(patched, prefer="reference", strict=True)
    assert [row.idle for row in again.rows] == [True, False] * 2


def test_a_class_that_never_rotates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers("smollm3", monkeypatch, no_rope_layers=[0] * 4)
    assert {row.status for row in liger.plan(model).rows} == {"refused"}
    with pytest.raises(PatchRefused, match="its forward does not call apply_rotary_pos_emb"):
        liger.plan(model, strict=True)


def rotate_tokens(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As vision towers do: heads behind tokens, and around them a batch (step3p7) or none."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return tuple(x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin for x in (q, k))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_one_row_of_tables_for_all_images_of_a_batch(lead: tuple[int, ...]) -> None:
    assert _computes(rotate_tokens, "half", "column", "none") is None
    ours = as_upstream(rotate_tokens, load(registry().op("rope").reference), "half", "column", "none")
    q, k, cos, sin = (torch.randn(shape) for shape in ((*lead, 3, 4, 8), (*lead, 3, 2, 8), (3, 8), (3, 8)))
    for found, expected in zip(ours(q, k, cos, sin), rotate_tokens(q, k, cos, sin), strict=True):
        assert torch.equal(found, expected)


def test_a_gradient_that_upstream_cuts_is_no_fit() -> None:
    def cut(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rotate_tokens(q, k.detach() + 0 * k, cos, sin)

    assert "a gradient of its forward" in str(_computes(cut, "half", "column", "none"))


def test_queries_and_keys_one_at_a_time() -> None:
    """gemma3n: layers 2 and 3 take keys and values of layers before them and rotate queries alone."""
    patch = registry().models["gemma3n_text"]
    model = Pair(patch, "cpu").plain()
    report = liger.plan(model, verify=True)
    assert {row.path.split(".")[2] for row in report.applied if row.op == "rope"} == set("0123")
    (left,) = report.skipped
    assert left.cls == "Gemma3nTextMLP" and left.idle and "activation_sparsity is 0.5" in left.reason
    function = importlib.import_module(patch.module).apply_rotary_pos_emb
    rotate = as_upstream(function, load(registry().op("rope").public), "half", "column", "none")
    x, cos, sin = (torch.randn(shape) for shape in ((2, 5, 4, 8), (2, 5, 8), (2, 5, 8)))
    assert torch.equal(rotate(x, cos, sin, unsqueeze_dim=2), function(x, cos, sin, unsqueeze_dim=2))


@pytest.mark.parametrize(
    "does",
    [
        lambda q, k, cos: q.shape[-2] == 1,
        lambda q, k, cos: q.shape[1] == k.shape[1],
        lambda q, k, cos: cos.shape[0] == 1,
        lambda q, k, cos: q.dtype == torch.float16,
        lambda q, k, cos: not torch.is_grad_enabled(),
    ],
    ids=["one token", "as many keys", "one row of tables", "float16", "no gradients"],
)
def test_another_rotation_in_one_use_alone(does: Callable[..., bool]) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as upstream

    def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return upstream(q, k, 0.9 * cos if does(q, k, cos) else cos, sin, unsqueeze_dim)

    assert "does not rotate as layout='half'" in str(_computes(rotate, "half", "column", "none"))


@pytest.mark.parametrize("model", ["qwen4_exp", "mistral_large4"])
def test_a_call_without_keys_is_upstreams(model: str) -> None:
    """Both rotate queries alone somewhere, and return a tensor or a pair."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    pairs = model == "mistral_large4"
    upstream = module.apply_rotary_pos_emb_interleave if pairs else module.apply_rotary_pos_emb
    form = ("deinterleave", "first half") if pairs else ("half", "column")
    assert _computes(upstream, *form, "none") is None
    ours = as_upstream(upstream, load(registry().op("rope").reference), *form, "none")
    q, cos, sin = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    found, expected = (f(q, None, cos=cos, sin=sin, unsqueeze_dim=2) for f in (ours, upstream))
    if pairs:
        assert found[1] is None and expected[1] is None
        found, expected = found[0], expected[0]
    assert torch.equal(found, expected)


OTHER_FORWARDS = {  # model type: class of an attention that takes or holds something else than llama's
    "gpt_neox_japanese": "GPTNeoXJapaneseAttention",
    "falcon": "FalconAttention",
    "deepseek_v32": "DeepseekV32Indexer",
    "t5gemma2": "T5Gemma2MergedAttention",
}


@pytest.mark.parametrize("model_type", OTHER_FORWARDS)
def test_attentions_that_ask_for_more_are_rotated_too(model_type: str) -> None:
    plain = tiny_models.make(model_type, tiny_models.types()[model_type][1])
    patched = copy.deepcopy(plain)
    report = liger.autopatch(patched, only="rope", prefer="reference")
    assert OTHER_FORWARDS[model_type] in {row.cls for row in report.applied}
    inputs = dict(tiny_models.batches(plain))["text"]
    with count_ops() as counts:
        error, where = sweep.largest_error(sweep._step(plain, inputs), sweep._step(patched, inputs))
    assert error <= 1e-5, where
    assert counts["rope", "reference"] > 0


def test_of_an_attention_that_cannot_be_tried_that_is_the_reason() -> None:
    """Not a cast order that its function does not have: another fit got less far."""

    class Other(attention("llama").__class__):  # type: ignore[misc]
        def forward(self, hidden_states: torch.Tensor, position_embeddings: Any, needed: Any, **kwargs: Any) -> Any:
            cos, sin = position_embeddings
            q = self.q_proj(hidden_states).unflatten(-1, (4, -1)).transpose(1, 2) + needed.missing
            return apply_rotary_pos_emb(q, q, cos, sin)[0]

    module = attention("llama")
    module.__class__ = Other
    reason = recognise_module(module)
    assert isinstance(reason, str)
    assert "rope[half]: a probe call of its forward failed with AttributeError" in reason
