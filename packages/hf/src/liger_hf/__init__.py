"""What all Hugging Face models share: fits, the head seam and model loading. Importing it loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liger_hf.auto import AutoLigerModelForCausalLM

__all__ = ["AutoLigerModelForCausalLM"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from liger_hf import auto

        return getattr(auto, name)
    raise AttributeError(f"module 'liger_hf' has no attribute {name!r}")
