"""What lies between head and loss, found by running upstream's forward."""

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from liger.errors import PatchRefused
from liger_hf import stub, transform

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}, (1.0, None)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 8, "final_logit_softcapping": 3.0}, (1.0, 3.0)),
    "gemma2-off": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 8, "final_logit_softcapping": None}, (1.0, None)),
    "cohere": (CohereForCausalLM, CohereConfig, {"logit_scale": 0.25}, (0.25, None)),
    "granite": (GraniteForCausalLM, GraniteConfig, {"logits_scaling": 8.0}, (0.125, None)),
    "read from the backbone": (FalconH1ForCausalLM, FalconH1Config, {**MAMBA, "lm_head_multiplier": 0.3}, (0.3, None)),
    "another prefix": (Llama4ForCausalLM, Llama4TextConfig, {"head_dim": 8, "moe_layers": []}, (1.0, None)),
}


def make(name):
    cls, config, more, _ = MODELS[name]
    return cls(config(**SMALL, **more))


@pytest.mark.parametrize("name", MODELS)
def test_found(name):
    found = transform.find(make(name), 97, 32)
    scale, softcap = MODELS[name][3]
    assert found.scale == pytest.approx(scale, rel=1e-5)
    assert found.softcap == (None if softcap is None else pytest.approx(softcap, rel=1e-3))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_model_is_not_touched(device):
    model = make("llama").to(device).eval()
    fired = []
    for module in model.modules():
        module.register_forward_hook(lambda *a: fired.append(1))
    before = {n: dict(m.__dict__) for n, m in model.named_modules()}
    transform.find(model, 97, 32)
    assert not fired and not model.training
    for name, module in model.named_modules():
        assert module.__dict__.keys() == before[name].keys()
        assert all(module.__dict__[k] is v for k, v in before[name].items())


class Odd(LlamaForCausalLM):
    def forward(self, input_ids=None, labels=None, use_cache=None, **kwargs):
        hidden = self.model(input_ids=input_ids).last_hidden_state
        return self.finish(hidden, labels)


def odd(finish):
    return type("Odd", (Odd,), {"finish": finish})(LlamaConfig(**SMALL))


@pytest.mark.parametrize(
    "finish, reason",
    [
        (lambda s, h, y: s.loss_function(s.lm_head(h) + 1, y, 97), "neither a scale nor a soft cap"),
        (lambda s, h, y: s.loss_function(s.lm_head(h).relu(), y, 97), "neither a scale nor a soft cap"),
        (lambda s, h, y: s.loss_function(s.lm_head(h)[..., :90], y, 97), "reshapes the logits"),
        (lambda s, h, y: s.loss_function(s.lm_head(h), y + 1, 97), "changes the labels"),
        (lambda s, h, y: s.loss_function(s.lm_head(h), y, 90), "vocab_size=90"),
        (lambda s, h, y: s.loss_function(s.lm_head(h) + s.lm_head(h), y, 97), "calls the head with shapes"),
        (lambda s, h, y: s.lm_head(h), "does not call self.loss_function"),
        (lambda s, h, y: s.nothing, "failed with AttributeError"),
    ],
)
def test_anything_else_is_refused_with_the_reason(finish, reason):
    with pytest.raises(PatchRefused, match=reason):
        transform.find(odd(finish), 97, 32)


def test_logits_from_hidden_states_are_upstreams():
    model = make("gemma2")
    ids = torch.arange(5)[None]
    with torch.no_grad():
        expected = model(ids).logits
        hidden = model.model(ids).last_hidden_state
        assert torch.equal(stub.run(model, hidden).logits, expected)
