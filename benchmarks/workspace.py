"""linear_cross_entropy from the least memory to the most speed: time and peak by ``workspace_mb``, and its products.

python benchmarks/workspace.py OUT          # a GPU; OUT gets workspace.json and workspace.png
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import liger
from liger.bench.inputs import Inputs, make
from liger.bench.measure import make_runner, peaks, release
from liger.bench.options import Options
from liger.bench.providers import Provider
from liger.bench.run import about, ready
from liger.bench.stats import quantiles
from liger.bench.timing import interleave, products
from liger.registry import registry

OP, DEFAULT = "linear_cross_entropy", "default"
SIZES = ({"N": 4096, "H": 4096, "V": 128256}, {"N": 16384, "H": 4096, "V": 128256})
BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)  # MiB of logits


def settings() -> dict[str, Provider]:
    """The op with each budget."""
    fn = functools.partial(liger.ops.linear_cross_entropy, kernel="triton")
    budgets = {str(mb): functools.partial(fn, workspace_mb=float(mb)) for mb in BUDGETS}
    return {name: Provider(name=name, fn=f, modes=("full",)) for name, f in {DEFAULT: fn, **budgets}.items()}


def curve(sizes: dict[str, int], device: str, repetitions: int) -> list[dict[str, Any]]:
    """A row for each budget at one size: ms, share of the products interleaved with it, peak MiB above the inputs."""
    inputs: Inputs = make(registry().op(OP), sizes, device)
    found = settings()
    memory = {name: peaks(provider, inputs, device)["full"] for name, provider in found.items()}
    runners = {name: make_runner(provider, "full", inputs, device) for name, provider in found.items()}
    runners["cuBLAS"] = products(inputs, device)
    times = {name: quantiles(values)[1] for name, values in interleave(runners, repetitions).items()}
    limit = times.pop("cuBLAS")
    rows = [
        {"sizes": sizes, "workspace_mb": name, "ms": ms, "share": 100 * limit / ms, "peak_mib": memory[name]}
        for name, ms in times.items()
    ]
    return [{**row, **about(device)} for row in rows]


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Time against memory, a line for each size; the default is a square."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(SIZES), 4), layout="constrained")
    for axes, sizes in zip(figure.subplots(1, len(SIZES)), SIZES, strict=True):
        mine = [r for r in rows if r["sizes"] == sizes]
        dial = [r for r in mine if r["workspace_mb"] != DEFAULT]
        axes.plot([r["peak_mib"] for r in dial], [r["ms"] for r in dial], "o-", color="black")
        for r in dial:
            axes.annotate(r["workspace_mb"], (r["peak_mib"], r["ms"]), textcoords="offset points", xytext=(4, 5))
        usual = next(r for r in mine if r["workspace_mb"] == DEFAULT)
        axes.plot([usual["peak_mib"]], [usual["ms"]], "s", label="default", color="C3")
        axes.axhline(usual["ms"] * usual["share"] / 100, linestyle=":", color="gray", label="cuBLAS products")
        axes.set(xlabel="peak MiB above the inputs", ylabel="ms, forward and backward", xscale="log")
        axes.set_title(", ".join(f"{k}={v}" for k, v in sizes.items()), fontsize="medium")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.suptitle(f"{OP} over workspace_mb, bf16, {rows[0]['device']}", fontsize="medium")
    figure.savefig(file, dpi=110)


def main(out: Path) -> None:
    """Measure, print, write."""
    out.mkdir(parents=True, exist_ok=True)
    options = Options()
    rows = []
    with ready(options):
        for sizes in SIZES:
            rows += curve(dict(sizes), "cuda", options.repetitions)
            release("cuda")
    for r in rows:
        print(
            f"{r['sizes']['N']:6} {r['workspace_mb']:>8} {r['ms']:8.2f} ms {r['share']:5.1f} % {r['peak_mib']:7.0f} MiB"
        )
    (out / "workspace.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    draw(rows, out / "workspace.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
