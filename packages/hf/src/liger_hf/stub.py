"""Upstream's own forward of a causal LM, run on a shadow of the model whose backbone, head and loss are stand-ins.

The shadow shares the model's attributes; the model itself is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from liger.errors import PatchRefused
from liger.swap import original_class


class Output:
    """A backbone output: the given hidden states, None for everything else upstream may ask of it."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: Any) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def get(self, name: str, default: Any = None) -> Any:
        """As of a mapping."""
        return self.last_hidden_state if name == "last_hidden_state" else default


class Stub(nn.Module):
    """Stands in for a submodule: ``forward`` is the given function, everything else is as in ``original``."""

    def __init__(self, function: Callable[..., Any], original: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.__dict__["original"] = original  # not a child

    def __getattr__(self, name: str) -> Any:
        """What upstream reads from the module beside calling it (falcon_h1's ``lm_head_multiplier``)."""
        original = self.__dict__.get("original")
        return super().__getattr__(name) if original is None else getattr(original, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def children(model: Any) -> tuple[str, str]:
    """Names of backbone and head among the model's direct children.

    Raises:
        PatchRefused: one of them is not a direct child.
    """
    head, modules = model.get_output_embeddings(), model._modules
    names = [name for name, child in modules.items() if child is head]
    if head is None or len(names) != 1:
        raise PatchRefused("its output embeddings are not a direct child of the model")
    others = [name for name in modules if name not in names]
    backbone = model.base_model_prefix
    if backbone not in others and len(others) == 1:
        backbone = others[0]  # llama4's causal LM has the prefix of a model around it
    if backbone not in others:
        raise PatchRefused(f"its backbone {backbone!r} is not a direct child of the model")
    return backbone, names[0]


def run(
    model: Any,
    hidden: Tensor,
    *,
    head: Callable[[Tensor], Tensor] | None = None,
    loss: Callable[..., Tensor] | None = None,
    patched: bool = False,
    **inputs: Any,
) -> Any:
    """Run upstream's forward as if the backbone had returned ``hidden`` (B, T, H), in training mode.

    Args:
        head: stands in for the output embeddings; None keeps the real ones.
        loss: stands in for the loss function.
        patched: run Liger's forward around upstream's, if the model has one.
        inputs: further arguments of the forward, e.g. labels.
    """
    cls: Any = type(model) if patched else original_class(model)
    backbone, head_name = children(model)
    shadow = cls.__new__(cls)
    replaced = {backbone: Stub(lambda *args, **kwargs: Output(hidden), model._modules[backbone])}
    if head is not None:
        replaced[head_name] = Stub(head, model._modules[head_name])
    modules = {**model._modules, **replaced}
    shadow.__dict__.update(model.__dict__, _modules=modules, training=True)
    shadow.__dict__["get_output_embeddings"] = lambda: modules[head_name]  # upstream's asks the backbone first
    if loss is not None:
        shadow.__dict__["_loss_function"] = loss
    ids = torch.zeros(hidden.shape[:-1], dtype=torch.long, device=hidden.device)
    return cls.forward(shadow, input_ids=ids, use_cache=False, **inputs)
