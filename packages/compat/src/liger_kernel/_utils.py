"""``liger_kernel.utils``: what is there."""

from __future__ import annotations

from importlib.util import find_spec

import torch


def infer_device() -> str:
    """The kind of accelerator, as "cuda", or "cpu"."""
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None else found.type


def is_npu_available() -> bool:
    """Whether the accelerator is an NPU."""
    return infer_device() == "npu"


def is_peft_available() -> bool:
    """Whether peft is installed."""
    return find_spec("peft") is not None


def is_transformers_available() -> bool:
    """Whether transformers is installed, on which this package depends."""
    return find_spec("transformers") is not None
