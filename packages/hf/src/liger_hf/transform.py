"""Finds out what lies between head and loss by feeding known logits through upstream's own forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Number
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from liger.errors import PatchRefused
from liger_hf import after, stub
from liger_hf.standin import AUTOCAST, autocast, gradients_differ, same

ROWS, TOKENS = 2, 3
NO_LOSS = "its forward does not call self.loss_function"
AT_TRACING = TorchVersion(torch.__version__) >= "2.13"
"""Whether it can be looked for while a graph is made: dynamo of older versions hands no module to such a function."""


class Transform(NamedTuple):
    """``logits -> softcap * tanh(logits * scale / softcap)``, or ``logits * scale`` without a soft cap.

    ``aligned``: its forward tells the loss not to shift the labels, for the decoder's inputs are shifted (canary).
    """

    scale: float
    softcap: float | None
    aligned: bool = False

    def apply(self, logits: Tensor) -> Tensor:
        """The transform in plain torch."""
        if self.softcap is None:
            return logits * self.scale
        return self.softcap * torch.tanh(logits * (self.scale / self.softcap))


class Known:
    """The transform of one model, found again when a number that may decide it has changed since.

    Numbers that were seen to change nothing (a counter, ``use_cache``) are not looked at again, until another one does:
    what it switches on may read them.
    """

    def __init__(self, model: Any, found: Transform | None) -> None:
        self.numbers, self.found, self.idle = _numbers(model), found, set[str]()

    def now(self, model: Any) -> Transform | None:
        """The transform; None where what upstream does now is none, so that its own path must run."""
        seen = _numbers(model)
        names = seen.keys() | self.numbers.keys()
        changed = {name for name in names if seen.get(name) != self.numbers.get(name)} - self.idle
        if changed:
            found = find_now(model)
            far = {name for name in changed if not _close(self.numbers.get(name), seen.get(name))}
            self.idle = self.idle | far if found == self.found else set()
            self.numbers, self.found = seen, found
        return self.found


def find_now(model: Any) -> Transform | None:
    """The transform of a model in the middle of a step; None if it is none."""
    head = model.get_output_embeddings()
    with torch.inference_mode(False):
        try:
            return find(model, head.out_features, head.in_features)
        except PatchRefused:
            return None


def at_call(model: Any, known: Known | None, floats: Sequence[str]) -> Transform | None:
    """The transform that was found at this call.

    While compiling it is looked for again and becomes a constant of the graph. A float that changes would become a
    variable of the graph; dynamo makes a constant of a key of a dictionary, so that the graph is made anew.
    """
    if not torch.compiler.is_compiling():
        return None if known is None else known.found
    if not AT_TRACING:
        return None
    found = _traced(model, len({read(model, path): path for path in floats}))
    return None if found is None else Transform(*found)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traced(model: Any, count: int) -> tuple[Any, ...] | None:
    found = find_now(model)
    return None if found is None else tuple(found)


def floats(model: Any) -> tuple[str, ...]:
    """Paths of the floats among the numbers that may decide the transform."""
    return tuple(path for path, value in _numbers(model).items() if type(value) is float)


def read(model: Any, path: str) -> Any:
    """``read(model, "config.x")`` is ``model.config.x``; dynamo traces it, unlike ``operator.attrgetter``."""
    for name in path.split("."):
        model = getattr(model, name)
    return model


def _close(a: Any, b: Any) -> bool:
    """Whether two floats are so near each other that ``find`` may see no difference though there is one."""
    return isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=0.01)


def _numbers(model: Any) -> dict[str, Any]:
    """Numbers of a model, its backbone and their configs by name: where upstream has its scales and soft caps."""
    config = model.config
    places = {"": model, "config.": config, "config.text_config.": getattr(config, "text_config", None)}
    places |= {f"{name}.": child for name, child in model._modules.items() if stub.config_of(child)}
    values = {f"{at}{n}": v for at, place in places.items() for n, v in _attributes(place).items()}
    seen = {name: _state(value) if isinstance(value, Tensor) else value for name, value in values.items()}
    return {name: value for name, value in seen.items() if value is None or isinstance(value, Number | _State)}


def _attributes(place: Any) -> dict[str, Any]:
    own = getattr(place, "__dict__", {})
    return {**own, **own.get("_buffers", {}), **own.get("_parameters", {})}


class _State(NamedTuple):
    """What tells that a number in a tensor is another one, without waiting for its device."""

    tensor: int
    version: int
    requires_grad: bool


def _state(t: Tensor) -> _State | Tensor:
    """Of a tensor of one element; a larger one is no number."""
    return _State(id(t), 0 if t.is_inference() else t._version, t.requires_grad) if t.numel() == 1 else t


class _Reached(Exception):
    def __init__(self, logits: Tensor, labels: Any, vocab_size: Any, kwargs: dict[str, Any]) -> None:
        self.logits, self.labels, self.vocab_size, self.kwargs = logits, labels, vocab_size, kwargs
        self.modes = _modes()


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(device) for device in AUTOCAST)


def _record(logits: Any = None, labels: Any = None, vocab_size: Any = None, **kwargs: Any) -> NoReturn:
    raise _Reached(logits, labels, vocab_size, kwargs)


def find(model: Any, vocab: int, width: int) -> Transform:
    """Return the transform of a causal LM with a head of shape (vocab, width).

    Raises:
        PatchRefused: upstream does anything else between head and loss, with the reason.
    """
    generator = torch.Generator().manual_seed(0)
    grid = torch.randn(ROWS, TOKENS, vocab, generator=generator) * 20
    grid[0, 0, 0], grid[0, 1, 0], grid[0, 2, 0] = 1e-3, 1e6, -1e6
    hidden = torch.randn(ROWS, TOKENS, width, generator=generator)
    labels = torch.arange(ROWS * TOKENS).view(ROWS, TOKENS) % vocab
    reached = _run(model, hidden, grid, labels)
    shifted = reached.kwargs.get("shift_labels")
    given = [tensor for tensor in (reached.labels, shifted) if tensor is not None]
    if not given or any(tensor is not labels for tensor in given):
        raise PatchRefused("its forward changes the labels before the loss function")
    if reached.vocab_size != vocab:
        raise PatchRefused(f"it passes vocab_size={reached.vocab_size} to the loss, the head has {vocab} rows")
    if reached.logits.requires_grad:
        raise PatchRefused("between head and loss, its forward uses a parameter, which would get no gradient")
    found = _identify(grid, reached.logits.detach().float())._replace(aligned=shifted is labels)
    if reason := gradients_differ(lambda t: _run(model, hidden, t, labels).logits, found.apply, [grid]):
        raise PatchRefused(f"between head and loss, {reason}")
    ignored = torch.full_like(labels, -100)  # of which some compute no loss
    if not same(_run(model, hidden, grid, ignored, training=False).logits, reached.logits):
        raise PatchRefused("between head and loss, its forward does something else in evaluation")
    for training in (True, False):
        after.check(model, hidden, grid, labels, training)
    return found


def _run(model: Any, hidden: Tensor, logits: Tensor, labels: Tensor, training: bool = True) -> _Reached:
    """What reaches the loss where the head returns ``logits``; without training under autocast and without gradients.

    Raises:
        PatchRefused: nothing does, or the head is called in another way.
    """
    calls: list[tuple[int, ...]] = []
    modes: list[tuple[bool, ...]] = []

    def head(hidden: Tensor) -> Tensor:
        calls.append(tuple(hidden.shape))
        modes.append(_modes())
        return logits.clone()

    try:
        with torch.set_grad_enabled(training), nullcontext() if training else autocast():
            stub.run(model, hidden, head=head, loss=_record, training=training, labels=labels)
    except _Reached as reached:
        if calls != [tuple(hidden.shape)]:
            raise PatchRefused(
                f"its forward calls the head with shapes {calls}, expected [{tuple(hidden.shape)}]"
            ) from None
        if modes != [reached.modes]:
            raise PatchRefused("its forward turns autocast or gradients off or on for its head or its loss") from None
        return reached
    except PatchRefused:
        raise
    except Exception as error:
        if any(p.is_meta for p in model.parameters()) and "meta" in str(error):
            needs = "cannot be tried without weights: liger.plan(model) of a model that has them decides"
            raise PatchRefused(f"layers between its backbone and its head {needs}") from error
        raise PatchRefused(f"a probe of its forward failed with {type(error).__name__}: {error}") from error
    raise PatchRefused(NO_LOSS)


def _identify(grid: Tensor, found: Tensor) -> Transform:
    if found.shape != grid.shape:
        raise PatchRefused(f"its forward reshapes the logits from {tuple(grid.shape)} to {tuple(found.shape)}")
    scale = (found[0, 0, 0] / grid[0, 0, 0]).item()
    scale = 1.0 if abs(scale - 1) < 1e-4 else scale
    plain = Transform(scale, None)
    usable = math.isfinite(scale) and scale != 0.0  # others are upstream's to compute: the op takes none
    if usable and torch.allclose(found, plain.apply(grid), rtol=1e-4, atol=1e-4):
        return plain
    softcap = found[0, 1, 0].item()
    capped = Transform(scale, softcap)
    if softcap > 0 and torch.allclose(found, capped.apply(grid), rtol=1e-3, atol=1e-3 * softcap):
        return capped
    raise PatchRefused("what its forward does between head and loss is neither a scale nor a soft cap")
