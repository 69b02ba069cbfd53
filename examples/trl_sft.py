"""TRL's SFTTrainer on a LoRA adapter: `python examples/trl_sft.py [checkpoint]`. Needs liger-compat, trl and peft."""

from __future__ import annotations

import sys
import tempfile

from datasets import Dataset
from peft import LoraConfig
from text import model, rows
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import liger_kernel


def tokenizer() -> PreTrainedTokenizerFast:
    """A stand-in: the rows hold numbers already."""
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 10}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def main(checkpoint: str | None = None) -> list[float]:
    """Train the adapter, and return the loss of each step."""
    data = Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in rows(64)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            folder,
            use_liger_kernel=True,  # TRL keeps its own head and loss: Liger patches the layers
            per_device_train_batch_size=8,
            max_steps=8,
            learning_rate=1e-2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
        )
        adapter = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], modules_to_save=["embed_tokens"])
        trainer = SFTTrainer(
            model(checkpoint), args=arguments, train_dataset=data, processing_class=tokenizer(), peft_config=adapter
        )
        trainer.train()
    print(liger_kernel.last_report())
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(*sys.argv[1:])
