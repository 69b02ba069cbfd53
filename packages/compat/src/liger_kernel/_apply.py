"""``apply_liger_kernel_to_x`` for every model type, from the table of ``_types``: flags become ``liger.autopatch``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import liger
from liger import Report
from liger.planner import ONLY
from liger.registry import registry
from liger_hf import loading
from liger_kernel import _said
from liger_kernel._types import FLAGS, FUNCTIONS, OTHERS, PREFIX, TEXT_TYPES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_last: list[Report] = []


# -- Which function a model type has -----------------------------------------------------------------------------------
def functions() -> dict[str, str]:
    """What comes after the prefix -> the signature: the peer's, and those of the types that only ours declares."""
    return {**{t: OTHERS for t in registry().models if t not in TEXT_TYPES}, **FUNCTIONS}


def model_types(name: str) -> set[str]:
    """The model types that one function is for."""
    return {name, *(t for t, function in TEXT_TYPES.items() if function == name)}


def signature(name: str) -> inspect.Signature:
    """The signature of a function; a type that nobody declares has every flag, as its parts may be recognised."""
    row = functions().get(name, OTHERS)
    defaults = {word.lstrip("-"): not word.startswith("-") for word in row.removesuffix("*").split()}
    parameters = [
        inspect.Parameter(flag, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None if flag == "model" else on)
        for flag, on in defaults.items()
    ]
    others = [flag for flag in FLAGS if flag not in defaults] if row.endswith("*") else []
    parameters += [inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=True) for flag in others]
    return inspect.Signature(parameters)


@functools.cache
def function(name: str) -> Callable[..., Report]:
    """``apply_liger_kernel_to_<name>``."""
    expected = signature(name)

    def apply(*args: Any, **kwargs: Any) -> Report:
        if unknown := set(kwargs) - set(expected.parameters):
            known = ", ".join(expected.parameters)
            raise TypeError(f"{PREFIX}{name} has no flag {', '.join(sorted(unknown))}; it has {known}")
        bound = expected.bind(*args, **kwargs)
        asked = {flag for flag in bound.arguments if flag in FLAGS and bound.arguments[flag]}
        bound.apply_defaults()
        flags = dict(bound.arguments)
        model = flags.pop("model")
        return to_types(name, flags) if model is None else to_model(model, flags, asked)

    apply.__name__ = apply.__qualname__ = PREFIX + name
    apply.__doc__ = f"Patch a model of type {name!r}, or without one those made from now on. Returns the report."
    apply.__signature__ = expected  # type: ignore[attr-defined]
    return apply


# -- Doing it ----------------------------------------------------------------------------------------------------------
def to_model(model: Any, flags: Mapping[str, bool], asked: Iterable[str] = ()) -> Report:
    """Patch one model by flags; say once which of the flags in ``asked`` found nothing to do."""
    report = _finish(liger.autopatch(model, only=ops(flags)), model, flags)
    done = {row.op for row in report.rows if row.status == "applied" or row.reason.startswith("already patched")}
    for flag in asked:
        if not done.intersection(FLAGS[flag]):
            _said.once(f"{flag}=True changed nothing in {type(model).__name__}: {_why(report, flag)}")
    return _keep(report)


def to_types(name: str, flags: Mapping[str, bool]) -> Report:
    """Patch every model of these types that is made from now on; ``report.revert()`` ends it.

    A loaded model, or one made from a config, is patched when it is there, and its rows are added to the report; any
    other at its first forward, but for ``cross_entropy``.
    """
    finish = functools.partial(_finish, flags=flags)
    return _keep(loading.patch_from_now_on(model_classes(name), finish, only=ops(flags)))


def _finish(report: Report, model: Any, flags: Mapping[str, bool]) -> Report:
    """What flags mean beyond ``liger.autopatch``, and its reasons in the words of flags."""
    if flags.get("cross_entropy"):
        from liger_kernel._logits_loss import add_loss

        add_loss(report, model)
    flag = {op: name for name, names in FLAGS.items() for op in names}
    for at, row in enumerate(report.rows):
        if row.reason == ONLY:
            why = (
                f"{flag[row.op]}=False" if row.op in flag else "the flags, none of which means it: use liger.autopatch"
            )
            report.rows[at] = replace(row, reason=f"left out by {why}")
    return report


def ops(flags: Mapping[str, bool]) -> list[str]:
    """The ops that the flags switch on.

    Raises:
        ValueError: both losses.
    """
    if flags.get("cross_entropy") and flags.get("fused_linear_cross_entropy"):
        raise ValueError("cross_entropy and fused_linear_cross_entropy are both True, expected at most one of them")
    return [op for flag, on in flags.items() if on for op in FLAGS[flag] if op in registry().ops]


def model_classes(name: str) -> list[type]:
    """The classes of whole models in the modeling module of these types.

    Raises:
        ValueError: transformers has no such model type.
    """
    try:
        return loading.model_classes(name, model_types(name))
    except ValueError as error:
        raise ValueError(f"{PREFIX}{name}: {error}") from error


def _why(report: Report, flag: str) -> str:
    """The reason of the report's rows for a flag that has no effect."""
    reasons = {row.reason: None for row in report.rows if row.op in FLAGS[flag] and row.reason}
    return "; ".join(reasons) or "it has no such part"


def _keep(report: Report) -> Report:
    """Remember the report, unless it only says of a model what an earlier one has said."""
    if not any(row.reason.startswith("already") for row in report.rows) or report.applied:
        _last[:] = [report]
    return report


def last_report() -> Report | None:
    """What was patched by the last call that patched anything, also by a trainer's; None before the first."""
    return _last[0] if _last else None


# -- What trainers call ------------------------------------------------------------------------------------------------
@functools.cache
def by_type() -> dict[str, Callable[..., Report]]:
    """``MODEL_TYPE_TO_APPLY_LIGER_FN``: model type -> its function, ours or what somebody put there."""
    return {t: function(name) for name in functions() for t in model_types(name)}


def known_flags(model_type: str, apply: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a trainer's flags those that a model type's function has; one of another type is named once and left out.

    Raises:
        TypeError: a flag that no model type has.
    """
    has = inspect.signature(apply).parameters
    if unknown := sorted(set(given) - set(FLAGS) - set(has)):
        raise TypeError(f"unknown flags {', '.join(unknown)}; known: {', '.join(FLAGS)}")
    flags = ", ".join(name for name in has if name != "model")
    for flag in given:
        if flag not in has:
            _said.once(f"{flag}={given[flag]!r} does nothing for model type {model_type!r}: it has {flags}")
    return {flag: value for flag, value in given.items() if flag in has}


def apply_by_type(model_type: str, **kwargs: Any) -> Report | None:
    """``_apply_liger_kernel``: patch the models of a type that are made from now on.

    None, said once, where there is no type or transformers has none of that name: a trainer calls this for any model.
    """
    if not model_type:
        _said.once("_apply_liger_kernel: no model type was given, so nothing is patched")
        return None
    apply = by_type().get(model_type)
    if apply is None:
        try:
            model_classes(model_type)
        except ValueError as error:
            _said.once(f"{error}, so nothing is patched")
            return None
        apply = function(model_type)
    return apply(**known_flags(model_type, apply, kwargs))


def apply_to_instance(model: PreTrainedModel, **kwargs: Any) -> Report:
    """``_apply_liger_kernel_to_instance``: patch this model, as transformers' Trainer asks for it."""
    model_type = str(getattr(model.config, "model_type", ""))
    apply = by_type().get(model_type) or function(model_type)
    return apply(model=model, **known_flags(model_type, apply, kwargs))
