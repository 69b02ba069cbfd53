"""The model and the text that a worker trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from liger.demo.offer import SMOLLM2, smollm2_file

if TYPE_CHECKING:
    from torch import Tensor

WIDE = 32_768
"""Vocabulary of a mini. Its own would be so small that the loss needs next to no memory, patched or not."""
WINDOWS = 8
"""Stretches of text that the fine-tune goes round in, so that there is something to learn in 24 steps."""


def load(subject: str) -> tuple[Any, Tensor]:
    """Return the model in fp32 and the ids of a long English text."""
    return _smollm2() if subject == SMOLLM2 else _mini(subject)


def _smollm2() -> tuple[Any, Tensor]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_file()
    assert file is not None, "offer.choose checks this"
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return model, torch.tensor(tokenizer(english(40_000))["input_ids"])


def _mini(model_type: str) -> tuple[Any, Tensor]:
    import torch
    from transformers import AutoModelForCausalLM

    from liger.declare import load as resolve
    from liger.registry import registry

    config = resolve(registry().models[model_type].mini)()
    config.vocab_size = WIDE
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model, torch.frombuffer(bytearray(english(40_000).encode()), dtype=torch.uint8).long()


def english(characters: int) -> str:
    """Prose that every Python brings: the topics of `help()`."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))[:characters]


def window(ids: Tensor, index: int, tokens: int) -> Tensor:
    """The stretch of text for step `index`, shape (1, tokens)."""
    start = index % WINDOWS * tokens % (len(ids) - tokens)
    return ids[start : start + tokens].unsqueeze(0)


@contextmanager
def only_the_head(model: Any) -> Iterator[Any]:
    """Freeze the body and train the head alone, with gradient checkpointing; yields the head's weight.

    A head that shares the embedding's weight gets its own copy, as when a new head is put on a frozen body. When the
    block ends, the model is again what it was.
    """
    import torch

    head, body = model.get_output_embeddings(), list(model.parameters())
    shared = head.weight
    for parameter in body:
        parameter.requires_grad_(False)
    head.weight = torch.nn.Parameter(shared.detach().clone())
    checkpointing(model, True)
    try:
        yield head.weight
    finally:
        head.weight = shared
        for parameter in body:
            parameter.requires_grad_(True)
        checkpointing(model, False)
        model.disable_input_require_grads()  # turning checkpointing on had enabled it


def checkpointing(model: Any, on: bool) -> None:
    """Turn gradient checkpointing on or off; transformers gave the methods new names in 5.24."""
    verb = "enable" if on else "disable"
    names = (f"activation_checkpointing_{verb}", f"gradient_checkpointing_{verb}")
    next(getattr(model, name) for name in names if hasattr(model, name))()
