"""``liger analyze``: what a model type is made of; an answer is a line of upstream's source or a probe, never a guess.

The model is made on the meta device. Its modules are compared with the fits as ``liger.autopatch`` compares them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch

from liger import Fit, upstream
from liger.declare import ModelPatch
from liger.errors import PatchRefused
from liger.plugins import describe
from liger.registry import registry
from liger_hf import anatomy, stub, transform
from liger_hf.commands import meta_model, model_of
from liger_hf.profile import Answer, Profile, line_of, where
from liger_hf.subject import TOWERS, Subject, subject


def analyze(target: str) -> Profile:
    """The profile of a model type, a class of transformers, a model directory or a hub id.

    Raises:
        ValueError: it is none of them, or no model can be made of it.
    """
    import transformers

    made = subject(model_of(target))
    answers = {name: _asked(question, made) for name, question in QUESTIONS.items()}
    return Profile(made.config.model_type, transformers.__version__, answers)


def _asked(question: Callable[[Subject], Answer], made: Subject) -> Answer:
    try:
        return question(made)
    except LookupError as error:
        return Answer(None, str(error.args[0]))
    except Exception as error:  # upstream's code, looked at in a way that it was not written for
        return Answer(None, f"looking for it failed with {describe(error)}")


# -- Classes -----------------------------------------------------------------------------------------------------------
def _class(cls: type) -> Answer:
    return Answer(cls.__name__, f"{where(cls)}: class {cls.__name__}")


def _module(made: Subject) -> Answer:
    return Answer(type(made.model).__module__, f"{where(type(made.model))}: class {type(made.model).__name__}")


def _prefix(made: Subject) -> Answer:
    for cls in type(made.model).__mro__:
        if "base_model_prefix" in vars(cls):
            return Answer(made.model.base_model_prefix, "{1}: {0}".format(*line_of(cls, "base_model_prefix")))
    raise LookupError("no class of it has base_model_prefix")


def _output(made: Subject) -> Answer:
    linear = made.model.get_output_embeddings()
    labels = torch.zeros(1, 2, dtype=torch.long)
    with torch.device("cpu"):
        out = stub.run(
            made.model,
            torch.zeros(1, 2, linear.in_features),
            head=lambda hidden: hidden.new_zeros(*hidden.shape[:-1], linear.out_features),
            loss=lambda logits, *args, **kwargs: logits.sum(),
            labels=labels,
        )
    return Answer(type(out).__name__, "upstream's forward, run with its backbone and its head replaced, returns it")


def _hidden(made: Subject) -> Answer:
    text, place = line_of(type(made.model).forward, r"last_hidden_state|outputs\[0\]|_states\[-1\]|outputs\[1\]")
    return Answer(text, place)


# -- Head --------------------------------------------------------------------------------------------------------------
def _transform(made: Subject) -> Answer:
    head = made.model.get_output_embeddings()
    if head is None:
        raise LookupError("it has no output embeddings")
    try:
        found = transform.find(made.model, head.out_features, head.in_features)
    except PatchRefused as refusal:
        raise LookupError(str(refusal)) from refusal
    words = ["none"] if found[:2] == (1.0, None) else [f"scale {found.scale:g}"] if found.scale != 1 else []
    words += [f"soft cap {found.softcap:g}"] if found.softcap is not None else []
    return Answer(", ".join(words), "known logits, put through upstream's forward")


def _cap_path(made: Subject) -> Answer:
    """Set each field that is called a soft cap to another number, and see whether logits are capped at that."""
    head = made.model.get_output_embeddings()
    tried = []
    for path, config in (("config", made.config), ("config.text_config", getattr(made.config, "text_config", None))):
        for name in [name for name in getattr(config, "__dict__", {}) if "softcap" in name]:
            before = getattr(config, name)
            try:
                setattr(config, name, 7.5)
                found = transform.find(made.model, head.out_features, head.in_features)
            except PatchRefused as refusal:
                raise LookupError(str(refusal)) from refusal
            finally:
                setattr(config, name, before)
            tried.append(f"{path}.{name}")
            if found.softcap is not None and abs(found.softcap - 7.5) < 1e-2:
                return Answer(tried[-1], f"logits are capped at 7.5 where it is 7.5; it is {before}")
    return Answer("none", f"no logit is capped by {', '.join(tried) or 'its config: no field has softcap in its name'}")


# -- Towers, the whole -------------------------------------------------------------------------------------------------
def _towers(made: Subject) -> Answer:
    found = {path: type(made.model.get_submodule(path)).__name__ for path in made.towers}
    fields = ", ".join(sorted(set(made.towers.values())))
    return Answer(found or "none", f"its config is config.{fields}" if found else f"no module has a config of {TOWERS}")


def _forward(made: Subject) -> Answer:
    from transformers import LlamaForCausalLM

    theirs, llamas = (list(inspect.signature(c.forward).parameters) for c in (type(made.model), LlamaForCausalLM))
    more, less = [n for n in theirs if n not in llamas], [n for n in llamas if n not in theirs]
    value = {"more": ", ".join(more) or "none", "missing": ", ".join(less) or "none"}
    return Answer(value, f"{where(type(made.model).forward)}, beside {where(LlamaForCausalLM.forward)}")


def _mini(made: Subject) -> Answer:
    sizes = {name: value for name, value in upstream.SMALL.items() if hasattr(made.config, name)}
    if made.towers or not set(upstream.NEEDED) <= set(sizes):
        raise LookupError("its config has parts, or no single width: docs/add-a-model.md says what a mini must have")
    try:
        meta_model(type(made.config)(**sizes), type(made.model))
    except Exception as error:
        raise LookupError(f"a model with {sizes} cannot be made: {describe(error)}") from error
    return Answer(sizes, "a model of these sizes was made")


def _closest(made: Subject) -> Answer:
    declared = registry().models
    if (name := made.config.model_type) in declared:
        return Answer(name, f"{registry().owner('model', name)} declares it")
    mine = {(fit.id, str(sorted(fit.options.items()))) for fit in made.found.values() if isinstance(fit, Fit)}
    scores: list[tuple[float, str, int]] = []
    for name, patch in sorted(declared.items()):  # of equals the first, in whatever order packages were installed
        theirs = {(fit.id, str(sorted(fit.options.items()))) for fit in _declared(patch)}
        scores.append((len(mine & theirs) / len(mine | theirs), name, len(mine & theirs)))
    share, name, common = max(scores, key=lambda one: (one[0], one[2]), default=(0.0, "", 0))
    if not common:
        raise LookupError("no installed package declares a type that has a fit in common with it")
    return Answer(name, f"{common} fits in common, {share:.0%} of all that either has")


def _declared(patch: ModelPatch) -> list[Fit]:
    return [fit for fit in (*patch.fits.values(), patch.head) if fit is not None]


QUESTIONS: dict[str, Callable[[Subject], Answer]] = {
    "causal class": lambda made: _class(type(made.model)),
    "base class": lambda made: _class(type(made.model.base_model)),
    "config class": lambda made: _class(type(made.config)),
    "modelling module": _module,
    "base prefix": _prefix,
    "output class": _output,
    "hidden states": _hidden,
    "forward beside Llama's": _forward,
    "kind": anatomy.kind,
    "norms": anatomy.norms,
    "cast": anatomy.norm_option("cast"),
    "offset": anatomy.norm_option("offset"),
    "epsilon": anatomy.norm_option("eps"),
    "in place": anatomy.in_place,
    "norms of a layer": anatomy.norms_of_a_layer,
    "norm before attention": anatomy.norm_before_attention,
    "final norm": anatomy.final_norm,
    "activation": anatomy.activation,
    "gate, up, down": anatomy.projections,
    "experts": anatomy.experts,
    "router": anatomy.router,
    "shared expert": anatomy.shared_expert,
    "rope": anatomy.rope,
    "logits": _transform,
    "soft cap": _cap_path,
    "towers": _towers,
    "norms of towers": functools.partial(anatomy.norms, tower=True),
    "mini": _mini,
    "closest declared type": _closest,
}
"""What is asked; a ``LookupError`` is the answer "unknown" with its message as the evidence."""
