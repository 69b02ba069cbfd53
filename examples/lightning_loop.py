"""Lightning: `python examples/lightning_loop.py [checkpoint]`. Needs lightning."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from text import model, rows
from torch.utils.data import DataLoader

import liger


class CausalLM(LightningModule):
    """Trains a causal LM, patched unless ``patch`` is False."""

    def __init__(self, net: Any, patch: bool = True) -> None:
        super().__init__()
        self.net, self.patch, self.losses = net, patch, list[float]()

    def configure_model(self) -> None:
        """Called before the strategy wraps the model: the place to patch. It may be called more than once."""
        if self.patch and not liger.is_patched(self.net):
            self.report = liger.autopatch(self.net)

    def on_train_start(self) -> None:
        """Show what was patched."""
        if self.patch and self.trainer.is_global_zero:
            print(self.report)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        """The loss of one batch."""
        loss: torch.Tensor = self.net(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.net.parameters(), lr=3e-3)


def train(module: CausalLM) -> list[float]:
    """Train 8 steps and return the loss of each."""
    seed_everything(0, verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(max_steps=8, default_root_dir=folder, devices=1, **quiet)
        trainer.fit(module.train(), DataLoader(rows(64), batch_size=8))  # type: ignore[arg-type]
    return module.losses


def main(checkpoint: str | None = None) -> list[float]:
    """Train, and return the loss of each step."""
    return train(CausalLM(model(checkpoint)))


if __name__ == "__main__":
    main(*sys.argv[1:])
