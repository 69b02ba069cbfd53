"""Load and patch in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

import liger


class AutoLigerModelForCausalLM(AutoModelForCausalLM):
    """``AutoModelForCausalLM`` whose models come patched.

    Arguments are those of transformers, plus ``liger``: keyword arguments of ``liger.autopatch``, e.g.
    ``liger={"skip": "rope", "strict": True}``. The report is logged by the logger ``liger``; for the object itself call
    ``liger.autopatch`` on a plain model.
    """

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, *args: Any, liger: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> PreTrainedModel:
        """Load weights, then patch."""
        return _patch(AutoModelForCausalLM.from_pretrained(*args, **kwargs), liger)  # type: ignore[no-any-return]

    @classmethod
    def from_config(cls, *args: Any, liger: Mapping[str, Any] | None = None, **kwargs: Any) -> PreTrainedModel:
        """Make random weights, then patch."""
        return _patch(AutoModelForCausalLM.from_config(*args, **kwargs), liger)  # type: ignore[no-any-return, no-untyped-call]


def _patch(made: Any, choices: Mapping[str, Any] | None) -> Any:
    """Patch a model, or the first of what ``from_pretrained(output_loading_info=True)`` returns."""
    if choices is not None and not isinstance(choices, Mapping):
        raise TypeError(
            f"liger= takes a mapping of arguments of liger.autopatch, e.g. {{'skip': 'rope'}}, got {choices!r}"
        )
    liger.autopatch(made[0] if isinstance(made, tuple) else made, **(choices or {}))
    return made
