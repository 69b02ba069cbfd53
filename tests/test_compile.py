"""Whole patched models in ``torch.compile`` with inductor, beside unpatched ones compiled the same way.

What each model package checks of its types with the eager and aot_eager backends is in ``liger.testing.upstream``.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from liger.testing.compiled import count_graphs
from liger.testing.kernels import part
from liger.testing.models import Pair, expect_close, expect_close_gradients, find, step

TYPES = ("llama", "gemma2", "qwen3_moe")  # plain; with soft caps and offset norms; with experts
LENGTHS = (11, 13, 9)


@pytest.fixture(autouse=True)
def compiler(device: str) -> None:
    if device == "cpu" and not shutil.which("g++"):
        pytest.skip("inductor writes C++ for a CPU, and there is no g++")


def compiled(model: Any, batches: list[dict[str, Any]], **options: Any) -> tuple[list[Any], int]:
    """Losses and gradients of a step with each batch, and the number of graphs; compiled in place."""
    with count_graphs() as graphs:
        model.compile(**options)
        steps = [step(model, **batch)[:2] for batch in batches]
    return steps, graphs()


def expect_equal(found: list[Any], expected: list[Any]) -> None:
    for (loss, got), (wanted, gradients) in zip(found, expected, strict=True):
        expect_close(loss, wanted, "the compiled loss")
        expect_close_gradients(got, gradients, "the compiled gradient")


@pytest.mark.parametrize("model_type", TYPES)
def test_inductor_with_lengths_that_change(model_type: str, device: str) -> None:
    """One graph where upstream makes one, no more compilations, the numbers of upstream run as it is."""
    if device == "cpu" and part() != (0, 1):
        pytest.skip("takes minutes on a CPU: where all checks run")
    pair = Pair(find(model_type), device)
    plain, patched = pair.both()
    batches = [pair.batch(tokens=n) for n in LENGTHS]
    expected = [step(plain, **batch)[:2] for batch in batches]
    fullgraph = model_type != "qwen3_moe"  # whose upstream asks the router how many tokens an expert gets
    found, graphs = compiled(patched, batches, fullgraph=fullgraph)
    expect_equal(found, expected)
    _, upstream = compiled(plain, batches, fullgraph=fullgraph)
    assert 0 < graphs <= upstream


def test_undone_while_compiled(device: str) -> None:
    """A compiled model whose patch is undone is compiled anew, not run with what was there before."""
    import liger

    pair = Pair(find("llama"), device)
    plain, patched = pair.both()
    batch = pair.batch()
    patched.compile(backend="aot_eager")
    with liger.testing.count_ops() as counts:
        step(patched, **batch)
    assert counts
    liger.unpatch(patched)
    with liger.testing.count_ops() as counts:
        found = step(patched, **batch)[:2]
    assert not counts
    expect_equal([found], [step(plain, **batch)[:2]])


def test_what_is_fused_by_inductor_is_traced_and_the_report_says_so(device: str) -> None:
    """On a GPU small ops are no walls in a compiled model, the head is a kernel still; a kernel by hand is one."""
    import liger
    from liger import dispatch

    small, head = ("triton", "triton") if device == "cuda" else ("reference", "torch")
    pair = Pair(find("llama"), device)
    plain, model, by_hand = pair.plain(), pair.plain(), pair.plain()
    reports, batch = (liger.autopatch(model), liger.autopatch(by_hand, prefer={"rms_norm": small})), pair.batch()
    expected = step(plain, **batch)[:2]
    dispatch.reset()  # what patching has tried
    for each in (model, by_hand):
        each.compile(backend="aot_eager")
        expect_equal([step(each, **batch)[:2]], [expected])
    traced = dict.fromkeys(("rms_norm", "rope", "silu_mul"), f"reference on {device}, compiled")
    served = {**traced, "linear_cross_entropy": f"{head} on {device}, compiled"}
    assert reports[0].kernels == served
    assert reports[1].kernels == {**served, "rms_norm": f"{small} on {device}, compiled"}


@pytest.mark.gpu(1)
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_reduce_overhead(model_type: str) -> None:
    """Captured as a CUDA graph and replayed, in training: nothing in a patched model hinders the capture."""
    from torch._dynamo.utils import counters

    pair = Pair(find(model_type), "cuda")
    plain, patched = pair.both()
    batches = [pair.batch(tokens=16)] * 5
    found, _ = compiled(patched, batches, mode="reduce-overhead", fullgraph=True)
    assert not counters["inductor"]["cudagraph_skips"]
    expect_equal(found, [step(plain, **batch)[:2] for batch in batches])
