"""``liger plan`` and ``liger analyze``: what would be patched, and what a model is made of, from a config alone."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Target = Annotated[str, typer.Argument(help="A model directory, a hub id, a model_type or a class of transformers.")]
DTYPES = ("bfloat16", "float16", "float32")
"""Of an estimate."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan(
    target: Target,
    as_json: Json = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Estimate a training step's memory with this many rows.")
    ] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="And this many tokens in each.")] = None,
    dtype: Annotated[str, typer.Option(help=f"dtype of the estimate: {', '.join(DTYPES)}.")] = DTYPES[0],
) -> None:
    """Show what would be patched in a language model, from its config alone: no weights are read or made."""
    import liger

    if (batch is None) != (seq is None):
        raise ValueError("an estimate needs both --batch and --seq")
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}, expected {', '.join(DTYPES)}")
    report = liger.plan(model_of(target))
    if not as_json:
        typer.echo(report)
    found = None if batch is None or seq is None else _estimate(target, batch, seq, dtype)
    if as_json:
        typer.echo(json.dumps(report.to_dict() | ({"memory": found.to_dict()} if found else {}), indent=2))
    elif found:
        typer.echo(f"\n{found}")


def _estimate(target: str, batch: int, seq: int, dtype: str) -> Any:
    import torch

    from liger_hf.memory import estimate

    return estimate(lambda: model_of(target), batch, seq, getattr(torch, dtype))


def analyze(
    target: Target,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Compare with the package that declares it: what to change, 1 if anything.")
    ] = False,
) -> None:
    """Show what a model type is made of; each answer has its evidence, a line of upstream's source or a probe."""
    if as_json and markdown:
        raise ValueError("--json and --markdown are two formats: take one of them")
    if diff:
        from liger_hf.change_plan import change_plan

        found: Any = change_plan(target)
    else:
        from liger_hf.analyze import analyze as ask

        found = ask(target)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.markdown() if markdown else str(found))
    raise typer.Exit(int(diff and bool(found.changes)))


validate = typer.Typer(no_args_is_help=True)


@validate.callback()
def _validate() -> None:  # without it typer would take the only command's name away
    """Check a package as a whole."""


@validate.command()
def model(
    model_type: Annotated[str, typer.Argument(help="Declared by an installed package.")],
    allow_tolerance: Annotated[
        bool, typer.Option("--allow-tolerance", help="Skip rows that only miss a tolerance; note them as known issues.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where the mini is trained.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Import, patch, undo and train the mini of a model type, and lint its package; exit status 1 if a row fails."""
    from liger.errors import LigerError

    if find_spec("pytest") is None:
        raise LigerError(
            "liger validate trains with liger.testing, which needs pytest: pip install 'liger-core[testing]'"
        )
    from liger_hf.validate import validate as run

    found = run(model_type, device, allow_tolerance)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    raise typer.Exit(int(found.failed))


def load_config(target: str) -> PretrainedConfig:
    """The config of a directory or hub id, or the default config of a model_type or class.

    Raises:
        ValueError: it is none of these.
    """
    return find_config(target)[0]


def find_config(target: str) -> tuple[PretrainedConfig, type | None]:
    """What ``load_config`` returns, and the model's class where that was named.

    Raises:
        ValueError: the target is no directory, hub id, model_type or class.
    """
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if target in CONFIG_MAPPING and not Path(target).is_dir():
        return CONFIG_MAPPING[target](), None
    cls = getattr(transformers, target, None) if target.isidentifier() else None
    if isinstance(cls, type) and getattr(cls, "config_class", None) is not None:
        return cls.config_class(), cls  # type: ignore[attr-defined]
    try:
        return AutoConfig.from_pretrained(target, trust_remote_code=False), None  # which else would ask on the terminal
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{target!r} is no model directory, reachable hub id, model_type or class of transformers: {error}"
        ) from error


def model_of(target: str) -> Any:
    """The model of a target on the meta device.

    Of a declared type whose default config upstream cannot use, or that is a part of other models, that of its mini.

    Raises:
        ValueError: no model can be made of it.
    """
    from liger.declare import load
    from liger.plugins import describe
    from liger.registry import registry

    patch = registry().models.get(target)
    try:
        return meta_model(*find_config(target))
    except Exception as error:
        if patch is not None:
            return meta_model(load(patch.mini)())
        if isinstance(error, ValueError):
            raise
        raise ValueError(
            f"upstream makes no model of {target!r} from its default config: {describe(error)}; name a model directory"
        ) from error


KINDS = ("ImageTextToText", "MultimodalLM", "SpeechSeq2Seq", "Seq2SeqLM", "CausalLM")
"""Of language models, as transformers names its AutoModelFor classes, the richest first."""


def meta_model(config: Any, cls: type | None = None) -> Any:
    """The language model of a config on the meta device, of class ``cls`` where that is given.

    Raises:
        ValueError: there is none for this kind of config.
    """
    import torch
    import transformers

    if cls is not None:
        with torch.device("meta"):
            return cls(config)
    autos = [getattr(transformers, f"AutoModelFor{kind}", None) for kind in KINDS]
    for auto in autos:
        if auto is not None and type(config) in auto._model_mapping:
            with torch.device("meta"):
                return auto.from_config(config)
    raise ValueError(f"model_type {config.model_type!r} has no language model (tried AutoModelFor: {', '.join(KINDS)})")
