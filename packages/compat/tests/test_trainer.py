"""transformers' Trainer with ``use_liger_kernel=True``: losses of training and evaluation as without, and a report."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

import liger
import liger_kernel
from liger.testing import count_ops
from liger.testing.models import RELATIVE, Pair, find
from liger_kernel import _said

ROWS, TOKENS, VOCABULARY = 12, 13, 64
OPS = {
    "llama": {"rope", "rms_norm", "silu_mul", "linear_cross_entropy"},
    "qwen3_moe": {"rope", "rms_norm", "silu_mul", "silu_mul_packed", "linear_cross_entropy"},
}


@pytest.fixture(params=OPS)
def pair(request, device):
    return Pair(find(request.param), device)


def data():
    """Rows whose first tokens, a number of them that differs, have no label."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for i in range(ROWS):
        ids = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
        labels = ids.clone()
        labels[: i % 5] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def trainer(model, folder, metrics=None, **arguments):
    settings = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 0.1,
        "optim": "sgd",  # Adam divides a gradient that is nearly 0, and so its rounding, by itself
        "report_to": [],
        "use_cpu": next(model.parameters()).device.type == "cpu",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    args = TrainingArguments(str(folder), **{**settings, **arguments})
    return Trainer(model, args, train_dataset=data(), eval_dataset=data(), compute_metrics=metrics)


def trained(pair, folder, **arguments):
    """The loss and the norm of the gradients of each step, and the parameters at the end."""
    run = trainer(pair.plain(), folder, **arguments)
    run.train()
    log = [(step["loss"], step["grad_norm"]) for step in run.state.log_history if "loss" in step]
    return run, torch.tensor(log, dtype=torch.float64), dict(run.model.named_parameters())


def same(actual, expected):
    assert (actual - expected).norm() <= RELATIVE * expected.norm()


def test_training_has_the_same_losses_and_reports_what_it_patched(pair, tmp_path, caplog):
    with caplog.at_level("INFO", logger="liger"):
        run, ours, parameters = trained(pair, tmp_path, use_liger_kernel=True)
    report = liger_kernel.last_report()
    assert {row.op for row in report.applied} == OPS[pair.patch.model_type] and liger.is_patched(run.model)
    assert f"{type(run.model).__name__}: {report.summary()}" in caplog.text
    _, plain, expected = trained(pair, tmp_path)
    assert len(plain) == 4 and plain[0, 0] > plain[-1, 0]  # it learns, with sums over accumulated batches
    same(ours, plain)
    for name, parameter in parameters.items():
        same(parameter, expected[name])


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_a_config_of_flags(pair, tmp_path):
    flags = {"fused_linear_cross_entropy": False, "rope": False}
    _, ours, _ = trained(pair, tmp_path, use_liger_kernel=True, liger_kernel_config=flags)
    assert {row.op for row in liger_kernel.last_report().applied} == {"rms_norm", "silu_mul"}
    same(ours, trained(pair, tmp_path)[1])


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_a_config_with_flags_that_are_not_its_own(pair, tmp_path):
    with pytest.warns(_said.CompatWarning, match="geglu=True does nothing for model type 'llama'"):
        trained(pair, tmp_path, use_liger_kernel=True, liger_kernel_config={"geglu": True}, max_steps=1)
    with pytest.raises(TypeError, match="unknown flags ropes"):
        trained(pair, tmp_path, use_liger_kernel=True, liger_kernel_config={"ropes": True}, max_steps=1)


def accuracy(predicted):
    logits, labels = torch.from_numpy(predicted.predictions), torch.from_numpy(predicted.label_ids)
    kept = labels[:, 1:] != -100
    return {"accuracy": float((logits.argmax(-1)[:, :-1] == labels[:, 1:])[kept].float().mean())}


def evaluated(model, folder, metrics, use, evaluate=Trainer.evaluate):
    """What an evaluation after a step gives, and the ops that it calls."""
    run = trainer(model, folder, metrics, use_liger_kernel=use, max_steps=1)
    run.train()
    with count_ops() as calls:
        return evaluate(run), calls


@pytest.mark.parametrize("metrics", [None, accuracy], ids=["loss alone", "metrics"])
def test_evaluation(pair, tmp_path, metrics):
    results = []
    for use in (True, False):
        found, calls = evaluated(pair.plain(), tmp_path, metrics, use)
        results.append(torch.tensor([found["eval_loss"], found.get("eval_accuracy", 0.0)], dtype=torch.float64))
        # 3 batches: the Trainer asks for skip_logits where nobody wants the logits, and gets them where someone does
        fused = sum(number for (op, _), number in calls.items() if op == "linear_cross_entropy")
        assert fused == (3 if use and metrics is None else 0)
    same(*results)
    assert metrics is None or results[0][1] > 0


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
@pytest.mark.parametrize("alone", [True, False])
def test_prediction_loss_only(pair, tmp_path, alone):
    def evaluate(run):
        return run.evaluation_loop(run.get_eval_dataloader(), "evaluation", prediction_loss_only=alone)

    outputs = []
    for use in (True, False):
        out, calls = evaluated(pair.plain(), tmp_path, accuracy, use, evaluate)
        outputs.append(torch.tensor(out.metrics["eval_loss"], dtype=torch.float64))
        assert (out.predictions is None) == alone
        assert ("linear_cross_entropy" in {op for op, _ in calls}) == (use and alone)
    same(*outputs)


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
@pytest.mark.parametrize("head", ["no", "saved", "lora"])
def test_an_adapter(pair, tmp_path, head):
    targets = ["q_proj", "down_proj", *(["lm_head"] if head == "lora" else [])]
    config = LoraConfig(target_modules=targets, modules_to_save=["lm_head"] if head == "saved" else None)
    logs = []
    for use in (True, False):
        torch.manual_seed(0)
        run = trainer(get_peft_model(pair.plain(), config), tmp_path, use_liger_kernel=use)
        run.train()
        log = [(step["loss"], step["grad_norm"]) for step in run.state.log_history if "loss" in step]
        logs.append(torch.tensor(log, dtype=torch.float64))
    assert {row.op for row in liger_kernel.last_report().applied} == OPS["llama"]
    same(*logs)


@pytest.mark.parametrize("pair", ["llama"], indirect=True)
def test_prediction_without_labels_has_logits(pair, tmp_path):
    run, _, _ = trained(pair, tmp_path, use_liger_kernel=True, max_steps=1)
    predicted = run.predict([{"input_ids": row["input_ids"]} for row in data()[:4]])
    assert predicted.predictions.shape == (4, TOKENS, run.model.config.vocab_size)
