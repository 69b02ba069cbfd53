"""Code as it is written for the peer, unchanged: what its readers copy, and what training frameworks call."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import liger
import liger_kernel
from liger.testing.models import RELATIVE, Pair, find


@pytest.fixture
def checkpoint(tmp_path):
    Pair(find("llama"), "cpu").plain().save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture(autouse=True)
def undone():
    yield
    if report := liger_kernel.last_report():
        report.revert()


def batch():
    return Pair(find("llama"), "cpu").batch()


def losses(model, steps=3):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    found = []
    for _ in range(steps):
        loss = model(**batch()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    assert found[-1] < found[0]
    return torch.stack(found)


def same(actual, expected):
    assert (actual - expected).norm() <= RELATIVE * expected.norm()


def test_the_auto_class(checkpoint):
    from liger_kernel.transformers import AutoLigerKernelForCausalLM

    model = AutoLigerKernelForCausalLM.from_pretrained(checkpoint)
    same(losses(model.train()), losses(AutoModelForCausalLM.from_pretrained(checkpoint).train()))
    assert liger.is_patched(model)


def test_an_apply_function_then_loading(checkpoint):
    plain = losses(AutoModelForCausalLM.from_pretrained(checkpoint).train())
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(
        rope=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=True, rms_norm=True
    )
    model = AutoModelForCausalLM.from_pretrained(checkpoint).train()
    assert liger.is_patched(model)
    same(losses(model), plain)


def test_a_model_composed_of_modules():
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm

    class Model(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.embed, self.norm = torch.nn.Embedding(64, 32), norm
            self.head = torch.nn.Linear(32, 64)
            torch.nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    ids = torch.arange(12)
    ours, plain = (Model(norm) for norm in (LigerRMSNorm(32), torch.nn.RMSNorm(32, eps=1e-6)))
    plain.load_state_dict(ours.state_dict())
    loss = LigerFusedLinearCrossEntropyLoss()(ours.head.weight, ours.norm(ours.embed(ids)), ids, ours.head.bias)
    expected = F.cross_entropy(plain.head(plain.norm(plain.embed(ids))), ids)
    loss.backward()
    expected.backward()
    for a, b in (
        (loss.detach(), expected.detach()),
        *((p.grad, q.grad) for p, q in zip(ours.parameters(), plain.parameters(), strict=True)),
    ):
        same(a, b)


def test_a_chunked_loss():
    from liger_kernel.chunked_loss import LigerFusedLinearORPOLoss

    head = torch.nn.Linear(32, 64, bias=False)
    hidden, target = torch.randn(4, 6, 32, requires_grad=True), torch.randint(0, 64, (4, 6))
    loss, metrics = LigerFusedLinearORPOLoss()(head.weight, hidden, target)
    loss.backward()
    assert hidden.grad.abs().sum() > 0 and head.weight.grad.abs().sum() > 0 and len(metrics) == 9


@pytest.mark.parametrize("require_logits", [True, False])
def test_a_framework_that_asks_the_signature_before_it_loads(checkpoint, require_logits, tmp_path):
    """Flags by signature, then load, LoRA, Trainer."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama as apply_liger_kernel

    def trained():
        torch.manual_seed(0)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(checkpoint), LoraConfig(target_modules=["q_proj", "down_proj"])
        )
        rows = [{name: value[i % 2] for name, value in batch().items()} for i in range(6)]
        arguments = TrainingArguments(
            str(tmp_path / "run"), max_steps=3, optim="sgd", learning_rate=0.1, logging_steps=1, report_to=[],
            use_cpu=True, save_strategy="no", disable_tqdm=True, per_device_train_batch_size=2,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        log = [(step["loss"], step["grad_norm"]) for step in trainer.state.log_history if "loss" in step]
        return model, torch.tensor(log, dtype=torch.float64)

    _, expected = trained()
    kwargs = {}
    if require_logits and "fused_linear_cross_entropy" in inspect.signature(apply_liger_kernel).parameters:
        kwargs = {"fused_linear_cross_entropy": False, "cross_entropy": True}
    apply_liger_kernel(**kwargs)
    model, found = trained()
    same(found, expected)
    assert (model(**batch()).logits is None) != require_logits


def test_a_framework_that_reads_flags_from_a_file(checkpoint):
    """The function by model type, flags by signature; one setting stands for both activations."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    settings = {
        "rope": True,
        "rms_norm": True,
        "glu_activation": True,
        "layer_norm": None,
        "fused_linear_cross_entropy": True,
    }
    plain = losses(AutoModelForCausalLM.from_pretrained(checkpoint).train())
    function = MODEL_TYPE_TO_APPLY_LIGER_FN["llama"]
    wanted = {**settings, "geglu": settings["glu_activation"], "swiglu": settings["glu_activation"]}
    known = inspect.signature(function).parameters
    function(**{name: value for name, value in wanted.items() if name in known and value is not None})
    model = AutoModelForCausalLM.from_pretrained(checkpoint).train()
    same(losses(model), plain)
    assert model(**batch()).logits is None
