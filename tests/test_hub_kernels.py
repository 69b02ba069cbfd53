"""Models whose forwards the package kernels has replaced (`use_kernels=True`, `kernelize`), before patching and after.

transformers marks its classes and functions for it when it finds a version that suits it; the fixture does the same
with the version that is installed. Nothing is fetched: the layers are defined here.
"""

import copy
import subprocess
import sys

import pytest
import torch
from kernels import Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_forward_from_hub, use_kernel_mapping
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

import liger
from liger import swap
from liger.testing import count_ops
from liger.testing.models import Pair, expect_equal_step, expect_unchanged, find, snapshot, step

MARKED = {LlamaRMSNorm: "RMSNorm", SiLUActivation: "SiLU", torch.nn.Linear: "Linear"}


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Classes and the rotary function as transformers has them where kernels is installed; rotary is one object."""
    for cls, name in MARKED.items():
        monkeypatch.setattr(cls, "kernel_layer_name", None, raising=False)
        monkeypatch.setattr(cls, "kernel_condition", None, raising=False)
        replace_kernel_forward_from_hub(cls, name)
    rotary = use_kernel_forward_from_hub("rotary_pos_emb")(modeling_llama.apply_rotary_pos_emb)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotary)
    monkeypatch.setattr(LlamaAttention, "_kernel_funcs", {"apply_rotary_pos_emb": rotary}, raising=False)
    monkeypatch.setattr(swap, "_classes", {})  # classes made before this would not know that they are marked


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


class HubRMSNorm(torch.nn.Module):
    """A layer of a kernel repository: as upstream's, but that it multiplies by 1.5."""

    def forward(self, hidden_states):
        scale = torch.rsqrt(hidden_states.float().square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * 1.5 * (hidden_states.float() * scale).to(hidden_states.dtype)


class HubRotary(torch.nn.Module):
    """It turns nothing."""

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        return q, k


class HubLinear(torch.nn.Module):
    def forward(self, input):  # noqa: A002  (the name of what it replaces)
        return torch.nn.functional.linear(input, self.weight, self.bias) * 2


class Repository:
    """A mapping may hold any object that loads a layer."""

    def __init__(self, layer):
        self.layer = layer

    def load(self):
        return self.layer


def with_kernels(model, **layers):
    """What `use_kernels=True` does to a model, also again at each `train()` and `eval()`."""
    mapping = {name: {model.device.type: Repository(layer)} for name, layer in layers.items()}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        return kernelize(model, mode=Mode.TRAINING, device=model.device.type)


def test_a_model_that_nobody_kernelized(pair):
    plain, model = pair.plain(), pair.plain()
    report = liger.autopatch(model, strict=True)
    with count_ops() as counts:
        expect_equal_step(plain, model, **pair.batch())
    assert sum(counts.values()) == len(report.applied) == 10


@pytest.mark.parametrize("again", [False, True])
def test_where_there_was_no_kernel_everything_is_patched_and_put_back(pair, again):
    plain, model = pair.plain(), with_kernels(pair.plain())
    assert "forward" in model.model.norm.__dict__  # its class's own
    step(model, **pair.batch())
    before = snapshot(model, identities=not again)  # kernelizing binds what is not patched anew
    report = liger.autopatch(model, strict=True)
    if again:
        with_kernels(model)
    with count_ops() as counts:
        expect_equal_step(plain, model, **pair.batch())
    assert sum(counts.values()) == len(report.applied) == 10
    twin = copy.deepcopy(model)
    liger.unpatch(model)
    expect_unchanged(before, snapshot(model, identities=not again), "undo")
    liger.unpatch(twin)
    assert not liger.is_patched(twin)
    expect_equal_step(plain, twin, 0.0, **pair.batch())


def test_a_hub_kernel_stays_and_is_named(pair):
    plain, model = (with_kernels(pair.plain(), RMSNorm=HubRMSNorm) for _ in range(2))
    report = liger.autopatch(model)
    rows = report.skipped
    assert {row.op for row in rows} == {"rms_norm"} and len(rows) == 5
    assert "HubRMSNorm.forward, a kernel of the package kernels" in rows[0].reason and "use_kernels" in rows[0].reason
    expect_equal_step(plain, model, **pair.batch())
    liger.unpatch(model)
    expect_equal_step(plain, model, 0.0, **pair.batch())


def test_a_hub_kernel_of_the_head_stays_and_is_named(pair):
    plain, model = (with_kernels(pair.plain(), Linear=HubLinear) for _ in range(2))
    (row,) = liger.autopatch(model).skipped
    assert row.op == "linear_cross_entropy" and "HubLinear.forward" in row.reason
    assert expect_equal_step(plain, model, **pair.batch()).logits is not None


def test_a_hub_kernel_of_the_rotary_function_stays_and_is_named(pair):
    plain, model = (with_kernels(pair.plain(), rotary_pos_emb=HubRotary) for _ in range(2))
    rows = liger.autopatch(model).skipped
    assert {row.op for row in rows} == {"rope"}
    assert "apply_rotary_pos_emb is" in rows[0].reason and "HubRotary.forward, a kernel of the" in rows[0].reason
    expect_equal_step(plain, model, **pair.batch())


def test_kernelized_after_patching_ours_stay(pair):
    """train() and eval() of a model with use_kernels=True kernelize again."""
    plain, model = pair.both()
    with_kernels(model, RMSNorm=HubRMSNorm, rotary_pos_emb=HubRotary)
    assert "forward" not in model.model.norm.__dict__
    with count_ops() as counts:
        step(model, **pair.batch())
    assert sum(counts.values()) == 10
    liger.unpatch(model)
    del modeling_llama.apply_rotary_pos_emb.forward
    expect_equal_step(plain, model, 0.0, **pair.batch())


PROGRAM = """
import importlib.metadata, sys
installed = importlib.metadata.version
importlib.metadata.version = lambda name: "{version}" if name == "kernels" else installed(name)

from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

import liger
from liger.testing.models import Pair, expect_equal_step, find

pair = Pair(find("llama"), "cpu")
pair.plain().save_pretrained(sys.argv[1])
plain = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], use_kernels=True)
assert model.use_kernels and "forward" in model.model.norm.__dict__
assert not hasattr(modeling_llama.apply_rotary_pos_emb, "__code__") and not liger.plan(model).skipped
liger.autopatch(model, strict=True)
for each in (plain, model):
    each.eval()
    each.train()
expect_equal_step(plain, model, **pair.batch())
liger.unpatch(model)
expect_equal_step(plain, model, 0.0, **pair.batch())
print("done")
"""


def test_from_pretrained_with_use_kernels(tmp_path):
    """transformers' own way, where it takes the installed kernels for one that suits it."""
    from transformers.utils.import_utils import KERNELS_MIN_VERSION

    program = PROGRAM.format(version=KERNELS_MIN_VERSION)
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout.endswith("done\n"), run.stderr[-2000:]
