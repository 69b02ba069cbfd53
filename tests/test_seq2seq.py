"""The head seam where a decoder's inputs are the labels shifted by one, so that upstream does not shift them again."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import liger
from liger.testing.models import expect_equal_step

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import sweep
import tiny_models

FUSED = [
    "canary",
    "cohere_asr",
    "florence2",
    "moonshine",
    "moonshine_streaming",
    "pp_formulanet",
    "t5gemma",
    "t5gemma2",
]
REFUSED = {
    "bart": "its forward does not call self.loss_function",
    "whisper": "its forward does not call self.loss_function",
    "t5": "its forward does not call self.loss_function",
    "dia": "it has no output embeddings that tell which layer makes its logits: real logits",
    "git": "its forward changes the labels before the loss function",  # a decoder alone, which cuts them
}


def moonshine_streaming() -> Any:
    """Of its default config transformers makes no model: one of a checkpoint says ``num_key_value_heads``."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = {**sizes, "num_key_value_heads": 2, "head_dim": 16, "sliding_windows": [[4, 4]]}
    config = transformers.MoonshineStreamingConfig(
        **sizes, num_key_value_heads=2, head_dim=16, vocab_size=96, decoder_start_token_id=1, encoder_config=encoder
    )
    return transformers.MoonshineStreamingForConditionalGeneration(config).train()


def build(model_type: str) -> Any:
    torch.manual_seed(0)
    if model_type == "moonshine_streaming":
        return moonshine_streaming()
    return tiny_models.make(model_type, tiny_models.types()[model_type][1])


def batch(model: Any) -> dict[str, torch.Tensor]:
    inputs = sweep._runs(copy.deepcopy(model))[1]
    assert inputs is not None
    return inputs


def head(model: Any) -> Any:
    (row,) = (row for row in liger.plan(model).rows if row.cls == type(model).__name__)
    return row


@pytest.mark.parametrize("model_type", FUSED)
def test_loss_and_gradients(model_type: str, device: str) -> None:
    plain = build(model_type)
    inputs = {name: value.to(device) for name, value in batch(plain).items()}
    plain.to(device)
    patched = copy.deepcopy(plain)
    liger.autopatch(patched, only="linear_cross_entropy")
    assert liger.supports(patched, "fused_loss")
    for more in ({}, {"num_items_in_batch": 7}):
        assert expect_equal_step(plain, patched, **inputs, **more).logits is None


@pytest.mark.parametrize("model_type", ["canary", "t5gemma"])
@pytest.mark.parametrize("logits", ["none", "full"])
def test_token_accuracy_compares_with_the_token_at_its_place(model_type: str, logits: str) -> None:
    model = build(model_type).eval()
    inputs = batch(model)
    inputs["decoder_input_ids"] = inputs["labels"].clamp(min=0)
    with torch.no_grad():
        inputs["labels"] = model(**inputs).logits.argmax(-1)  # all right but for those below
        inputs["labels"][:, :3], inputs["labels"][:, 3:6] = -100, 0
        liger.autopatch(model, only="linear_cross_entropy")
        found = model(**inputs, logits=logits, return_token_accuracy=True).token_accuracy
    assert float(found) == pytest.approx(9 / 12)


def test_shift_labels_of_the_caller() -> None:
    """Canary's forward takes them in place of labels; a masked loss, T5Gemma's, ignores them."""
    for model_type, counts in (("canary", True), ("t5gemma", False)):
        plain = build(model_type)
        inputs, patched = batch(plain), copy.deepcopy(plain)
        liger.autopatch(patched, only="linear_cross_entropy")
        given = inputs["labels"].roll(1, -1)
        out = expect_equal_step(plain, patched, **inputs, shift_labels=given)
        without = expect_equal_step(plain, patched, **inputs)
        assert bool(out.loss == without.loss) != counts


@pytest.mark.parametrize("model_type", REFUSED)
def test_others_are_refused_with_the_reason(model_type: str) -> None:
    row = head(build(model_type))
    assert (row.status, row.reason) == ("refused", REFUSED[model_type])
