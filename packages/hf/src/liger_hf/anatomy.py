"""Answers of ``liger analyze`` about the parts of a model: norms, MLPs, experts, rotary embeddings.

A question that the model gives no answer to raises ``LookupError`` with the reason.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from liger_hf import fits
from liger_hf.profile import UNKNOWN, Answer, where
from liger_hf.recognise import rotary
from liger_hf.subject import Subject

BITWISE = "compared bit by bit with the op's reference, in fp32 and (but for group_norm) bf16, and its gradients"
NORMS = ("rms_norm", "layer_norm", "cohere_norm", "gated_rms_norm", "l2norm", "group_norm")
MLPS = ("silu_mul", "gelu_mul", "silu_mul_packed", "gelu_mul_packed", "relu_squared")


# -- Norms -------------------------------------------------------------------------------------------------------------
def norms(made: Subject, tower: bool = False) -> Answer:
    """Class of a norm -> op, of the text model or of its towers."""
    found: dict[str, str] = {type(m).__name__: fit.op for _, m, fit in made.of(*NORMS, tower=tower)}
    for path, reason in made.found.items():
        name = type(made.model.get_submodule(path)).__name__
        if isinstance(reason, str) and "Norm" in name and made.in_tower(path) == tower:
            found.setdefault(name, f"{UNKNOWN}: {reason}")
    return Answer(found, BITWISE) if found else Answer("none", "no module is a norm that a fit suits")


def norm_option(option: str) -> Callable[[Subject], Answer]:
    """The question for an option of the norms: class -> value."""

    def answer(made: Subject) -> Answer:
        norms = made.of(*NORMS)
        found = {type(m).__name__: fit.options[option] for _, m, fit in norms if option in fit.options}
        return Answer(found, BITWISE) if found else Answer("none", f"no norm has a choice of {option}")

    return answer


def in_place(made: Subject) -> Answer:
    """Whether a norm may be patched although upstream adds to its result in place."""
    return Answer("safe", "no op writes into what it is given; the check caller_memory_untouched sees to it")


def norms_of_a_layer(made: Subject) -> Answer:
    """Name within a layer -> class."""
    path, layers = made.layers
    names = {p.split(".", path.count(".") + 2)[-1]: type(m).__name__ for p, m, _ in made.of(*NORMS) if _below(p, path)}
    return Answer(names or "none", f"modules of {path} ({len(layers)} layers)")


def _below(path: str, parent: str) -> bool:
    return path.startswith(f"{parent}.")


def _order(layer: nn.Module) -> tuple[list[str], str]:
    """The children of a layer in the order in which its forward names them, and where that is."""
    forward = inspect.unwrap(type(layer).forward)
    names = [
        i.argval for i in dis.get_instructions(forward) if i.opname.startswith("LOAD_") and i.argval in layer._modules
    ]
    return list(dict.fromkeys(names)), where(forward)


def _attention(layer: nn.Module) -> str:
    for name, child in layer.named_children():
        if rotary(child) or "Attention" in type(child).__name__:
            return name
    raise LookupError(f"no child of {type(layer).__name__} is an attention")


def norm_before_attention(made: Subject) -> Answer:
    """The norm whose result the attention of a layer gets."""
    _, layers = made.layers
    layer = next((one for one in layers if any("Attention" in type(c).__name__ for c in one.children())), layers[0])
    attention, (order, place) = _attention(layer), _order(layer)
    norms = [name for name in order[: order.index(attention)] if "norm" in name.lower()]
    return Answer(norms[-1] if norms else "none", f"{place}: {type(layer).__name__}.forward takes {', '.join(order)}")


def final_norm(made: Subject) -> Answer:
    """The norm behind the last layer."""
    path = made.layers[0]
    parent = path.rpartition(".")[0]
    names = [p for p, _, _ in made.of(*NORMS) if p.rpartition(".")[0] == parent]
    if not names:
        raise LookupError(f"no norm stands beside {path}")
    return Answer(names[-1], f"a norm beside {path}, {BITWISE}")


# -- MLPs and experts --------------------------------------------------------------------------------------------------
def activation(made: Subject) -> Answer:
    """Class of an MLP or of experts -> fit, which names the activation."""
    found = {type(m).__name__: fit.id for _, m, fit in made.of(*MLPS, "silu_mul_clamped_packed")}
    for path, reason in made.found.items():
        name = type(made.model.get_submodule(path)).__name__
        if isinstance(reason, str) and ("MLP" in name or "Experts" in name) and not made.in_tower(path):
            found.setdefault(name, f"{UNKNOWN}: {reason}")
    return Answer(found, BITWISE) if found else Answer("none", "no module is an MLP that a fit suits")


def projections(made: Subject) -> Answer:
    """Class of an MLP -> names of its projections."""
    found: dict[str, dict[str, str]] = {}
    for _, module, fit in made.of(*MLPS):
        names = {**fits.PROJECTIONS, **{k: v for k, v in fit.options.items() if k in ("gate", "up", "down", "merged")}}
        wanted = {k: v for k, v in names.items() if v in module._modules}
        if wanted:
            found[type(module).__name__] = wanted
    if not found:
        return Answer("none", "no MLP is known")
    return Answer(found, f"children of a module whose forward is {BITWISE}")


def _experts_of(made: Subject) -> Iterator[tuple[str, Any, int]]:
    """Path, module and number of the experts of each mixture."""
    for path, module in made.model.named_modules():
        if hasattr(type(module), "_apply_gate") or type(module).__name__.endswith("Experts"):
            stacked = [p.shape[0] for p in module.parameters() if p.dim() == 3]
            yield path, module, stacked[0] if stacked else len(list(module.children()))
        elif isinstance(module, nn.ModuleList) and path.endswith("experts"):
            yield path, module, len(module)


def experts(made: Subject) -> Answer:
    """Class of the experts."""
    for path, module, count in _experts_of(made):
        return Answer(type(module).__name__, f"{path}: {count} experts")
    return Answer("none", "no module is called experts or has an _apply_gate")


def router(made: Subject) -> Answer:
    """Class and name of the module that chooses experts."""
    for path, _, count in _experts_of(made):
        parent = made.model.get_submodule(path.rpartition(".")[0])
        for name, child in parent.named_children():
            if any(count in p.shape for p in child.parameters()) and not path.endswith(f".{name}"):
                shapes = ", ".join(str(tuple(p.shape)) for p in child.parameters())
                return Answer(f"{type(child).__name__} ({name})", f"beside {path}, with parameters {shapes}")
        raise LookupError(f"no module beside {path} has a parameter for each of {count} experts")
    return Answer("none", "it has no experts")


def shared_expert(made: Subject) -> Answer:
    """Class and name of the MLP that sees each token beside the experts."""
    for path, _, _ in _experts_of(made):
        parent = path.rpartition(".")[0]
        for at, module, fit in made.of(*MLPS):
            if at.rpartition(".")[0] == parent and at != path:
                return Answer(f"{type(module).__name__} ({at.rpartition('.')[2]})", f"{at}: {fit.id} beside {path}")
        return Answer("none", f"no MLP that a fit suits stands beside {path}")
    return Answer("none", "it has no experts")


def kind(made: Subject) -> Answer:
    """Dense or MoE; hybrid where attention is not all that mixes tokens."""
    path, layers = made.layers
    mixture = next(_experts_of(made), None)
    words, evidence = ["MoE" if mixture else "dense"], [f"{mixture[0]} holds experts" if mixture else "no experts"]
    mixing = [n for layer in layers for n, m in layer.named_modules() if isinstance(m, nn.Conv1d)]
    if mixing:
        attends = any("Attention" in type(m).__name__ for layer in layers for m in layer.modules())
        words.append("hybrid" if attends else "without attention")
        evidence.append(f"layers of {path} hold the convolution {mixing[0]}{' and attention' if attends else ''}")
    return Answer(", ".join(words), "; ".join(evidence))


def rope(made: Subject) -> Answer:
    """Class of an attention -> fit, which says how it rotates."""
    found = {type(m).__name__: f"{fit.id} ({fit.options['function']})" for _, m, fit in made.of("rope", "rope_complex")}
    for path, reason in made.found.items():
        module = made.model.get_submodule(path)
        if isinstance(reason, str) and rotary(module) and not made.in_tower(path):
            found.setdefault(type(module).__name__, f"{UNKNOWN}: {reason}")
    text = getattr(made.config, "text_config", made.config)
    scaled = f"; config.rope_parameters is {getattr(text, 'rope_parameters', None)}"
    return Answer(found, BITWISE + scaled) if found else Answer("none", f"no module calls a rotary function{scaled}")
