"""When a fit accepts a module, and which logits a forward returns."""

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.modeling_outputs import CausalLMOutputWithPast

from liger_hf import fits
from liger_hf.layers import match_gated_mlp, match_rms_norm, readable
from liger_hf.output import drop_logits, wanted
from liger_hf.plugin import liger_unwrap_module


class MLP(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.gate_proj = self.up_proj = self.down_proj = torch.nn.Identity()
        self.act_fn = ACT2FN[act]


@pytest.mark.parametrize("declared", fits.GATED)
@pytest.mark.parametrize("actual", [*fits.GATED, "gelu_new", "relu", "gelu_fast"])
def test_activation_is_compared_bit_by_bit(declared, actual):
    reason = match_gated_mlp(MLP(actual), fits.gated_mlp(act=declared).options)
    assert (reason is None) == (declared == actual), reason


def test_missing_parts_are_named():
    assert match_gated_mlp(torch.nn.Identity(), {}) == "it has no gate_proj, up_proj, down_proj, act_fn"
    options = fits.rms_norm(cast="llama").options
    assert match_rms_norm(torch.nn.LayerNorm(4), options) == "it has no float attribute 'variance_epsilon'"
    norm = torch.nn.RMSNorm(4, eps=1e-6, elementwise_affine=False)
    assert match_rms_norm(norm, fits.rms_norm(cast="llama", eps="eps").options) == "it has no one-dimensional weight"


def test_readable_weights():
    class Quantised(torch.Tensor):
        pass

    assert readable(torch.nn.Parameter(torch.ones(2)), "weight") is None
    assert "Quantised, not a plain parameter" in readable(torch.ones(2).as_subclass(Quantised), "weight")
    assert "torch.int8" in readable(torch.ones(2, dtype=torch.int8), "weight")


def test_unknown_names_in_fits():
    with pytest.raises(ValueError, match="act is 'tanh', expected one of silu"):
        fits.gated_mlp(act="tanh")
    with pytest.raises(ValueError, match="layout is 'pairs', expected one of half, interleaved, deinterleave"):
        fits.rope("pairs")
    with pytest.raises(ValueError, match="tables is 'half', expected one of column, pair, first half"):
        fits.rope(tables="half")
    with pytest.raises(ValueError, match="cast is 'float', expected one of none, output, fp32"):
        fits.rope(cast="float")


@pytest.mark.parametrize(
    "kwargs, labels, expected",
    [
        ({}, True, (None, False)),
        ({}, False, (None, False)),
        ({"skip_logits": True}, True, ("none", False)),
        ({"skip_logits": False}, True, ("full", False)),
        ({"skip_logits": None}, True, (None, False)),
        ({"logits": "lazy", "return_token_accuracy": True}, True, ("lazy", True)),
        ({"logits": "none", "skip_logits": True}, True, ("none", False)),
        ({"logits": "full", "skip_logits": True}, True, ValueError),
        ({"logits": "none"}, False, ValueError),
        ({"skip_logits": True}, False, ValueError),
        ({"return_token_accuracy": True}, False, ValueError),
        ({"logits": "all"}, True, ValueError),
    ],
)
def test_wanted(kwargs, labels, expected):
    kwargs = {**kwargs, "other": 1}
    if expected is ValueError:
        with pytest.raises(ValueError, match=r"logits|labels"):
            wanted(kwargs, labels)
    else:
        assert wanted(kwargs, labels) == expected and kwargs == {"other": 1}


def test_drop_logits():
    out = CausalLMOutputWithPast(loss=torch.ones(()), logits=torch.ones(2), hidden_states=(torch.ones(1),))
    kept = drop_logits(out)
    assert list(kept) == ["loss", "hidden_states"] and kept.logits is None and type(kept) is type(out)
    assert drop_logits(("loss", "logits", "cache")) == ("loss", None, "cache")


def test_hook_liger_unwrap_module():
    inner = torch.nn.Linear(2, 2)
    assert liger_unwrap_module(torch.compile(inner)) == [inner]
    assert liger_unwrap_module(inner) is None
