"""Whether upstream's forward uses its logits for more than its loss: in training it would find them empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from liger.errors import PatchRefused
from liger.plugins import describe
from liger_hf import stub
from liger_hf.standin import same

MORE = "its forward uses the logits for more than its loss"
INSTEAD = ("_modules", "_parameters", "_loss_function", "get_output_embeddings", "get_input_embeddings")
"""Attributes of a shadow that are the same in each or stand in for something."""
WITHOUT: tuple[dict[str, Any], ...] = ({}, {"return_dict": False}, {"output_router_logits": False})
"""What is left out where upstream's forward fails: llama4 can return a tuple alone, and a mixture's loss of balance
needs the logits of routers, which the stand-in has not."""


def check(model: Any, hidden: Tensor, logits: Tensor, labels: Tensor, training: bool) -> None:
    """Compare what the forward returns and leaves on the model with ``logits`` and with ones of no width.

    Raises:
        PatchRefused: something beside the logits differs, or the output is none that logits can be left out of.
    """
    full, more = _full(model, hidden, logits, labels, training)
    try:
        empty = _results(model, hidden, logits[..., :0], labels, training, more)
    except Exception as error:
        raise PatchRefused(f"{MORE}: without them it fails with {describe(error)}") from error
    names = [name for name in full.keys() | empty.keys() if not _equal(full.get(name), empty.get(name))]
    if names:
        raise PatchRefused(f"{MORE}: for {', '.join(sorted(names))}")


def _full(
    model: Any, hidden: Tensor, logits: Tensor, labels: Tensor, training: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results with real logits, and the argument that they need.

    Raises:
        PatchRefused: upstream's forward fails, as it does where it needs more of its backbone than the stand-in has.
    """
    errors: list[Exception] = []
    for more in WITHOUT:
        try:
            return _results(model, hidden, logits, labels, training, more), more
        except PatchRefused:
            raise
        except Exception as error:
            errors.append(error)
    what = "after its loss upstream's own forward, unpatched and with a stand-in for its backbone, fails with"
    raise PatchRefused(f"{what} {describe(errors[0])}") from errors[0]


def _results(
    model: Any, hidden: Tensor, logits: Tensor, labels: Tensor, training: bool, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Name -> value of all that the forward returns but its logits, and of the model's attributes, for a loss of 0."""
    copy = stub.shadow(
        model,
        hidden,
        head=lambda _: logits.clone(),
        loss=lambda *args, **kwargs: logits.new_zeros(()),
        training=training,
    )
    with torch.set_grad_enabled(training):
        out = stub.call(copy, hidden, labels=labels, **more)
    if isinstance(out, dict):
        returned = {name: value for name, value in out.items() if name != "logits"}
        loss = out.get("loss")
    else:
        parts = out if isinstance(out, tuple) else ()
        returned = {f"output {at}": value for at, value in enumerate(parts) if at != 1}
        loss = parts[0] if parts else None
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise PatchRefused(
            f"its forward returns a {type(out).__name__}, expected a ModelOutput with loss and logits, or a tuple that "
            "begins with them"
        )
    kept = {name: value for name, value in copy.__dict__.items() if name not in INSTEAD}
    return dict(_leaves({**returned, **kept}, "", set()))


def _leaves(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Tensors, numbers and words inside of dictionaries and sequences; other objects are not looked into."""
    if isinstance(value, Tensor | bool | int | float | str):
        yield name, value
    elif isinstance(value, Mapping | Sequence) and id(value) not in seen:
        seen.add(id(value))
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, f"{name}.{key}" if name else str(key), seen)


def _equal(one: Any, two: Any) -> bool:
    return same(one, two) if isinstance(one, Tensor) and isinstance(two, Tensor) else repr(one) == repr(two)
