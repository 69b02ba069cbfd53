"""transformers' Trainer: `python examples/trainer.py [checkpoint]`. Needs liger-compat and accelerate."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from text import model, rows
from transformers import Trainer, TrainerCallback, TrainingArguments

import liger_kernel


class ShowReport(TrainerCallback):
    """Print what was patched when training starts."""

    def on_train_begin(self, *arguments: Any, **objects: Any) -> None:
        """Called by the Trainer, which has patched its model by then."""
        print(liger_kernel.last_report())


def main(checkpoint: str | None = None) -> list[float]:
    """Train, and return the loss of each step."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_liger_kernel=True,
            liger_kernel_config={"rope": True, "rms_norm": True, "swiglu": True, "fused_linear_cross_entropy": True},
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=8,
            learning_rate=3e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model(checkpoint), arguments, train_dataset=rows(64), callbacks=[ShowReport()])
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(*sys.argv[1:])
