"""Checks that need a CUDA device, or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from liger.declare import Kernel, load
from liger.testing.behaviour import Tensors, compile_fullgraph, differentiable, equal, fail, gradients
from liger.testing.cases import Case, dtypes, typical
from liger.testing.compare import compare, ulp
from liger.testing.compiled import run
from liger.testing.contract import flat, leaves, random_like, sample

BEYOND = 2**31  # elements
TILE = 48  # rows that are repeated; a multiple of the 3 magnitudes of test inputs


def inductor(kernel: Kernel, device: str) -> None:
    """As ``compile_fullgraph``, compiled by inductor."""
    compile_fullgraph(kernel, device, "inductor")


def cuda_graph(kernel: Kernel, device: str) -> None:
    """Forward and backward can be captured in a CUDA graph, and its replay gives eager's bits."""
    case = typical(kernel, dtypes(kernel)[-1])
    tensors, options = case.make(device)
    fn = case.public()
    expected = run(fn, tensors, options)
    # seeds come from the host, so the capture gets its own from outside
    inputs, seeds = leaves(tensors), random_like(expected, loss=1.0)

    def step() -> Tensors:
        outputs = flat(fn(*inputs, **options))
        return [*outputs, *gradients(outputs, inputs, seeds[: len(outputs)])]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    equal([c for c in captured if c is not None], expected, "CUDA graph replay")


def current_stream(kernel: Kernel, device: str) -> None:
    """On another stream than the default one, behind work that is still to come there: the same bits."""
    case = typical(kernel, dtypes(kernel)[-1])
    tensors, options = case.make(device)
    expected = run(case.public(), tensors, options)
    late = [None if t is None else torch.zeros_like(t).requires_grad_(t.requires_grad) for t in tensors]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # cycles, a tenth of a second
        with torch.no_grad():
            for t, real in zip(late, tensors, strict=True):
                if t is not None and real is not None:
                    t.copy_(real)
        found = run(case.public(), late, options)
    torch.cuda.synchronize()
    equal(found, expected, "on another stream")


def second_device(kernel: Kernel, device: str) -> None:
    """On a device that is not the current one: the same bits, nothing on the current one, which stays current."""
    case = typical(kernel, dtypes(kernel)[-1])
    tensors, options = case.make("cuda:1")
    here = [None if t is None else t.to("cuda:0").detach().requires_grad_(t.requires_grad) for t in tensors]
    with torch.cuda.device(0):
        expected = run(case.public(), here, options)
        before = torch.cuda.memory_allocated(0)
        found = run(case.public(), tensors, options)
        if torch.cuda.current_device() != 0:
            fail("the current device has changed")
        if torch.cuda.memory_allocated(0) > before:
            fail("memory of the current device was used for tensors on another")
    if wrong := {str(t.device) for t in found} - {"cuda:1"}:
        fail(f"results are on {', '.join(wrong)}, expected cuda:1")
    equal([t.to("cuda:0") for t in found], expected, "on the second device")


def big(kernel: Kernel, device: str) -> None:
    """More than 2^31 elements: rows that repeat give results that repeat, to the end of the tensor.

    ``TILE`` rows are repeated until the last one begins more than 2^31 elements behind the first. Results by row must
    then repeat, and the last ones are held to the contract. The output gradient is 0 except in the first and last rows.
    """
    case = _wide(kernel)
    small, options = case.make(device)
    dims = row_dims(case)
    reference = load(case.op.reference)
    seeds = random_like(flat(reference(*small, **options)))
    eager, truth = sample(reference, small, options, seeds)
    strides = [t.stride(dim) for t, dim in zip(small, dims, strict=True) if t is not None and dim is not None]
    repeats = BEYOND // (TILE * max(strides)) + 2
    large = [_repeat(t, dim, repeats) for t, dim in zip(small, dims, strict=True)]
    outputs = flat(case.public()(*large, **options))
    places = [_row_dim(case, i, dim) for i, dim in enumerate(_output_dims(case))]
    for output, dim, e, t in zip(outputs, places, eager.outputs, truth.outputs, strict=True):
        _check_repeats(output.detach(), dim, e, t, case.reduction)
    every = [_at_both_ends(s, o, dim) for s, o, dim in zip(seeds, outputs, places, strict=True)]
    if not differentiable(outputs):
        return
    wanted = [i for i, t in enumerate(large) if t is not None and t.requires_grad]
    for i, gradient in zip(wanted, gradients(outputs, large, every), strict=True):
        one, true = eager.gradients[i], truth.gradients[i]
        if gradient is None or one is None or true is None:
            fail(f"the gradient of {case.arguments()[i]} is missing")
        _check_gradient(gradient, dims[i], one, true, case.reduction)


def _check_repeats(
    found: torch.Tensor, dim: int, eager: torch.Tensor, truth: torch.Tensor, reduction: int | None
) -> None:
    """The last tile is held to the contract; others may differ from it by an ulp of their row's largest value."""
    *tiles, last = torch.split(found, TILE, dim)
    compare(last, eager, truth, reduction=reduction)
    size = last.double().abs()
    largest = size.amax(-1, keepdim=True) if size.dim() > 1 else size
    allowed = ulp(largest, last.dtype) if last.is_floating_point() else torch.zeros_like(largest)
    for i, tile in enumerate(tiles):
        if bool(((tile.double() - last.double()).abs() > allowed).any()):
            fail(f"rows {i * TILE} to {(i + 1) * TILE} of {found.shape[dim]} differ from equal rows at the end")


def _check_gradient(
    found: torch.Tensor, dim: int | None, eager: torch.Tensor, truth: torch.Tensor, reduction: int | None
) -> None:
    """By row: 0 between both ends, which are held to the contract; summed over rows: twice that of one tile."""
    if dim is None:
        compare(found, 2 * eager, 2 * truth, reduction=2 * TILE)
        return
    middle = found.shape[dim] - 2 * TILE
    first, between, last = torch.split(found, [TILE, middle, TILE], dim)
    for end in (first, last):
        compare(end, eager, truth, reduction=reduction)
    if bool(between.any()):
        fail("a gradient is not 0 in rows whose results got none")


def _wide(kernel: Kernel) -> Case:
    """``TILE`` rows as wide as real models have them, reduced per row if the op can."""
    case = typical(kernel, "bfloat16")
    rows = next(iter(case.sizes))
    reduction = case.op.options.get("reduction")
    options = {"reduction": "none"} if reduction and "none" in reduction.values else {}
    return case.replace(sizes={**case.op.production[0], rows: TILE}, options=options)


def row_dims(case: Case) -> list[int | None]:
    """For each input the dimension that grows with the number of rows, found by making inputs of two sizes."""
    return _growing(*(_with_rows(case, n).make("cpu")[0] for n in (2, 3)))


def _output_dims(case: Case) -> list[int | None]:
    def outputs(rows: int) -> list[torch.Tensor]:
        tensors, options = _with_rows(case, rows).make("cpu")
        return flat(load(case.op.reference)(*tensors, **options))

    return _growing(outputs(2), outputs(3))


def _with_rows(case: Case, rows: int) -> Case:
    smallest = {name: min((v for v in values if v > 1), default=1) for name, values in case.op.sizes.items()}
    return case.replace(sizes={**smallest, next(iter(case.sizes)): rows})


def _growing(two: Sequence[Any], three: Sequence[Any]) -> list[int | None]:
    out: list[int | None] = []
    for a, b in zip(two, three, strict=True):
        different = [] if a is None else [d for d in range(a.dim()) if a.shape[d] != b.shape[d]]
        out.append(different[0] if different else None)
    return out


def _repeat(t: torch.Tensor | None, dim: int | None, repeats: int) -> torch.Tensor | None:
    if t is None or dim is None:
        return t
    times = [repeats if d == dim else 1 for d in range(t.dim())]
    order = sorted(range(t.dim()), key=t.stride, reverse=True)  # in memory as the small one is
    packed = t.detach().permute(order).repeat([times[d] for d in order])
    return packed.permute([order.index(d) for d in range(t.dim())]).requires_grad_(t.requires_grad)


def _row_dim(case: Case, position: int, dim: int | None) -> int:
    if dim is None:
        fail(f"{case.id}: output {position} does not grow with the rows; beyond 2^31 elements it cannot be checked")
    return dim


def _at_both_ends(seed: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    """The small output gradient for the first and the last rows, 0 between them."""
    out = torch.zeros_like(output)
    for at in (0, output.shape[dim] - TILE):
        out.narrow(dim, at, TILE).copy_(seed)
    return out


CHECKS: dict[str, tuple[Callable[[Kernel, str], None], int]] = {
    "inductor": (inductor, 1),
    "cuda_graph": (cuda_graph, 1),
    "current_stream": (current_stream, 1),
    "big": (big, 1),
    "second_device": (second_device, 2),
}
