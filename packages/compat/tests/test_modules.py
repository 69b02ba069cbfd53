"""Modules: the peer's constructors and parameter names, so that code and checkpoints of it work."""

import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import FalconH1Config, GemmaConfig, LlamaConfig, Phi3Config
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1MLP
from transformers.models.gemma.modeling_gemma import GemmaMLP, GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.phi3.modeling_phi3 import Phi3MLP

from liger.testing.models import RELATIVE
from liger_kernel import _chunked_modules, _functions, _losses, _said
from liger_kernel import transformers as lk
from liger_kernel.transformers import geglu, group_norm, rms_norm, swiglu
from liger_kernel.transformers.model import loss_utils
from liger_kernel.transformers.model.loss_utils import LigerForCausalLMLoss, unpack_cross_entropy_result

H = 32
SMALL = {"hidden_size": H, "intermediate_size": 48}
FALCON = FalconH1Config(**SMALL, mlp_bias=True, mlp_multipliers=[0.5, 2.0])
PAIRS = {
    "rms": (lk.LigerRMSNorm(H), LlamaRMSNorm(H)),
    "rms gemma": (rms_norm.LigerRMSNormForGemma(H, 1e-6), GemmaRMSNorm(H)),
    "rms gemma3": (rms_norm.LigerRMSNormForGemma3(dim=H), GemmaRMSNorm(H)),
    "swiglu": (lk.LigerSwiGLUMLP(LlamaConfig(**SMALL)), LlamaMLP(LlamaConfig(**SMALL))),
    "mlp": (lk.LigerMLP(LlamaConfig(**SMALL)), LlamaMLP(LlamaConfig(**SMALL))),
    "expert": (lk.LigerQwen3MoeSwiGLUMLP(LlamaConfig(hidden_size=H), 48), LlamaMLP(LlamaConfig(**SMALL))),
    "hunyuan": (swiglu.LigerHunyuanV1SwiGLUMLP(LlamaConfig(**SMALL), layer_idx=1), LlamaMLP(LlamaConfig(**SMALL))),
    "phi3": (lk.LigerPhi3SwiGLUMLP(Phi3Config(**SMALL, pad_token_id=0)), Phi3MLP(Phi3Config(**SMALL, pad_token_id=0))),
    "falcon": (lk.LigerFalconH1SwiGLUMLP(FALCON), FalconH1MLP(FALCON)),
    "falcon mlp": (lk.LigerFalconH1MLP(FALCON), FalconH1MLP(FALCON)),
    "geglu": (lk.LigerGEGLUMLP(GemmaConfig(**SMALL)), GemmaMLP(GemmaConfig(**SMALL))),
    "layer norm": (lk.LigerLayerNorm(H), torch.nn.LayerNorm(H, eps=1e-6)),
    "relu": (lk.LigerReLUSquared(), lambda x: F.relu(x).square()),
    "softmax": (lk.LigerSoftmax(), torch.nn.Softmax(-1)),
}


@pytest.mark.parametrize(("ours", "upstream"), PAIRS.values(), ids=PAIRS)
def test_a_checkpoint_of_upstream_gives_upstreams_numbers(ours, upstream):
    if isinstance(upstream, torch.nn.Module):
        state = {name: torch.randn_like(value) for name, value in upstream.state_dict().items()}
        upstream.load_state_dict(state)
        ours.load_state_dict(state)
    x = torch.randn(2, 3, H)
    results = []
    for module in (ours, upstream):
        leaf = x.clone().requires_grad_()
        out = module(leaf)
        out.square().sum().backward()
        weights = [p.grad for p in module.parameters()] if isinstance(module, torch.nn.Module) else []
        results.append([out.detach(), leaf.grad, *weights])
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= RELATIVE * b.norm()


def test_other_modules():
    x = torch.randn(2, 8, H)
    config = SimpleNamespace(hidden_size=H, intermediate_size=48, hidden_act="silu")
    out, total = lk.LigerFusedAddRMSNorm(H)(x, x)
    assert torch.equal(total, 2 * x)
    torch.testing.assert_close(out, F.rms_norm(2 * x, (H,), eps=1e-6))
    modulated = lk.LigerModulatedRMSNorm(H)(x, torch.zeros(H))
    torch.testing.assert_close(modulated, F.rms_norm(x, (H,), eps=1e-6))
    torch.testing.assert_close(group_norm.LigerGroupNorm(8, 4)(x), F.group_norm(x, 4, eps=1e-6))
    torch.testing.assert_close(lk.LigerDyT(H)(x), torch.tanh(0.5 * x))
    torch.testing.assert_close(lk.LigerSparsemax(1)(x).sum(1), torch.ones(2, H))
    assert [tuple(p.shape) for p in lk.LigerPolyNorm().parameters()] == [(3,), ()]
    assert lk.LigerPolyNorm()(x).shape == x.shape
    moe = lk.LigerBlockSparseTop2MLP(config)
    torch.testing.assert_close(moe(x), moe.w2(F.silu(moe.w1(x)) * moe.w3(x)))
    for norm in (rms_norm.LigerRMSNormForOlmo2, rms_norm.LigerRMSNormForGlm4):
        torch.testing.assert_close(norm(H)(x), F.rms_norm(x, (H,), eps=1e-6))
    assert rms_norm.LigerRMSNormForGemma4(H, with_scale=False).weight is None


def test_gemma4_is_twice_as_wide_where_layers_share():
    config = SimpleNamespace(**SMALL, use_double_wide_mlp=True, num_hidden_layers=4, num_kv_shared_layers=2)
    assert [geglu.LigerGEGLUMLPForGemma4(config, i).intermediate_size for i in (None, 1, 2)] == [48, 48, 96]


def test_an_activation_that_is_not_silu_raises():
    for cls in (lk.LigerSwiGLUMLP, lk.LigerPhi3SwiGLUMLP, lk.LigerBlockSparseTop2MLP):
        with pytest.raises(ValueError, match=f"{cls.__name__}: hidden_act is 'gelu', expected silu"):
            cls(LlamaConfig(**SMALL, hidden_act="gelu"))
    with pytest.raises(ValueError, match="init_fn is 'twos'"):
        lk.LigerRMSNorm(H, init_fn="twos")


def test_arguments_of_modules_that_do_nothing_are_said_once():
    for make, name in (
        (lambda given: lk.LigerLayerNorm(H, bias=given), "LigerLayerNorm: bias"),
        (lambda given: group_norm.LigerGroupNorm(8, 4, bias=given), "LigerGroupNorm: bias"),
        (
            lambda given: swiglu.LigerHunyuanV1SwiGLUMLP(LlamaConfig(**SMALL), is_shared_mlp=given),
            "LigerHunyuanV1SwiGLUMLP: is_shared_mlp",
        ),
    ):
        with pytest.warns(_said.CompatWarning, match=f"{name}=True does nothing"):
            make(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(True)
            make(False)


LOSSES = [
    cls
    for module in (_losses, _chunked_modules)
    for cls in vars(module).values()
    if cls in _losses._Loss.__subclasses__()
]


@pytest.mark.parametrize("cls", LOSSES)
def test_options_of_a_loss_are_its_attributes(cls):
    loss = cls()
    for name, parameter in inspect.signature(cls).parameters.items():
        assert getattr(loss, name) == parameter.default
        assert f"{name}={parameter.default!r}" in repr(loss)


def test_an_option_of_a_loss_can_be_changed():
    loss, logits = lk.LigerCrossEntropyLoss(weight=torch.rand(11)), torch.randn(6, 11)
    labels = torch.tensor([1, 2, 0, 4, 5, 0])
    loss.ignore_index = 0
    torch.testing.assert_close(loss(logits, labels), F.cross_entropy(logits, labels, loss.weight, ignore_index=0))


def test_losses_as_modules():
    logits, hidden, head = torch.randn(6, 11), torch.randn(6, H), torch.randn(11, H)
    labels = torch.tensor([1, 2, -100, 4, 5, 0])
    plain, linear = F.cross_entropy(logits, labels), F.cross_entropy(hidden @ head.T, labels)
    torch.testing.assert_close(lk.LigerCrossEntropyLoss()(logits, labels), plain)
    torch.testing.assert_close(lk.LigerFusedLinearCrossEntropyLoss()(head, hidden, labels), linear)
    out = lk.LigerFusedLinearCrossEntropyLoss(return_token_accuracy=True)(head, hidden, labels)
    torch.testing.assert_close(out.loss, linear)
    q, p = logits.log_softmax(-1), torch.randn(6, 11).log_softmax(-1)
    expected = F.kl_div(q, p, log_target=True, reduction="batchmean")
    torch.testing.assert_close(lk.LigerJSD(beta=0.0)(q, p), expected)
    torch.testing.assert_close(lk.LigerKLDIVLoss(reduction="batchmean")(q, p.exp()), expected)
    torch.testing.assert_close(lk.LigerTVDLoss()(q.exp(), p.exp()), 0.5 * (q.exp() - p.exp()).abs().sum(-1).mean())
    zero = lk.LigerFusedLinearJSD()(hidden, head, hidden, head, labels)
    torch.testing.assert_close(zero, torch.zeros(()))
    with pytest.raises(ValueError, match="reduction is 'mean'"):
        lk.vocab_parallel_cross_entropy.LigerVocabParallelCrossEntropy(reduction="mean")


@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)])
def test_the_loss_of_a_causal_lm_shifts_once_and_divides(items):
    hidden, head = torch.randn(2, 5, H), torch.randn(11, H)
    labels = torch.randint(0, 11, (2, 5))
    logits = (hidden @ head.T)[:, :-1].reshape(-1, 11)
    expected = F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="mean" if items is None else "sum")
    loss = LigerForCausalLMLoss(hidden, head, labels, H, num_items_in_batch=items, attention_mask=None)
    torch.testing.assert_close(loss, expected if items is None else expected / 7)
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    out = LigerForCausalLMLoss(
        hidden, head, None, H, items, shift_labels=shifted, return_token_accuracy=True, lse_square_scale=0.1
    )
    assert out.loss > loss and 0 <= out.token_accuracy <= 1
    assert unpack_cross_entropy_result(out) == (out.loss, None, out.token_accuracy, None)
    assert unpack_cross_entropy_result(loss) == (loss, None, None, None)


@pytest.mark.parametrize("items", [7, torch.tensor(7)])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_number_of_items_divides_the_z_loss_too(items, scaled):
    hidden, head, labels = torch.randn(5, H), torch.randn(11, H), torch.tensor([1, 2, -100, 4, 5])
    out = loss_utils.fixed_fused_linear_cross_entropy(
        hidden, head, labels, items, lse_square_scale=0.1, return_z_loss=True, use_token_scaling=scaled
    )
    logits = (hidden @ head.T)[labels != -100]
    kept = labels[labels != -100]
    share = logits.softmax(-1).gather(1, kept[:, None])[:, 0] if scaled else 1.0
    z_loss = (0.1 * share * logits.logsumexp(-1).square()).sum() / 7
    torch.testing.assert_close(out.z_loss, z_loss)
    torch.testing.assert_close(out.loss, (share * F.cross_entropy(logits, kept, reduction="none")).sum() / 7 + z_loss)


def test_what_the_loss_of_a_causal_lm_cannot_take():
    hidden, head, labels = torch.randn(2, 5, H), torch.randn(11, H), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected labels or shift_labels"):
        LigerForCausalLMLoss(hidden, head, None, H)
    with pytest.raises(TypeError, match="reduction='none' was given, but it follows from num_items_in_batch"):
        LigerForCausalLMLoss(hidden, head, labels, H, reduction="none")


X = torch.ones(2, H)
IN_PLACE = {
    "LigerRMSNorm": lambda **more: lk.LigerRMSNorm(H, **more),
    "LigerRMSNormForGemma3": lambda **more: rms_norm.LigerRMSNormForGemma3(H, **more),
    "LigerRMSNormForGemma4": lambda **more: rms_norm.LigerRMSNormForGemma4(H, **more),
    "LigerFusedAddRMSNorm": lambda **more: lk.LigerFusedAddRMSNorm(H, **more),
    "LigerModulatedRMSNorm": lambda **more: lk.LigerModulatedRMSNorm(H, **more),
    "LigerPolyNorm": lk.LigerPolyNorm,
    "fused_add_rms_norm": lambda **more: _functions.fused_add_rms_norm(
        *[torch.ones(2, H)] * 2, torch.ones(H), 1e-6, **more
    ),
    "silu_mul_packed": lambda **more: _functions.silu_mul_packed(X, **more),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_asking_for_what_is_in_place_is_said_once(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IN_PLACE[name]()
        IN_PLACE[name](in_place=False)
    with pytest.warns(_said.CompatWarning, match=f"{name}: in_place=True does nothing: nothing of the caller's is"):
        IN_PLACE[name](in_place=True)
