"""When a fit accepts a module, and which logits a forward returns."""

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from liger_hf import fits
from liger_hf.mlps import match_gated_mlp
from liger_hf.norms import match_cohere_norm, match_rms_norm
from liger_hf.output import drop_logits, wanted
from liger_hf.plugin import liger_unwrap_module
from liger_hf.standin import readable


def test_missing_parts_are_named():
    nothing, silu = torch.nn.Identity(), fits.gated_mlp(act="silu").options
    assert match_gated_mlp(nothing, silu) == "it has no gate_proj, up_proj, down_proj, act_fn"
    options = fits.gated_mlp(act="silu", gate="w1", up="w3", down="w2", act_fn=None).options
    assert match_gated_mlp(nothing, options) == "it has no w1, w3, w2"
    options = fits.rms_norm(cast="llama").options
    assert match_rms_norm(torch.nn.LayerNorm(4), options) == "it has no float attribute 'variance_epsilon'"
    norm = torch.nn.RMSNorm((2, 4), eps=1e-6)
    reason = match_rms_norm(norm, fits.rms_norm(cast="llama", eps="eps").options)
    assert reason == "its weight has shape (2, 4), expected one dimension"
    assert match_cohere_norm(torch.nn.Identity(), fits.cohere_norm().options) == "it has no weight"


def test_readable_weights():
    class Quantised(torch.Tensor):
        pass

    assert readable(torch.nn.Parameter(torch.ones(2)), "weight") is None
    assert "Quantised, not a plain parameter" in readable(torch.ones(2).as_subclass(Quantised), "weight")
    assert "torch.int8" in readable(torch.ones(2, dtype=torch.int8), "weight")


def test_unknown_names_in_fits():
    with pytest.raises(ValueError, match="act is 'tanh', expected one of silu"):
        fits.gated_mlp(act="tanh")
    with pytest.raises(ValueError, match="multipliers=True takes no other names, but they are .*'w1'"):
        fits.gated_mlp(act="silu", multipliers=True, gate="w1")
    with pytest.raises(ValueError, match="packed_mlp: layout is 'split', expected one of gate_up, up_gate"):
        fits.packed_mlp(act="silu", layout="split")
    with pytest.raises(ValueError, match="mlp: act is 'silu', expected relu2"):
        fits.mlp(act="silu")
    with pytest.raises(ValueError, match="groups is 'n' and group_size 'size', expected one of them"):
        fits.gated_rms_norm(norm_before_gate=True, groups="n", group_size="size")
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
        ({"return_predicted_tokens": False}, True, (None, False)),
        ({"return_predicted_tokens": True}, True, ValueError),
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
