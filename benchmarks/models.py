"""Training steps of whole models, upstream's and patched, eager and compiled, in turn: time, and peak of memory.

python benchmarks/models.py OUT [CASE ...]        # a GPU; OUT gets models.json

Compiled, ``patched`` has plain torch where an op is traced (``Op.traced_on``), and ``kernels`` a kernel everywhere.
Peaks are above what is there before the step: the weights. The estimate is what ``liger plan --batch B --seq T`` says.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import liger
from liger.bench.run import about
from liger_hf.commands import meta_model
from liger_hf.memory import estimate

LAYERS = 4  # of each: the time of a whole model is that of its layers times their number, and of one head


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of a model and of its batch."""

    config: str
    batch: int
    seq: int
    sizes: dict[str, int]

    def make(self) -> Any:
        """The config, with few layers."""
        return getattr(transformers, self.config)(
            **self.sizes,
            num_hidden_layers=LAYERS,
            max_position_embeddings=8192,
            tie_word_embeddings=self.config != "LlamaConfig",
        )


def sizes(hidden: int, inner: int, heads: int, kv: int, head_dim: int, vocab: int) -> dict[str, int]:
    """In the words of transformers."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": vocab,
    }


CASES = {
    "Llama, 1024 wide": Case("LlamaConfig", 4, 1024, sizes(1024, 2816, 16, 16, 64, 32000)),
    "Llama 3 8B": Case("LlamaConfig", 2, 4096, sizes(4096, 14336, 32, 8, 128, 128256)),
    "Qwen3 0.6B": Case("Qwen3Config", 4, 4096, sizes(1024, 3072, 16, 8, 128, 151936)),
    "Gemma 2 2B": Case("Gemma2Config", 2, 2048, sizes(2304, 9216, 8, 4, 256, 256000)),
}
Step = Callable[[], None]


def made(case: Case) -> Any:
    """A model in training, with the same weights each time."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(case.make(), dtype=torch.bfloat16).train()


def patched(case: Case, prefer: str | None = None) -> Any:
    """A patched model, with the kernels that are chosen by themselves, or with one by its name."""
    model = made(case)
    liger.autopatch(model, prefer=prefer, strict=True)  # what is timed as patched is patched in all parts
    return model


def variants(case: Case, compiled: bool) -> Iterator[tuple[str, Any]]:
    """Name and model, one after another."""
    yield "upstream", made(case)
    yield "patched", patched(case)
    if compiled:
        yield "kernels", patched(case, "triton")


def step_of(model: Any, case: Case) -> Step:
    """A forward and backward on the same tokens each time."""
    size = (case.batch, case.seq)
    tokens = torch.randint(
        case.sizes["vocab_size"], size, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    )

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()

    return step


def peak(step: Step) -> float:
    """MiB of a step above what is there before it, gradients included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def ms(step: Step) -> float:
    """Milliseconds of one step on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measured(case: Case, compiled: bool, repetitions: int) -> list[dict[str, Any]]:
    """A row for each variant of a case, timed in turn."""
    steps, rows = {}, {}
    for name, model in variants(case, compiled):
        if compiled:
            model.compile()
        steps[name] = step = step_of(model, case)
        for _ in range(3):
            step()
        model.zero_grad(set_to_none=True)
        rows[name] = {"variant": name, "compiled": compiled, "peak_mib": peak(step)}
        model.zero_grad(set_to_none=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            times[name].append(ms(step))
    upstream = statistics.median(times["upstream"])
    for name, values in times.items():
        middle = statistics.median(values)
        rows[name] |= {"ms": middle, "low": min(values), "high": max(values), "of_upstream": middle / upstream}
    return list(rows.values())


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", choices=list(CASES))
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    rows = []
    for name in args.cases or CASES:
        case = CASES[name]
        guess = estimate(functools.partial(meta_model, case.make()), case.batch, case.seq, torch.bfloat16)
        for compiled in (False, True):
            for row in measured(case, compiled, args.repetitions):
                at = {"upstream": 0, "patched": 1}.get(row["variant"]) if not compiled else None
                said = guess.peak[at] / 2**20 if at is not None else None
                rows.append(
                    {"case": name, **asdict(case), "layers": LAYERS, **row, "estimate_mib": said, **about("cuda")}
                )
                how = "compiled" if compiled else "eager"
                print(
                    f"{name:18} {how:9} {row['variant']:10} {row['ms']:8.2f} ms {row['of_upstream']:5.2f}"
                    f" {row['peak_mib']:8.0f} MiB" + (f", estimated {said:.0f}" if said else ""),
                    flush=True,
                )
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "models.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
