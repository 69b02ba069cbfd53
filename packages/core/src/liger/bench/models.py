"""Sizes of well-known models, by the names that transformers' configs have."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIELDS = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
MODELS: dict[str, tuple[int, ...]] = {
    "gemma-2-2b": (2304, 9216, 256000, 8, 4, 256),
    "gemma-2-9b": (3584, 14336, 256000, 16, 8, 256),
    "gemma-3-1b": (1152, 6912, 262144, 4, 1, 256),
    "llama-3-8b": (4096, 14336, 128256, 32, 8, 128),
    "llama-3-70b": (8192, 28672, 128256, 64, 8, 128),
    "llama-3.2-1b": (2048, 8192, 128256, 32, 8, 64),
    "mistral-7b-v0.3": (4096, 14336, 32768, 32, 8, 128),
    "phi-3-mini": (3072, 8192, 32064, 32, 32, 96),
    "qwen2.5-7b": (3584, 18944, 152064, 28, 4, 128),
    "qwen3-8b": (4096, 12288, 151936, 32, 8, 128),
    "smollm2-135m": (576, 1536, 49152, 9, 3, 64),
}
"""In the order of FIELDS."""


def config(model: str) -> dict[str, int]:
    """Sizes by field of a model known by name, or of a config.json, a folder that holds one included.

    Raises:
        ValueError: the name is unknown and no such file exists, or the file is no config.
    """
    if model in MODELS:
        return dict(zip(FIELDS, MODELS[model], strict=True))
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{model!r} is no config.json and no known model; known: {', '.join(MODELS)}")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds {type(read).__name__}, expected a model's config")
    text = read.get("text_config") or read
    if not isinstance(text, dict):
        raise ValueError(f"{path} holds {type(text).__name__} as text_config, expected a model's config")
    return _completed(text)


def called(model: str) -> str:
    """What to call the results of a model: the known name, or that of the folder of its config.json."""
    path = Path(os.path.abspath(model))  # links are not followed: in a cache config.json is one, to a file of no name
    if model in MODELS or path.is_dir():
        return path.name
    return path.parent.name if path.name == "config.json" else path.stem


def _completed(read: Mapping[str, Any]) -> dict[str, int]:
    """Integers alone, with what transformers takes for a field that is left out."""
    found = {key: value for key, value in read.items() if type(value) is int}
    heads = found.get("num_attention_heads")
    if heads:
        found.setdefault("num_key_value_heads", heads)
        if "hidden_size" in found:
            found.setdefault("head_dim", found["hidden_size"] // heads)
    return found


def dimensions(op: str, wanted: Mapping[str, str], sizes: Mapping[str, int], model: str) -> dict[str, int]:
    """The op's dimensions in the model.

    Args:
        op: name of the op, for the message.
        wanted: ``Op.model``.
        sizes: of the model by field, "tokens" included.
        model: name of the model, for the message.

    Raises:
        ValueError: the model's config has no such field, or it is no size.
    """
    for dimension, field in wanted.items():
        if field not in sizes:
            raise ValueError(f"{op} takes {dimension} from {field!r}, which {model} does not have: {sorted(sizes)}")
        if sizes[field] < 1:
            raise ValueError(
                f"{op} takes {dimension} from {field!r}, which is {sizes[field]} in {model}, expected >= 1"
            )
    return {dimension: sizes[field] for dimension, field in wanted.items()}
