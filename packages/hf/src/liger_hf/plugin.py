"""What this package registers. Importing it loads no torch and no transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import liger
from liger import Fit
from liger_hf import fits

if TYPE_CHECKING:
    from torch.nn import Module
    from typer import Typer


@liger.hookimpl
def liger_register_fits() -> Sequence[Fit]:
    """Offer the shared fits."""
    return [
        fits.rms_norm(cast="llama"),
        fits.t5_norm(),
        fits.layer_norm(),
        fits.cohere_norm(),
        fits.l2norm(),
        fits.group_norm(),
        fits.gated_rms_norm(norm_before_gate=True),
        *(fits.gated_mlp(act=act) for act in fits.GATED),
        *(fits.packed_mlp(act=act) for act in fits.GATED),
        fits.mlp(),
        fits.clamped_experts(),
        fits.rope("half"),
        fits.rope_complex(),
        fits.causal_lm_head(),
    ]


@liger.hookimpl
def liger_unwrap_module(module: Module) -> Sequence[Module] | None:
    """Look through ``torch.compile`` and (distributed) data parallel."""
    names = {c.__name__: c.__module__ for c in type(module).__mro__}
    if names.get("OptimizedModule", "").startswith("torch._dynamo"):
        return [module._orig_mod]  # type: ignore[list-item]
    if names.get("DistributedDataParallel", "").startswith("torch.nn.parallel"):
        return [module.module]  # type: ignore[list-item]
    return None


@liger.hookimpl
def liger_recognise_module(module: Module) -> Fit | str | None:
    """Try the shared fits."""
    from liger_hf.recognise import recognise_module

    return recognise_module(module)


@liger.hookimpl
def liger_register_commands(app: Typer) -> None:
    """Add ``liger plan``, ``liger analyze`` and ``liger validate``."""
    from liger_hf.commands import analyze, plan, validate

    app.command()(plan)
    app.command()(analyze)
    app.add_typer(validate, name="validate")
