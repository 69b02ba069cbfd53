"""Patch a small model of every language model type of the installed transformers and compare it with upstream's.

    python tools/sweep.py mistral qwen3      these types
    python tools/sweep.py --all --write      every type, and the table, docs/models-<version>.md

Each type runs in a process of its own with a time limit. Loss and all gradients in fp32, reference kernels: a mismatch,
a crash or a patch that cannot be undone is exit status 1. What cannot be built or run even unpatched is named.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from torch import Tensor

import liger
from liger.plugins import describe
from liger.report import Report
from liger.testing.models import RELATIVE, step
from tiny_models import batches, make, types

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
TABLE = PAGE.with_name(f"models-{transformers.__version__}.md")
SECONDS = 120  # of one type; the slowest that are known take 20
FAILED = ("mismatch", "crash")
SAMPLE = (
    "mistral", "qwen3_moe", "phi3", "olmo2", "cohere2", "gpt_oss", "glm4", "deepseek_v3", "llama4_text",
    "qwen2_5_vl", "falcon_h1", "t5gemma", "llama", "gemma3n_text", "gemma4", "mistral3", "qwen3_next",
    "qwen3_5_moe", "granitemoehybrid", "lfm2", "nemotron", "olmo_hybrid", "phimoe", "deepseek_v4",
    "ernie4_5_moe", "paligemma", "t5", "bart", "whisper", "gpt2", "bert", "opt", "bamba", "zamba2", "stablelm",
    "bitnet", "nanochat", "glm5_next", "mamba2", "blip",
)  # fmt: skip
"""What runs with the tests: each kind of norm, MLP, RoPE, head and model, declared and not; 10 s of processor time."""


@dataclass
class Outcome:
    """What happened to one type.

    Attributes:
        status: "equal", "mismatch", "crash", or "not run": upstream's own model could not be built or run.
        batch: what the batch held: images, sound or text.
        patched: op -> modules.
        left: class -> why it was left alone.
        error: largest relative error of loss and gradients.
    """

    model_type: str
    kind: str
    cls: str
    status: str = "not run"
    reason: str = ""
    batch: str = ""
    patched: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    error: float = 0.0
    seconds: float = 0.0


def check(model_type: str, kind: str, cls: str) -> Outcome:
    """Build, patch and compare one type in this process."""
    out = Outcome(model_type, kind, cls)
    start = time.monotonic()
    fresh, inputs = None, None
    for fill in (False, True):
        try:
            fresh = make(model_type, cls, fill=fill)
        except Exception as error:
            out.reason = out.reason or _short(f"cannot be built small: {describe(error)}")
            continue
        out.batch, inputs, out.reason = _runs(copy.deepcopy(fresh))
        if inputs is not None:
            break
    if fresh is not None:
        try:
            _patch_and_compare(out, copy.deepcopy(fresh), fresh, inputs)
        except Exception as error:
            out.status, out.reason = "crash", _short(describe(error))
    out.seconds = round(time.monotonic() - start, 1)
    return out


def _runs(model: Any) -> tuple[str, dict[str, Tensor] | None, str]:
    """The first batch on which upstream's own model trains; why none does."""
    reason = "upstream's model took none of the batches"
    for name, inputs in batches(model):
        try:
            _step(model, inputs)
        except Exception as error:
            reason = _short(f"does not train unpatched on {name}: {describe(error)}")
        else:
            return name, inputs, ""
    return "", None, reason


def _step(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)  # for dropout
    random.seed(0)
    numpy.random.seed(0)  # upstream masks stretches of sound with it
    return step(model, **inputs)[:2]


def _patch_and_compare(out: Outcome, plain: Any, patched: Any, inputs: dict[str, Tensor] | None) -> None:
    report = liger.autopatch(patched, prefer="reference")
    out.patched = dict(sorted(Counter(row.op for row in report.applied).items()))
    out.left = {row.cls: _short(row.reason) for row in report.skipped if not row.idle}
    if wrong := _not_verified(plain):
        out.status, out.reason = "mismatch", wrong
        return
    if inputs is not None:
        out.error, where = largest_error(_step(plain, inputs), _step(patched, inputs))
        out.status = "equal" if out.error <= RELATIVE else "mismatch"
        out.reason = "" if out.status == "equal" else f"{where} differs by {out.error:.1e}"
    liger.unpatch(patched)
    if [type(module) for module in patched.modules()] != [type(module) for module in plain.modules()]:
        out.status, out.reason = "crash", "unpatch left other classes behind"


def _not_verified(model: Any) -> str:
    """A part whose replacement, by itself and with its own weights, is outside the contract."""
    report: Report = liger.plan(model, prefer="reference", verify=True)
    wrong = [f"{row.cls}: {row.reason}" for row in report.skipped if "outside the contract" in row.reason]
    return _short(wrong[0]) if wrong else ""


def largest_error(
    expected: tuple[Tensor, dict[str, Tensor]], found: tuple[Tensor, dict[str, Tensor]]
) -> tuple[float, str]:
    """The largest error of loss and gradients, by the norm of each or a thousandth of the largest gradient's; where."""
    (loss, gradients), (got_loss, got) = expected, found
    if gradients.keys() != got.keys():
        return math.inf, f"the set of gradients ({', '.join(sorted(gradients.keys() ^ got.keys())[:3])})"
    largest = max((float(g.double().norm()) for g in gradients.values()), default=0.0)
    errors = {f"the gradient of {name}": _error(g, got[name], 1e-3 * largest) for name, g in gradients.items()}
    errors["the loss"] = _error(loss, got_loss, 0.0)
    where = max(errors, key=errors.__getitem__)
    return errors[where], where


def _error(expected: Tensor, found: Tensor, floor: float) -> float:
    """Norm of the error by that of ``expected``, ``floor`` at least; infinite where only one of them is not finite."""
    if not torch.equal(expected.isfinite(), found.isfinite()):
        return math.inf
    expected, found = (torch.where(t.isfinite(), t, 0.0).double() for t in (expected, found))
    return float((found - expected).norm()) / max(float(expected.norm()), floor, 1e-30)


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


# -- All of them -------------------------------------------------------------------------------------------------------
def sweep(names: Iterable[str]) -> list[Outcome]:
    """Check each type in a process of its own, forked from this one: transformers is imported once."""
    context = multiprocessing.get_context("fork")
    known, outcomes = types(), []
    for name in names:
        kind, cls = known[name]
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(sender, name, kind, cls))
        process.start()
        sender.close()
        outcome = Outcome(name, kind, cls, "crash", f"took longer than {SECONDS} s")
        if receiver.poll(SECONDS):
            try:
                outcome = receiver.recv()
            except EOFError:
                process.join()
                outcome.reason = f"its process ended with {process.exitcode}"
        process.kill()
        process.join()
        outcomes.append(outcome)
        print(line(outcome), flush=True)
    return outcomes


def _send(sender: Any, name: str, kind: str, cls: str) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    sender.send(check(name, kind, cls))


def line(outcome: Outcome) -> str:
    """One line for a person who waits."""
    patched = ", ".join(f"{op} x{count}" for op, count in outcome.patched.items()) or "nothing patched"
    error = f" {outcome.error:.0e} on {outcome.batch}" if outcome.status == "equal" else f" ({outcome.reason})"
    return f"{outcome.model_type}: {outcome.status}{error}; {patched} [{outcome.seconds} s]"


# -- The table ---------------------------------------------------------------------------------------------------------
HEAD = """# Model types of transformers {version}

Written by `nox -s sweep -- --all --write`. Of each language model type of transformers a small model was built, patched
with reference kernels and compared with unpatched: loss and all gradients in fp32. The parts of a type that no package
declares are recognised, and what is not known is left alone.

{counts}

Equal means: within {relative:.0e} of each gradient's norm (or of a thousandth of the largest one's). The batch held
text unless another word is there. "not run" has upstream's words: the small model could not be built or trained even
unpatched, so that what is patched was compared part by part alone.
"""
COLUMNS = "| type | result | patched | left alone |\n|---|---|---|---|\n"


def page(outcomes: list[Outcome]) -> str:
    """The text of docs/models.md: what was compared, and where the table is."""
    head = HEAD.format(version=transformers.__version__, counts=_counts(outcomes), relative=RELATIVE)
    return f"{head}\nThe table: [{TABLE.name}]({TABLE.name}).\n"


def table(outcomes: list[Outcome]) -> str:
    """The text of the table, a row for each type."""
    title = f"# Model types of transformers {transformers.__version__}, one by one\n\n"
    head = f"[models.md]({PAGE.name}) says what the columns mean.\n\n{COLUMNS}"
    return title + head + "".join(f"{_row(outcome)}\n" for outcome in outcomes)


def write(outcomes: list[Outcome]) -> None:
    """Write both, and remove the table of another version."""
    for old in PAGE.parent.glob("models-*.md"):
        old.unlink()
    PAGE.write_text(page(outcomes), encoding="utf-8")
    TABLE.write_text(table(outcomes), encoding="utf-8")


def _counts(outcomes: list[Outcome]) -> str:
    equal = [o for o in outcomes if o.status == "equal"]
    patched = [o for o in outcomes if o.patched]
    fused = [o for o in outcomes if "linear_cross_entropy" in o.patched]
    norms = [o for o in outcomes if any("norm" in op for op in o.patched)]
    failed = Counter(o.status for o in outcomes if o.status in FAILED)
    left = sum(o.status == "not run" for o in outcomes)
    return (
        f"{len(outcomes)} types: {len(equal)} compared and equal, {failed['mismatch']} mismatches, {failed['crash']} "
        f"crashes, {left} not run. Parts are patched in {len(patched)}, the fused loss in {len(fused)}, norms in "
        f"{len(norms)}."
    )


def _row(outcome: Outcome) -> str:
    patched = ", ".join(f"{op} {count}" for op, count in outcome.patched.items())
    left = "; ".join(f"{cls}: {reason}" for cls, reason in outcome.left.items())
    batch = f", {outcome.batch}" if outcome.batch not in ("", "text") else ""
    result = f"equal{batch}" if outcome.status == "equal" else f"{outcome.status}: {outcome.reason}"
    return f"| {outcome.model_type} | {result} | {patched} | {left} |"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="Model types; by default a fixed sample.")
    parser.add_argument("--all", action="store_true", help="Every language model type of transformers.")
    parser.add_argument("--write", action="store_true", help="Write docs/models.md and its table; only with --all.")
    parser.add_argument("--json", type=Path, help="Write the outcomes to this file as well.")
    args = parser.parse_args(argv)
    known = types()
    if unknown := [name for name in args.types if name not in known]:
        parser.error(f"transformers {transformers.__version__} has no language model type {', '.join(unknown)}")
    if args.write and not args.all:
        parser.error("--write needs --all: the table has every type")
    outcomes = sweep(known if args.all else args.types or [name for name in SAMPLE if name in known])
    if args.json:
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1), encoding="utf-8")
    if args.write:
        write(outcomes)
    print(_counts(outcomes))
    return int(any(o.status in FAILED for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
