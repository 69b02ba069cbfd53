"""The public verbs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from liger import patch
from liger.planner import Choices, make_plan, unwrap
from liger.report import Report, log

if TYPE_CHECKING:
    from torch.nn import Module


def autopatch(
    target: Any,
    *,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
    prefer: str | Mapping[str, str] | None = None,
    strict: bool = False,
    verify: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Report:
    """Swap the slow parts of a model for fused kernels, in place.

    Args:
        target: a model, also inside PEFT, DDP or ``torch.compile``, or a module that holds layers of known classes,
            such as a stage of a pipeline; or, before construction, a config, a ``model_type`` or a model class: every
            instance made later is patched at its first forward.
        only: op names or fnmatch patterns of module paths; everything else is left alone.
        skip: the same, for what is to be left alone.
        prefer: ``"reference"`` or ``{"rms_norm": "triton"}``: choose kernels by hand.
        strict: raise if anything that could be patched is not.
        verify: run each part and its replacement on the same random input first, gradients included.
        options: op -> option -> value, e.g. ``{"linear_cross_entropy": {"workspace_mb": 512}}``.

    Returns:
        What was done and what was not, each with the reason. An unknown model type is left untouched.

    Raises:
        ValueError, TypeError: an unknown name in only, skip or options.
        KernelUnavailable: prefer names a kernel that does not exist.
        WrongOrder: the model is already sharded or parametrised.
        AlreadyPatched: it is patched with other options.
        PatchRefused: ``strict`` and something was not patched.
    """
    choices = Choices.make(only=only, skip=skip, prefer=prefer, strict=strict, verify=verify, options=options)
    if not _is_module(target):
        from liger.construct import mark

        return mark(target, choices)
    return patch_model(target, choices)


def patch_model(target: Module, choices: Choices) -> Report:
    """Plan and patch one model."""
    report, actions, root = make_plan(target, choices)
    patch.settle(root)
    done = patch.apply(root, actions)
    report.planned = False
    report._revert = undo_later(root, done)
    log(type(root), report.summary())
    return report


def undo_later(root: Module, done: list[patch.Entry]) -> Callable[[], None]:
    """Undo ``done``, once; a report must not keep its model alive."""
    alive, held = weakref.ref(root), [weakref.ref(e.module) for e in done]

    def revert() -> None:
        model, modules = alive(), {id(m) for ref in held if (m := ref()) is not None}
        if model is not None and modules:
            journal = [e for m in model.modules() for e in m.__dict__.get(patch.JOURNAL, ())]
            patch.undo(model, [e for e in journal if id(e.module) in modules])

    return revert


def plan(
    target: Any,
    *,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] = (),
    prefer: str | Mapping[str, str] | None = None,
    strict: bool = False,
    verify: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Report:
    """Return the report that ``autopatch`` would give, and touch nothing. Arguments and errors as there."""
    choices = Choices.make(only=only, skip=skip, prefer=prefer, strict=strict, verify=verify, options=options)
    if not _is_module(target):
        from liger.construct import plan_type

        return plan_type(target, choices)
    return make_plan(target, choices)[0]


def unpatch(target: Any) -> None:
    """Put everything back exactly as it was; also for a deepcopy or an unpickled copy. No-op if nothing is patched.

    Raises:
        UnpatchConflict: something else has changed a patched slot since. Nothing is undone then.
    """
    if _is_module(target):
        patch.undo(unwrap(target))
        return
    from liger.construct import unmark

    unmark(target)


@contextmanager
def patched(target: Any, **choices: Any) -> Iterator[Report]:
    """``with liger.patched(model) as report:`` patches inside the block. Arguments as for ``autopatch``."""
    report = autopatch(target, **choices)
    try:
        yield report
    finally:
        report.revert()


def is_patched(target: Module) -> bool:
    """Whether any module of the model is patched."""
    return next(patch.swapped_modules(unwrap(target)), None) is not None


FEATURES = {
    "fused_loss": "the loss is computed from hidden states and head weight, without the full logits",
    "skip_logits": "forward takes skip_logits=True and then returns a loss without logits, in evaluation too",
    "logits": "forward takes logits='full', 'lazy' or 'none'",
    "token_accuracy": "forward takes return_token_accuracy=True and returns out.token_accuracy, with or without logits",
    "shift_labels": "shift_labels beats labels in the fused loss",
    "num_items_in_batch": "num_items_in_batch divides the summed loss",
}
"""What ``supports`` can be asked."""


def supports(target: Module, feature: str) -> bool:
    """Whether the model, as it is now, offers a feature of ``liger.api.FEATURES``; trainers need not look at names.

    Raises:
        ValueError: an unknown feature.
    """
    if feature not in FEATURES:
        raise ValueError(f"unknown feature {feature!r}; known: {', '.join(sorted(FEATURES))}")
    offered: list[tuple[str, ...]] = [
        getattr(m, "__liger_features__", tuple)() for _, m in patch.swapped_modules(unwrap(target))
    ]
    return any(feature in features for features in offered)


def _is_module(target: Any) -> bool:
    import sys

    torch = sys.modules.get("torch")  # whoever has a module has imported it
    return torch is not None and isinstance(target, torch.nn.Module)
