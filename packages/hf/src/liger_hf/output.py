"""Which logits a forward returns, and outputs without them."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liger_hf import stub

MODES = ("full", "lazy", "none")


class Wanted(NamedTuple):
    """What a forward was asked to return besides the loss; ``logits`` is None if nothing was said."""

    logits: str | None
    accuracy: bool


def wanted(kwargs: dict[str, Any], labels: bool) -> Wanted:
    """Take ``skip_logits``, ``logits``, ``return_token_accuracy`` and ``return_predicted_tokens`` out of ``kwargs``.

    Raises:
        ValueError: an unknown mode, contradicting arguments, something that needs labels without labels, or predicted
            tokens, which liger-kernel's forwards return.
    """
    if kwargs.pop("return_predicted_tokens", False):
        raise ValueError(
            "return_predicted_tokens=True, but a patched model returns none: pass logits='full' or logits='lazy' and "
            "take out.logits.argmax(-1)"
        )
    skip, mode = kwargs.pop("skip_logits", None), kwargs.pop("logits", None)
    accuracy = bool(kwargs.pop("return_token_accuracy", False))
    if mode is not None and mode not in MODES:
        raise ValueError(f"logits is {mode!r}, expected one of {', '.join(MODES)}")
    if skip is not None and mode is not None and skip != (mode == "none"):
        raise ValueError(f"skip_logits={skip} contradicts logits={mode!r}; pass one of them")
    if skip is not None:
        mode = "none" if skip else "full"
    if mode == "none" and not labels:
        asked = "logits is 'none'" if skip is None else "skip_logits is True"
        raise ValueError(f"{asked}, but without labels there is no loss to return instead")
    if accuracy and not labels:
        raise ValueError("return_token_accuracy=True needs labels to compare with")
    return Wanted(mode, accuracy)


def mode(want: Wanted, training: bool) -> str:
    """full, lazy or none; by default a training forward with labels returns none and every other one all."""
    if want.logits == "lazy" and torch.compiler.is_compiling():
        return "full"  # nothing can be computed later, outside the graph
    return want.logits or ("none" if training else "full")


def drop_logits(out: Any) -> Any:
    """The same output without logits: as a ModelOutput the key is gone, as a tuple position 1 is None."""
    if isinstance(out, dict):
        return type(out)(**{k: v for k, v in out.items() if k != "logits"})
    return (out[0], None, *out[2:])


def add_accuracy(out: Any, accuracy: Tensor) -> Any:
    """Add ``out.token_accuracy``.

    Raises:
        ValueError: the output is a tuple, in which it would have no name.
    """
    if not isinstance(out, dict):
        raise ValueError("return_token_accuracy=True needs return_dict=True: a tuple has no place for it")
    out["token_accuracy"] = accuracy
    return out


def lazy(out: Any, model: Any, hidden: Tensor) -> Any:
    """Give a ModelOutput a ``logits`` that is computed from the hidden states when it is first read."""
    if not isinstance(out, dict):
        return (out[0], compute_logits(model, hidden), *out[2:])
    out.__class__ = _lazy_class(type(out))
    out.__dict__["_liger_lazy"] = (model, hidden)
    return out


def compute_logits(model: Any, hidden: Tensor) -> Tensor:
    """Logits as upstream's forward makes them, when ``hidden`` is what the head gets."""
    head = model.get_output_embeddings()  # what lies before it has been done
    return stub.run(model, hidden, head=lambda _: head(hidden)).logits  # type: ignore[no-any-return]


@functools.cache
def _lazy_class(cls: Any) -> type:
    """A ModelOutput whose ``logits`` are there to every reader and computed for the first; copies hold them."""

    def logits(self: Any) -> Any:
        if (held := self.__dict__.pop("_liger_lazy", None)) is not None:
            self.__dict__["logits"] = compute_logits(*held)
        return self.__dict__["logits"]

    def plain(self: Any) -> Any:
        return cls(**{"loss": self["loss"], "logits": self.logits, **self})

    def item(self: Any, key: Any) -> Any:
        return plain(self)[key] if key == "logits" or not isinstance(key, str) else cls.__getitem__(self, key)

    namespace = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "logits": property(logits),
        "__getitem__": item,
        "__contains__": lambda self, key: key == "logits" or cls.__contains__(self, key),
        "get": lambda self, key, default=None: item(self, key) if key == "logits" else cls.get(self, key, default),
        "to_tuple": lambda self: plain(self).to_tuple(),
        "__reduce__": lambda self: (_same, (plain(self),)),
        "__copy__": plain,
        "__deepcopy__": lambda self, memo: copy.deepcopy(plain(self), memo),
    }
    return type(cls.__name__, (cls,), namespace)


def _same(out: Any) -> Any:
    return out
