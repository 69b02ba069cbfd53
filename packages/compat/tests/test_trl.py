"""TRL's trainers with ``use_liger_kernel=True``: they switch the fused loss off and keep their own head."""

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed")

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import liger
import liger_kernel
from liger.testing.models import RELATIVE, Pair, find

WORDS = ["[PAD]", "[EOS]", *(f"w{i}" for i in range(40))]
SETTINGS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 3,
    "logging_steps": 1,
    "learning_rate": 0.1,
    "optim": "sgd",
    "report_to": [],
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def tokenizer():
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]")


def text(seed, length=8):
    drawn = torch.randint(2, len(WORDS), (length,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[i] for i in drawn)


TEXTS = Dataset.from_list([{"text": text(i, 5 + i % 4)} for i in range(12)])
PREFERENCES = Dataset.from_list(
    [{"prompt": text(i), "chosen": " " + text(100 + i), "rejected": " " + text(200 + i)} for i in range(12)]
)
PROMPTS = PREFERENCES.select_columns("prompt")
SAMPLING = {
    "num_generations": 4,
    "max_completion_length": 6,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 2,
}


def plain(device):
    return Pair(find("llama"), device).plain()


def reward(completions, **columns):
    return [float(len(set(words.split()))) for words in completions]


ADAPTER = {"peft_config": lambda _: LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)}
TRAINERS = {
    "sft": (SFTTrainer, SFTConfig, TEXTS, {}, {}),
    "sft lora": (SFTTrainer, SFTConfig, TEXTS, {}, ADAPTER),
    "dpo lora": (DPOTrainer, DPOConfig, PREFERENCES, {}, ADAPTER),
    "dpo": (DPOTrainer, DPOConfig, PREFERENCES, {}, {"ref_model": plain}),
    "grpo": (GRPOTrainer, GRPOConfig, PROMPTS, SAMPLING, {"reward_funcs": lambda _: reward}),
}


@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.filterwarnings("ignore:.*use_liger_kernel=True.*:FutureWarning")
def test_the_losses_are_those_without(kind, tmp_path, device):
    trainer, config, rows, settings, more = TRAINERS[kind]
    logs = []
    for use in (True, False):
        model, given = plain(device), {name: make(device) for name, make in more.items()}
        torch.manual_seed(5)  # of adapters
        args = config(str(tmp_path), use_liger_kernel=use, use_cpu=device == "cpu", **{**SETTINGS, **settings})
        run = trainer(model, args=args, train_dataset=rows, processing_class=tokenizer(), **given)
        run.train()
        log = [(step["loss"], step["grad_norm"]) for step in run.state.log_history if "loss" in step]
        logs.append(torch.tensor(log, dtype=torch.float64))
        assert liger.is_patched(model) == use
    assert {row.op for row in liger_kernel.last_report().applied} == {"rope", "rms_norm", "silu_mul"}
    assert len(logs[0]) == 3 and (logs[0] - logs[1]).norm() <= RELATIVE * logs[1].norm()
    assert logs[1][:, 1].min() > 0  # every step has a gradient, rewards that differ included
