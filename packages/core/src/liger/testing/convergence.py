"""Training the mini of a model type with and without Liger on real text, in one process, and comparing what comes out.

How far apart two trainings may be is not a number of one model: in fp32 a patched training may differ from upstream's
by what 32 steps make of roundings; in bf16 both part ways, and must stay equally close to the same training in fp32.

A model may make more of roundings than others: a router picks another expert after one. Where patched is too far,
upstream is also trained from the same weights rounded otherwise, and patched may be twice as far as the furthest of
those. Not so the gradients of step 1 in fp32, which come before any such choice.
"""

from __future__ import annotations

import functools
import math
import pydoc_data.topics
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

import liger
from liger.testing.models import Pair, expect, find, gradients, noise
from liger.testing.observe import count_ops

STEPS, ROWS, TOKENS, TOP, RATE = 32, 4, 64, 20, 1e-3
MODES: Mapping[str, Mapping[str, Any]] = {"fused-loss": {}, "with-logits": {"logits": "full"}}
"""What a patched model's forward is given beside the batch."""
ALLOWED = {"loss": 1e-4, "gradient": 1e-5, "final": 1e-3, "log-probs": 1e-2}
"""In fp32: of each loss and each gradient of step 1, of each final parameter (by what AdamW can have moved it, if that
is more), and of the log-probs that upstream finds most likely, which are compared as they are."""
NUDGES = (1, 2, 3)
"""Seeds of the roundings that upstream begins with where patched is too far."""


class Run(NamedTuple):
    """One training: losses (STEPS,), gradients of step 1, final parameters, log-probs (ROWS, TOKENS, V) at the end."""

    losses: Tensor
    first: Mapping[str, Tensor]
    final: Mapping[str, Tensor]
    logprobs: Tensor


class Miss(NamedTuple):
    """What is further from its expectation than the rule allows."""

    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what} is off by {self.error:.1e}, allowed {self.allowed:.1e}"


def check_fp32(pair: Pair, mode: str) -> list[Miss]:
    """Train in fp32 in one of ``MODES`` and compare with upstream's training.

    Raises:
        ContractViolation: upstream's does not learn, gradients exist on one side only, or a number is not finite.
    """
    truth = baseline(pair.patch.model_type, torch.float32, pair.device)
    learns = float(truth.losses[:4].mean() - truth.losses[-4:].mean())
    expect(learns > 0.5, f"upstream's own loss falls by {learns:.2f}: equality would show nothing, take a larger mini")
    found = _apart_fp32(train(pair, torch.float32, True, **MODES[mode]), truth)
    allowed = _allowed(found)
    for nudge in NUDGES:
        if not _misses(found, allowed):
            break
        other = _apart_fp32(train(pair, torch.float32, False, nudge=nudge), truth)
        chaos = {name: 2 * error for name, error in other.items() if _kind(name) != "gradient"}
        allowed = {name: max(bound, chaos.get(name, 0.0)) for name, bound in allowed.items()}
    return _misses(found, allowed)


def check_kernels(pair: Pair, kernels: Mapping[str, str], steps: int) -> list[Miss]:
    """The same for the first steps, with kernels chosen by hand for some ops: on a CPU in Triton's interpreter.

    Raises:
        ContractViolation: as ``check_fp32``, or one of the kernels was not called.
    """
    truth = train(pair, torch.float32, False, steps=steps)
    with count_ops() as counts:
        found = train(pair, torch.float32, True, steps=steps, prefer=kernels)
    idle = kernels.items() - counts.keys()
    expect(not idle, f"not called: {sorted(idle)}, called were {sorted(counts)}")
    errors = _apart_fp32(found, truth)
    return _misses(errors, _allowed(errors))


def check_bf16(pair: Pair, mode: str) -> list[Miss]:
    """The same in bf16: at most twice as far from the training in fp32 as upstream's in bf16, and a rounding."""
    truth = baseline(pair.patch.model_type, torch.float32, pair.device)
    found = apart(train(pair, torch.bfloat16, True, **MODES[mode]), truth)
    upstream = apart(baseline(pair.patch.model_type, torch.bfloat16, pair.device), truth)
    for nudge in NUDGES:
        if not _misses(found, _twice(upstream)):
            break
        other = apart(train(pair, torch.bfloat16, False, nudge=nudge), truth)
        upstream = {name: max(error, other[name]) for name, error in upstream.items()}
    return _misses(found, _twice(upstream))


CHECKS = {"fp32": check_fp32, "bf16": check_bf16}


def train(
    pair: Pair,
    dtype: torch.dtype,
    patched: bool,
    nudge: int = 0,
    steps: int = STEPS,
    prefer: Mapping[str, str] | None = None,
    **inputs: Any,
) -> Run:
    """Train a mini with AdamW; ``inputs`` are for a patched forward, ``nudge`` rounds the weights otherwise."""
    model = pair.plain(dtype)
    if nudge:
        _round_otherwise(model, pair.plain(torch.float32), nudge)
    if patched:
        liger.autopatch(model, strict=True, prefer=prefer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-5)
    torch.manual_seed(0)  # for routers that draw
    losses: list[Tensor] = []
    first: dict[str, Tensor] = {}
    for ids in _batches(pair.device)[:steps]:
        optimizer.zero_grad()
        loss = model(**pair.seen(ids, dtype), labels=ids, **(inputs if patched else {})).loss
        loss.backward()
        first = first or gradients(model)
        optimizer.step()
        losses.append(loss.detach().float())
    model.eval()
    with torch.no_grad():
        logprobs = model(input_ids=_batches(pair.device)[0]).logits.float().log_softmax(-1)
    return Run(torch.stack(losses), first, {n: p.detach() for n, p in model.named_parameters()}, logprobs)


@functools.lru_cache(maxsize=4)
def baseline(model_type: str, dtype: torch.dtype, device: str) -> Run:
    """Training without Liger, which the checks of a model type share."""
    return train(Pair(find(model_type), device), dtype, False)


def _batches(device: str) -> Tensor:
    """Real English text, byte by byte (STEPS, ROWS, TOKENS); it depends on the Python version, as both sides do."""
    text = " ".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)[: STEPS * ROWS * TOKENS].long()
    return ids.view(STEPS, ROWS, TOKENS).to(device)


def _round_otherwise(model: Any, wide: Any, seed: int) -> None:
    """Give ``model`` the weights of ``wide`` moved at random by up to half a unit in the last place, then rounded."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), wide.parameters(), strict=True):
            noise = torch.rand(weight.shape, generator=generator, dtype=torch.float64).to(weight.device) - 0.5
            parameter.copy_(weight.double() * (1 + torch.finfo(parameter.dtype).eps * noise))


def _allowed(errors: Mapping[str, float]) -> dict[str, float]:
    return {name: ALLOWED[_kind(name)] for name in errors}


def apart(run: Run, truth: Run) -> dict[str, float]:
    """How far a training is from another one, by what is compared."""
    sides = sorted(run.first.keys() ^ truth.first.keys())
    expect(not sides, f"gradients of {sides} exist on one side only")
    values, others = likeliest(run, truth)
    least = noise(truth.first, ALLOWED["gradient"])
    return {
        "losses": _relative(run.losses, truth.losses) * STEPS**0.5,  # on one step
        "log-probs": _relative(others, values),
        **{f"gradient of {n}": _relative(run.first[n], g, least) for n, g in truth.first.items()},
        **{f"final {n}": _relative(run.final[n], p, _moved(p)) for n, p in truth.final.items()},
    }


def _apart_fp32(run: Run, truth: Run) -> dict[str, float]:
    """As ``apart``, with the worst loss of all steps and the worst log-prob."""
    values, others = likeliest(run, truth)
    return {
        **apart(run, truth),
        "losses": float(((run.losses - truth.losses).abs() / truth.losses).max()),
        "log-probs": float((others - values).abs().max()),
    }


def likeliest(run: Run, truth: Run) -> tuple[Tensor, Tensor]:
    """The ``TOP`` largest log-probs (ROWS, TOKENS, TOP) of the truth, and what the run has in their places."""
    values, indices = truth.logprobs.topk(TOP)
    return values, run.logprobs.gather(-1, indices)


def _relative(found: Tensor, expected: Tensor, least: float = 1e-30) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(least))


def _moved(parameter: Tensor) -> float:
    """How far AdamW can move a parameter: one that begins at 0 and has no gradient but noise is small beside it."""
    return float(STEPS * RATE * parameter.numel() ** 0.5)


def _kind(name: str) -> str:
    return next(kind for kind in ALLOWED if name.startswith(kind))


def _twice(errors: Mapping[str, float]) -> dict[str, float]:
    """Twice as far and a rounding."""
    return {name: 2 * error + 2**-8 for name, error in errors.items()}


def _misses(errors: Mapping[str, float], allowed: Mapping[str, float]) -> list[Miss]:
    wrong = [name for name, error in errors.items() if math.isnan(error)]
    expect(not wrong, f"{', '.join(wrong[:3])} is not a number")
    return [Miss(name, error, allowed[name]) for name, error in errors.items() if error > allowed[name]]
