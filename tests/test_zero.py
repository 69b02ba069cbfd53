"""DeepSpeed ZeRO: parameters that are there only while their module runs.

With a stand-in everywhere; with DeepSpeed's own engine on two processes where it is installed (`nox -s zero`).
"""

import importlib.util
import os
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import liger
from liger.errors import WrongOrder
from liger.testing import count_ops
from liger.testing.models import Pair, expect_close, expect_close_gradients, expect_equal_step, find, step
from liger.testing.ranks import Rank, run_ranks

pytestmark = pytest.mark.xdist_group("zero")
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


# -- A stand-in --------------------------------------------------------------------------------------------------------
class Elsewhere:
    """Keeps parameters away from a model, as ZeRO-3 does: empty, with ``ds_shape``, but while their module computes.

    They come back in a hook before the forward and in one on what it returns; what reads them at any other time, or
    beside the module's call, finds nothing.
    """

    def __init__(self, model):
        self.kept = {}
        for parameter in model.parameters():
            self.kept[parameter] = parameter.data
            parameter.ds_shape = parameter.shape
            parameter.register_post_accumulate_grad_hook(self.release)
            self.release(parameter)

    def engine(self, model):
        """As ``deepspeed.initialize``: from here on the model can run."""
        for module in model.modules():
            own = list(module.parameters(recurse=False))
            before, after = self.hooks(own)
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)

    def hooks(self, own):
        def gather(*args):
            for parameter in own:
                parameter.data = self.kept[parameter]

        def after(module, args, out):
            for tensor in out if isinstance(out, tuple) else (out,):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(gather)
            for parameter in own:
                self.release(parameter)

        for hook in (gather, after):
            hook.__module__ = "deepspeed.runtime.zero.parameter_offload"
        return gather, after

    def release(self, parameter):
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


@pytest.fixture
def pair(device):
    return Pair(find("llama"), device)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("order", ["before", "between"])
def test_parameters_that_are_elsewhere(pair, order, tied):
    """Patched before they go, or as after ``zero.Init``, where ``from_pretrained`` leaves a model."""
    plain, model = (pair.plain(tie_word_embeddings=tied) for _ in range(2))
    if order == "before":
        liger.autopatch(model, strict=True)
    elsewhere = Elsewhere(model)
    if order == "between":
        liger.autopatch(model, strict=True)
    elsewhere.engine(model)
    assert not any(parameter.numel() for parameter in model.parameters())
    with count_ops() as counts:
        out = expect_equal_step(plain, model, **pair.batch())
    assert out.logits is None and sum(counts.values()) == 10
    assert not any(parameter.numel() for parameter in model.parameters())


def test_patching_what_the_engine_runs_is_refused(pair):
    model = pair.plain()
    Elsewhere(model).engine(model)
    with pytest.raises(WrongOrder, match=r"the model has hooks of DeepSpeed ZeRO-3: patch before deepspeed.initialize"):
        liger.autopatch(model)


def test_marked_before_construction_is_refused_at_the_first_forward(pair):
    marks = liger.autopatch("llama")
    model = pair.plain()
    marks.revert()
    Elsewhere(model).engine(model)
    with pytest.raises(WrongOrder, match="patch before deepspeed.initialize"):
        model(**pair.batch())


def test_verify_is_deferred(pair):
    model = pair.plain()
    Elsewhere(model)
    report = liger.plan(model, verify=True)
    assert {row.status for row in report.rows} == {"deferred"}


def test_an_empty_head_is_named():
    hidden, target = torch.randn(3, 8), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="linear_cross_entropy: weight has shape .* not gathered"):
        liger.ops.linear_cross_entropy(hidden, torch.empty(0, 8), target)


# -- DeepSpeed's own ---------------------------------------------------------------------------------------------------
def engine(rank: Rank, stage, order="before", init=False):
    """One step through an engine: the loss and every gradient of one process."""
    if rank.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.utils import safe_get_full_grad

    deepspeed.init_distributed("gloo" if rank.device == "cpu" else "nccl")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    pair = Pair(find("llama"), rank.device)
    plain, model, batch = pair.plain(), pair.plain(), pair.batch(rows=4)
    loss, wanted, _ = step(plain, **batch)
    if init:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = AutoModelForCausalLM.from_config(model.config).train()
        for name, parameter in model.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if rank.rank == 0:
                    parameter.data.copy_(plain.get_parameter(name))
    if order == "before":
        liger.autopatch(model, strict=True)
    run, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    if order == "after" and stage == 3:
        with pytest.raises(WrongOrder, match="patch before deepspeed.initialize"):
            liger.autopatch(run)
        return
    if order == "after":
        liger.autopatch(run, strict=True)
    with count_ops() as counts:
        out = run(**{name: t.chunk(2)[rank.rank] for name, t in batch.items()})
        run.backward(out.loss)
    assert out.logits is None and sum(counts.values()) == 10
    found = {name: safe_get_full_grad(parameter) for name, parameter in run.module.named_parameters()}
    expect_close_gradients(found, wanted, "the gradient")
    total = out.loss.detach().clone()
    torch.distributed.all_reduce(total)
    expect_close(total / 2, loss, "the loss")


def recipe(rank: Rank):
    """The one of docs/distributed.md, after the block that all of them begin with."""
    if rank.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
        text = (Path(__file__).resolve().parent.parent / "docs" / "distributed.md").read_text(encoding="utf-8")
        first, *more = re.findall(r"(?m)^```python\n([\s\S]*?)^```$", text)
        (code,) = [block for block in more if block.startswith("# needs 2 processes, and DeepSpeed\n")]
        exec(compile(first + code, "distributed.md", "exec"), {})


CASES = {
    "recipe": recipe,
    "stage 2, patched before": lambda rank: engine(rank, 2),
    "stage 2, patched after": lambda rank: engine(rank, 2, "after"),
    "stage 3, patched before": lambda rank: engine(rank, 3),
    "stage 3, patched after zero.Init": lambda rank: engine(rank, 3, init=True),
    "stage 3, patched after": lambda rank: engine(rank, 3, "after"),
}


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    if not HAS_DEEPSPEED:
        pytest.skip("needs deepspeed: nox -s zero")
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_deepspeed(name, found):
    found.of(name)


@pytest.mark.gpu(2)
def test_deepspeed_on_gpus(tmp_path):
    pytest.importorskip("deepspeed")
    found = run_ranks(__file__, tmp_path, device="cuda")
    for name in CASES:
        found.of(name)
