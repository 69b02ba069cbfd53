"""``liger plan``: what would be patched, from a config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def plan(
    target: Annotated[str, typer.Argument(help="A model directory, a hub id or a model_type.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what would be patched in a language model, from its config alone: no weights are read or made."""
    import liger

    report = liger.plan(meta_model(load_config(target)))
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))


def load_config(target: str) -> PretrainedConfig:
    """The config of a directory or hub id, or the default config of a model_type.

    Raises:
        ValueError: it is none of the three.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if target in CONFIG_MAPPING and not Path(target).is_dir():
        return CONFIG_MAPPING[target]()
    try:
        return AutoConfig.from_pretrained(target)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise ValueError(f"{target!r} is no model directory, reachable hub id or model_type: {error}") from error


KINDS = ("CausalLM", "ImageTextToText", "MultimodalLM", "SpeechSeq2Seq", "Seq2SeqLM")
"""Of language models, as transformers names its AutoModelFor classes."""


def meta_model(config: Any) -> Any:
    """The language model of a config on the meta device.

    Raises:
        ValueError: there is none for this kind of config.
    """
    import torch
    import transformers

    autos = [getattr(transformers, f"AutoModelFor{kind}", None) for kind in KINDS]
    for auto in autos:
        if auto is not None and type(config) in auto._model_mapping:
            with torch.device("meta"):
                return auto.from_config(config)
    raise ValueError(f"model_type {config.model_type!r} has no language model (tried AutoModelFor: {', '.join(KINDS)})")
