"""One side of the demo, in a process of its own: `python -m liger.demo.worker '<spec as JSON>'`.

Writes a line of JSON per event to stdout: `{"done": 3}` after each step, `{"outcome": {...}}` at the end.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from liger.demo.memory import peak
from liger.demo.spec import Outcome, Spec
from liger.demo.subject import load, only_the_head, window

WARM_UP = 8  # tokens


def run(spec: Spec) -> Outcome:
    """Load, patch if this is the patched side, then the memory run and the full fine-tune."""
    import torch

    device = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(spec.seed)
    model, ids = load(spec.subject)
    model.to(device).train()
    model.config.use_cache = False
    report = None
    if spec.side == "patched":
        import liger

        report = liger.autopatch(model)
    done = _counter()
    done()
    memory_losses, memory, how = memory_run(spec, model, ids.to(device), done)
    losses, full_memory, seconds = fine_tune(spec, model, ids.to(device), done)
    return Outcome(
        losses=losses,
        memory_losses=memory_losses,
        memory=memory,
        full_memory=full_memory,
        memory_how=how,
        tokens_per_second=spec.tokens * (spec.steps - 1) / seconds,
        device=torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads",
        model=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        vocabulary=model.config.vocab_size,
        hidden=model.config.hidden_size,
        softcap=getattr(model.config, "final_logit_softcapping", None) is not None,
        versions={"python": platform.python_version(), "torch": torch.__version__}
        | {name: version(name) for name in ("transformers", "liger-core")},
        report=report.to_dict() if report else None,
        report_text=str(report) if report else None,
    )


def memory_run(spec: Spec, model: Any, ids: Any, done: Any) -> tuple[list[float], int | None, str]:
    """Train the head alone on long stretches: losses, peak in bytes, how it was measured.

    SGD keeps no state, so what is measured is the step: activations, logits, gradients. A step over a few tokens comes
    first, for libraries that a first step loads are no part of it.
    """
    import torch

    losses = []
    with only_the_head(model) as weight:
        optimiser = torch.optim.SGD([weight], lr=spec.learning_rate)
        step(model, torch.optim.SGD([weight], lr=0.0), window(ids, 0, WARM_UP))
        with peak(str(weight.device)) as meter:
            for index in range(spec.memory_steps):
                losses.append(step(model, optimiser, window(ids, index, spec.memory_tokens)))
                done()
    return losses, meter.bytes, meter.how


def fine_tune(spec: Spec, model: Any, ids: Any, done: Any) -> tuple[list[float], int | None, float]:
    """Train every parameter: losses, peak in bytes, seconds without the first step."""
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)
    losses, start = [], 0.0
    with peak(str(ids.device)) as meter:
        for index in range(spec.steps):
            losses.append(step(model, optimiser, window(ids, index, spec.tokens)))
            done()
            start = start or time.perf_counter()
    return losses, meter.bytes, time.perf_counter() - start


def step(model: Any, optimiser: Any, ids: Any) -> float:
    """One training step; the output is dropped before the backward pass, as trainers do, and its logits with it."""
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    return float(loss.detach())


def _counter() -> Any:
    """A function that reports one more unit of work each time it is called."""
    count = 0

    def done() -> None:
        nonlocal count
        count += 1
        print(json.dumps({"done": count}), flush=True)

    return done


if __name__ == "__main__":
    print(json.dumps({"outcome": asdict(run(Spec.from_json(sys.argv[1])))}), flush=True)
