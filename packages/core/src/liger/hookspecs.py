"""The hooks a plugin may implement. None is called in a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from torch.nn import Module
    from typer import Typer

    from liger.declare import Fit, Kernel, ModelPatch, Op

hookspec = pluggy.HookspecMarker("liger")
hookimpl = pluggy.HookimplMarker("liger")


@hookspec
def liger_register_ops() -> Sequence[Op | Kernel]:  # type: ignore[empty-body]
    """Return the ops and kernels this package provides: data only, import no torch or triton."""


@hookspec
def liger_register_models() -> Sequence[ModelPatch]:  # type: ignore[empty-body]
    """Return the model patches this package provides: data only, import no torch or transformers."""


@hookspec
def liger_register_fits() -> Sequence[Fit]:  # type: ignore[empty-body]
    """Return shared fits, so that each has one owner and an id of its own."""


@hookspec
def liger_recognise_module(module: Module) -> Fit | str | None:
    """Return the fit of a module in a model that no package declares, why none suits it, or None: nothing to replace.

    It is asked about each module, so it keeps its answers by class. A fit that it returns has been verified.
    """


@hookspec
def liger_unwrap_module(module: Module) -> Sequence[Module] | None:
    """Return the modules that a wrapper hides (PEFT, quantisers), or None if the wrapper is not yours."""


@hookspec
def liger_rowwise_head(module: Module) -> bool | None:
    """Return whether a head computes each row of its logits from that row alone, or None if it is not yours.

    It may then be called on some rows at a time, with the loss of those. Asked about heads that are no plain Linear.
    """


@hookspec
def liger_register_commands(app: Typer) -> None:
    """Add commands to the ``liger`` command line."""
