"""Everything a model patch must keep true, as one list of checks. They need transformers, nothing is downloaded."""

from __future__ import annotations

import copy
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import liger
from liger.declare import ModelPatch, load
from liger.errors import ContractViolation
from liger.plugins import describe
from liger.registry import registry, require
from liger.testing.kernels import Check, in_part

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

RELATIVE = 1e-5
"""Bound on loss and gradients against unpatched in fp32, relative to each tensor's norm (DESIGN 8)."""
ROUNDINGS = 4 * torch.finfo(torch.float32).eps
"""No gradient is held to less than this share of the largest: each op on its way rounds (decision 0016)."""
ALWAYS = ("pinned", "loss-and-gradients-fp32", "images", "undo")
"""Checks that belong to every part: they are quick, and a change upstream shows in them first."""


def model_checks(model_type: str) -> list[ParameterSet]:
    """All checks of a model patch, for ``pytest.mark.parametrize("check", model_checks("gemma2"))``.

    With ``LIGER_TEST_PART=0/3`` in the environment a third of them, as for kernels, and always those in ``ALWAYS``.
    """
    import pytest

    found = [c for c in _checks(find(model_type)) if c.name in ALWAYS or in_part(f"{model_type} {c.name}")]
    return [pytest.param(c, id=c.name) for c in found]


def check_model(patch: str | ModelPatch, device: str = "cpu") -> None:
    """Run all checks of a model patch and report every one that fails.

    Raises:
        ContractViolation: with the name and the message of each failed check.
    """
    failures = []
    for check in _checks(find(patch)):
        try:
            check(device)
        except Exception as error:
            failures.append(f"{check.name}: {type(error).__name__}: {error}")
    if failures:
        raise ContractViolation("\n".join(failures))


def find(patch: str | ModelPatch) -> ModelPatch:
    """The installed patch of a model type, or the patch itself."""
    return patch if isinstance(patch, ModelPatch) else require(registry().models, "model patch", patch)


def _checks(patch: ModelPatch) -> list[Check]:
    from liger.testing import upstream

    out = []
    for name, function in vars(upstream).items():
        if name == "check_images" and patch.images is None:
            continue  # it sees nothing
        if name.startswith("check_") and getattr(function, "__module__", "") == upstream.__name__:
            out.append(Check(name.removeprefix("check_").replace("_", "-"), _bind(function, patch)))
    return out


def _bind(function: Callable[[Pair], None], patch: ModelPatch) -> Callable[[str], None]:
    def run(device: str) -> None:
        skip_drift(patch)
        function(Pair(patch, device))

    return run


def skip_drift(patch: ModelPatch) -> None:
    """With ``LIGER_DRIFT=1`` in the environment, skip a type that the installed transformers has otherwise, by name.

    For versions other than the one that declarations are pinned to; with that one it is a failure.
    """
    if os.environ.get("LIGER_DRIFT") and (reason := _drift(patch.model_type)):
        import pytest

        pytest.skip(reason)


def skip_unknown_calls(model_type: str, found: Counter[str], expected: Counter[str]) -> None:
    """With ``LIGER_DRIFT=1``, skip where another transformers calls more of what is patched than declarations know."""
    if os.environ.get("LIGER_DRIFT") and found < expected:
        import pytest

        pytest.skip(f"drift: {model_type} calls {dict(expected - found)} besides what is declared")


@functools.cache
def _drift(model_type: str) -> str | None:
    import transformers

    from liger.testing.upstream import check_pinned

    try:
        check_pinned(Pair(find(model_type), "cpu"))
    except Exception as error:
        return f"drift: {model_type} with transformers {transformers.__version__}: {describe(error)}"
    return None


@dataclass(slots=True)
class Pair:
    """Makes equal models of one patch: one to leave alone, one to patch."""

    patch: ModelPatch
    device: str

    def plain(self, dtype: torch.dtype = torch.float32, seed: int = 0, **config: Any) -> Any:
        """A mini model in training mode; equal seeds give equal weights."""
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        made = load(self.patch.mini)()
        for name, value in config.items():
            setattr(made, name, value)
        auto = AutoModelForCausalLM if self.patch.images is None else AutoModelForImageTextToText
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: Any = auto.from_config(made)  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                if "norm" in name:  # upstream initialises all to one value, which would hide a weight that is not read
                    torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.2)
                if name.endswith(
                    "A_log"
                ):  # upstream's states forget a token at once: their gradients are mere rounding
                    torch.nn.init.constant_(parameter, -2.0)
        return model.to(self.device, dtype).train()

    def both(self, dtype: torch.dtype = torch.float32, choices: dict[str, Any] | None = None, **config: Any) -> Any:
        """(unpatched, patched)."""
        patched = self.plain(dtype, **config)
        liger.autopatch(patched, strict=True, **(choices or {}))
        return self.plain(dtype, **config), patched

    def batch(self, rows: int = 2, tokens: int = 13, ignored: int = 3, seed: int = 1) -> dict[str, Any]:
        """Token ids and labels, the first of which are ignored."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, 250, (rows, tokens), generator=generator)
        labels = ids.clone()
        labels[:, :ignored] = -100
        return {"input_ids": ids.to(self.device), "labels": labels.to(self.device)}

    def seen(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """What a forward in ``dtype`` takes for token ids (B, T): with an image in each row, if the model sees."""
        inputs = {"input_ids": ids} if self.patch.images is None else load(self.patch.images)(ids)
        return {n: v.to(self.device, dtype if v.is_floating_point() else None) for n, v in inputs.items()}


def step(model: Any, **inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
    """One forward and backward: loss, gradients by name, the whole output; what a router draws is always the same."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    out = model(**inputs)
    loss = out[0] if isinstance(out, tuple) else out.loss
    loss.backward()
    return loss.detach().clone(), gradients(model), out  # copies: a replayed CUDA graph writes over what it gave before


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all gradients."""
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def expect(condition: bool, message: str) -> None:
    """Raise ContractViolation unless ``condition``."""
    if not condition:
        raise ContractViolation(message)


def expect_close(
    found: torch.Tensor, expected: torch.Tensor, what: str, relative: float = RELATIVE, least: float = 1e-30
) -> None:
    """Same shape and dtype, and equal up to ``relative`` of the expected tensor's norm, or of ``least`` if more."""
    kind = (found.shape, found.dtype), (expected.shape, expected.dtype)
    expect(kind[0] == kind[1], f"{what} is {kind[0]}, expected {kind[1]}")
    norm = expected.double().norm()
    error = float((found.double() - expected.double()).norm() / norm.clamp_min(least))
    expect(error <= relative, f"{what} differs from unpatched by {error:.2e} of its norm, allowed {relative:.0e}")


def expect_equal_step(plain: Any, patched: Any, relative: float = RELATIVE, **inputs: Any) -> Any:
    """Loss and every gradient of both models agree; returns the patched output."""
    loss, wanted, _ = step(plain, **inputs)
    found, got, out = step(patched, **inputs)
    expect_close(found, loss, "the loss", relative)
    expect(got.keys() == wanted.keys(), f"gradients of {sorted(got.keys() ^ wanted.keys())} exist on one side only")
    expect_close_gradients(got, wanted, "the gradient", relative)
    return out


def noise(wanted: Mapping[str, torch.Tensor], relative: float) -> float:
    """The norm below which a gradient is nothing but ``ROUNDINGS`` of the largest, for a bound relative to norms."""
    return max(float(g.norm()) for g in wanted.values()) * ROUNDINGS / relative


def expect_close_gradients(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], what: str, relative: float = RELATIVE
) -> None:
    """Each gradient agrees.

    Some are 0 but for ``ROUNDINGS`` that do not cancel, such as that of a bias of keys, which softmax takes out again.
    """
    least = noise(wanted, RELATIVE)
    for name, gradient in wanted.items():
        expect_close(found[name], gradient, f"{what} of {name}", relative, least)


def snapshot(model: Any, *, identities: bool = True) -> dict[str, Any]:
    """Classes, attribute sets and bound forwards of every module, and the globals and classes of the upstream module.

    Args:
        identities: include the identity of every attribute; False to compare a copy with its original.
    """
    import sys

    out: dict[str, Any] = {}
    for path, module in model.named_modules():
        held = {k: id(v) if identities else None for k, v in module.__dict__.items() if k not in _CHANGING}
        bound = module.forward
        inside = getattr(bound, "__func__", bound)
        owner = getattr(bound, "__self__", None) is module
        out[path] = (type(module), held, inside, owner, list(module.state_dict()))
        upstream = sys.modules[type(module).__module__]
        out[upstream.__name__] = {k: id(v) for k, v in vars(upstream).items()}
        for cls in type(module).__mro__[:-1]:
            out[f"{cls.__module__}.{cls.__qualname__}"] = {
                k: id(v) for k, v in vars(cls).items() if k not in _CLASS_CACHES
            }
    return out


_CHANGING = {"training"}  # a bool that tests switch on purpose
_CLASS_CACHES = {"__abstractmethods__", "_abc_impl"}  # filled by isinstance


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Paths at which two snapshots differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            if key not in before or key not in after:
                yield f"{where}/{key} exists only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{where}/{key}")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def expect_unchanged(before: Any, after: Any, what: str) -> None:
    """Two snapshots are the same."""
    found = list(differences(before, after))
    expect(not found, f"{what}: {'; '.join(found[:5])}" + (f" and {len(found) - 5} more" if len(found) > 5 else ""))


def deep_copies(model: Any) -> dict[str, Any]:
    """The model itself, a deepcopy and an unpickled copy."""
    import pickle

    return {
        "the model": model,
        "a deepcopy": copy.deepcopy(model),
        "an unpickled copy": pickle.loads(pickle.dumps(model)),
    }
