"""``verify=True``: before patching, a part and its replacement run on one random input with the part's own weights."""

from __future__ import annotations

import copy
from typing import Any

import torch

from liger.declare import Fit, Probe, load
from liger.errors import ContractViolation
from liger.patch import Action
from liger.report import Status
from liger.swap import is_elsewhere, quiet, swapped_class
from liger.testing.compare import compare
from liger.testing.contract import random_like
from liger.testing.observe import count_ops


def verify_fit(module: Any, fit: Fit, actions: list[Action]) -> tuple[Status, str]:
    """Compare forward and gradients within the numerical contract; the truth is upstream's own code in fp64.

    Returns:
        ``applied`` with device and kernel, ``refused`` with the numbers, or ``deferred`` where there is nothing to run.
    """
    if fit.probe is None:
        return "deferred", "verify: the fit brings no probe"
    if any(t.device.type == "meta" or is_elsewhere(t) for t in module.parameters()):
        return "deferred", "verify: it has no weights yet; patch again with verify=True once they are loaded"
    probe: Probe = load(fit.probe)(module, torch.Generator().manual_seed(0))
    with count_ops() as counts:
        found = _run(quiet(shadow(module, actions)), probe, probe.inputs)
    if reason := _outside(found, quiet(module), probe):
        return "refused", f"verify: {reason}"
    kernels = ", ".join(sorted({f"{op}/{kernel}" for op, kernel in counts}))
    return "applied", f"verified with {kernels} on {probe.inputs[0].device}"


def differ(module: Any, other: Any, probe: Probe) -> str | None:
    """Why ``other`` does not compute what ``module`` does, forward and gradients, by the numbers; None if it does.

    Both have parameters of the same names and values. The truth is ``module`` in fp64.
    """
    return _outside(_run(quiet(other), probe, probe.inputs), quiet(module), probe)


def _outside(found: list[torch.Tensor], module: Any, probe: Probe) -> str | None:
    """Why results are not those of ``module`` within the contract."""
    expected = _run(module, probe, probe.inputs)
    truth = _run(_doubled(module, probe), probe, tuple(_double(t) for t in probe.inputs))
    width = max(t.shape[-1] for t in probe.inputs)
    try:
        for triple in zip(found, expected, truth, strict=True):
            compare(*triple, reduction=width, per_row=False)
    except ContractViolation as violation:
        return str(violation)
    return None


def shadow(module: Any, actions: list[Action]) -> Any:
    """The module as it would be patched; it shares parameters with the original, which is not touched."""
    made: dict[int, Any] = {}
    for action in actions:
        cls: Any = swapped_class(type(action.module), action.spec)
        clone = made[id(action.module)] = cls.__new__(cls)
        clone.__dict__.update(action.module.__dict__, **action.attributes)
    for clone in made.values():
        clone.__dict__["_modules"] = {n: _around(m, made) for n, m in clone.__dict__["_modules"].items()}
    return made[id(module)]


def _around(module: Any, made: dict[int, Any]) -> Any:
    """What stands for a child of a shadow: its shadow, or a copy of a wrapper (PEFT's of a head) around one."""
    if module is None or id(module) in made or not any(id(m) in made for m in module.modules()):
        return made.get(id(module), module)
    cls: Any = type(module)
    copied = cls.__new__(cls)
    inside = {n: _around(m, made) for n, m in module._modules.items()}
    copied.__dict__.update(module.__dict__, _modules=inside)
    return copied


def _run(module: Any, probe: Probe, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The output, the gradients of the inputs that want one, and those of the parameters in use."""
    with torch.enable_grad():
        output = probe.run(module, *inputs)
        names = ("",) if probe.uses is None else probe.uses
        weights = [p for name in names for _, p in sorted(module.get_submodule(name).named_parameters())]
        leaves = [t for t in (*inputs, *weights) if t.requires_grad] if output.requires_grad else []
        grads = torch.autograd.grad(output, leaves, random_like([output]), materialize_grads=True) if leaves else ()
    # a loss is fp32 also when its logits were bf16: it is compared in the dtype the module works in
    # and upstream's own fp32 statistics bound what an fp64 model can be compared in
    results = [output.detach().to(inputs[0].dtype), *grads]
    return [r.float() if probe.inputs[0].dtype == torch.float64 else r for r in results]


def _doubled(module: Any, probe: Probe) -> Any:
    if probe.uses is None:
        return copy.deepcopy(module).double()
    cls: Any = type(module)
    clone = cls.__new__(cls)
    modules = {n: copy.deepcopy(m).double() if n in probe.uses else m for n, m in module._modules.items()}
    clone.__dict__.update(module.__dict__, _modules=modules)
    return clone


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
