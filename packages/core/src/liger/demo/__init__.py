"""The demo: one model fine-tuned twice, without Liger and with it, and what differs.

    liger demo                       # SmolLM2-135M, some minutes on two CPU cores
    liger demo --quick               # the same, shorter
    liger demo --model tiny-gemma2   # a random little model of an installed family

Each side is a process of its own (`worker`), so neither sees the other's memory. `offer` says what can be run here,
`run` starts the workers, `show` prints and draws. Importing this package imports no torch, transformers, matplotlib.
"""

from __future__ import annotations

from pathlib import Path

OUT = Path("build/demo")


def main(model: str | None = None, quick: bool = False, out: Path | None = None, device: str | None = None) -> int:
    """Run the demo and return an exit code: 0 if both sides agree and the patched one needs less memory.

    Args:
        model: `smollm2`, or `tiny-<model type>` for an installed family; by default the best that can be run here.
        quick: fewer steps and tokens.
        out: folder for the pictures and the JSON; `build/demo` by default.
        device: `cpu` or `cuda`; by default CUDA where there is any.
    """
    from rich.console import Console

    from liger.demo import offer, run, show

    console = Console()
    subject = offer.choose(model, console)
    if subject is None:
        return 1
    folder = OUT if out is None else out
    specs = run.specs(subject, quick=quick, device=device)
    show.opening(console, specs[0])
    try:
        sides = run.both(specs, folder, console)
    except run.WorkerFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return show.closing(console, specs[0], sides, folder)
