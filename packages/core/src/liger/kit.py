"""``from liger.kit import LigerKernelKit, LigerPatch``: patching by configuration, before a model is built.

The names are those of ``liger_hf.kit``, loaded on first use: what a family is made of is known where Hugging Face's
models are.
"""

from __future__ import annotations

from typing import Any

from liger.declare import load

NAMES = ["KitResult", "LigerKernelKit", "LigerPatch"]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'liger.kit' has no attribute {name!r}")
    try:
        return load(f"liger_hf.kit:{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("liger_hf", "liger_hf.kit"):
            raise
        raise ImportError("liger.kit needs liger-hf: pip install liger-hf") from error


def __dir__() -> list[str]:
    return sorted(NAMES)
