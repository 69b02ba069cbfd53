"""What the examples train: a model, and English text from Python's own documentation."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

TOKENS = 64


def model(checkpoint: str | None = None) -> Any:
    """A checkpoint, or a Llama of 0.2 million parameters that reads bytes."""
    if checkpoint:
        return AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=256, **sizes))


def rows(number: int) -> list[dict[str, torch.Tensor]]:
    """Pieces of TOKENS bytes."""
    text = " ".join(topics[name] for name in sorted(topics)).encode()
    pieces = torch.frombuffer(bytearray(text[: number * TOKENS]), dtype=torch.uint8).long().view(number, TOKENS)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]
