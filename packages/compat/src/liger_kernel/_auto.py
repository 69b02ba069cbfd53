"""``AutoModelForCausalLM`` whose models come patched by flags."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from liger_kernel import _apply
from liger_kernel._types import FLAGS


class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
    """``AutoModelForCausalLM``: the flags among the keyword arguments are ours, the others go on to transformers."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> PreTrainedModel:  # type: ignore[override]
        """Load weights, then patch this one model."""
        flags = _flags(kwargs)
        made = AutoModelForCausalLM.from_pretrained(*args, **kwargs)
        _apply.apply_to_instance(made[0] if isinstance(made, tuple) else made, **flags)
        return made

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """Make random weights, then patch this one model."""
        flags = _flags(kwargs)
        made: PreTrainedModel = AutoModelForCausalLM.from_config(*args, **kwargs)  # type: ignore[no-untyped-call]
        _apply.apply_to_instance(made, **flags)
        return made


def _flags(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Take the flags out of keyword arguments."""
    return {name: kwargs.pop(name) for name in list(kwargs) if name in FLAGS}
