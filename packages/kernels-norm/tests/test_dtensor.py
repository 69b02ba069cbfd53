"""Norms of DTensors on two processes: results and gradients of one process, and what is sent in the forward."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.testing import assert_close

import liger
from liger import ops
from liger.testing.ranks import Found, Rank, run_ranks

pytestmark = pytest.mark.xdist_group("dtensor")
H = 16
ROWS = (5, 3, H)  # 5 rows, which two processes do not share equally
OPS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {  # op, shapes of its tensors
    "rms_norm": (ops.rms_norm, [ROWS, (H,), (H,)]),
    "layer_norm": (ops.layer_norm, [ROWS, (H,), (H,)]),
    "cohere_norm": (ops.cohere_norm, [ROWS, (3, H)]),
    "fused_add_rms_norm": (ops.fused_add_rms_norm, [ROWS, ROWS, (H,)]),
    "l2norm": (ops.l2norm, [ROWS]),
}
if os.environ.get("TRITON_INTERPRET") == "1":
    OPS["rms_norm/triton"] = partial(ops.rms_norm, kernel="triton"), [ROWS, (H,)]
PLACEMENTS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...], int]] = {  # mesh, placements of x, what is sent
    "whole": ((2,), (Replicate(),), 0),
    "rows": ((2,), (Shard(0),), 0),
    "two axes": ((1, 2), (Shard(1), Shard(0)), 0),
    "split": ((2,), (Shard(2),), 1),
    "a sum": ((2,), (Partial(),), 1),
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Of all processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(
    op: Callable[..., Any], tensors: Sequence[torch.Tensor], place: Callable[[torch.Tensor], torch.Tensor], sends: int
) -> list[torch.Tensor]:
    """Outputs and the gradients of all tensors, whole; rows and output gradients are placed first."""
    leaves = [(place(t) if t.shape == ROWS else t.clone()).requires_grad_() for t in tensors]
    with CommDebugMode() as sent:
        out = op(*leaves)
    assert sent.get_total_counts() == sends * sum(t.shape == ROWS for t in tensors)
    outs = out if isinstance(out, tuple) else (out,)
    dys = [torch.randn(ROWS, generator=torch.Generator().manual_seed(7)) for _ in outs]
    if isinstance(outs[0], DTensor):
        dys = [distribute_tensor(dy, outs[0].device_mesh, outs[0].placements) for dy in dys]
    grads = torch.autograd.grad(outs, leaves, dys)
    return [whole(t).detach() for t in (*outs, *grads)]


def placed(name: str, case: str, rank: Rank) -> None:
    """An op on placed rows, with parameters that are plain, replicated or split as well."""
    op, shapes = OPS[name]
    axes, placements, sends = PLACEMENTS[case]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    expected = run(op, tensors, lambda t: t, 0)
    mesh = init_device_mesh("cpu", axes)

    def place(t: torch.Tensor) -> torch.Tensor:
        if placements == (Partial(),):
            return DTensor.from_local(t / 2, mesh, placements, run_check=False)
        return distribute_tensor(t, mesh, placements)

    def parameters(how: list[Placement]) -> list[torch.Tensor]:
        return [t if t.shape == ROWS else distribute_tensor(t, mesh, how) for t in tensors]

    for given in (tensors, parameters([Replicate()] * mesh.ndim)):
        for found, wanted in zip(run(op, given, place, sends), expected, strict=True):
            assert_close(found, wanted)
    if name == "rms_norm" and mesh.ndim == 1:  # a gather for each of the two parameters
        leaves = [place(tensors[0]), *parameters([Shard(0)])[1:]]
        assert_close(whole(op(*leaves)), expected[0])


def fsdp(rank: Rank) -> None:
    """A norm whose weight FSDP2 shards and gathers, on rows that are this process's own."""
    mesh, at = init_device_mesh("cpu", (2,)), rank.rank
    norm, sharded = liger.nn.RMSNorm(H), liger.nn.RMSNorm(H)
    fully_shard(sharded, mesh=mesh)
    x = torch.randn(4, H, generator=torch.Generator().manual_seed(1))
    norm(x).square().sum().backward()
    sharded(x[2 * at : 2 * at + 2]).square().sum().backward()
    assert_close(2 * whole(sharded.weight.grad), norm.weight.grad)  # FSDP takes the mean over processes


def sequence_parallel(rank: Rank) -> None:
    """A module of ours under torch's plan for norms: parameters become replicated DTensors, tokens are shared out."""
    mesh, at = init_device_mesh("cpu", (2,)), rank.rank
    norm, shared = liger.nn.LayerNorm(H), liger.nn.LayerNorm(H)
    parallelize_module(shared, mesh, SequenceParallel(use_local_output=True))
    x = torch.randn(2, 6, H, generator=torch.Generator().manual_seed(2))
    norm(x).square().sum().backward()
    y = shared(x[:, 3 * at : 3 * at + 3])
    assert y.shape == (2, 3, H)
    y.square().sum().backward()
    for found, wanted in zip(shared.parameters(), norm.parameters(), strict=True):
        assert_close(whole(found.grad), wanted.grad)


CASES: dict[str, Callable[[Rank], None]] = {
    **{
        f"{name}: {case}": partial(placed, name, case)
        for name in OPS
        for case in PLACEMENTS
        if (name, case) != ("cohere_norm", "two axes")  # its dimension of heads is split, which gathers
    },
    "fully_shard": fsdp,
    "SequenceParallel": sequence_parallel,
}


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes(name: str, found: Found) -> None:
    found.of(name)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_only_parameters_on_a_mesh_are_refused(op: str, mesh: DeviceMesh) -> None:
    function, weight = getattr(ops, op), torch.ones(H)
    with pytest.raises(ValueError, match=f"{op}: x is no DTensor, but a parameter is; pass its local or full tensor"):
        function(torch.randn(ROWS), distribute_tensor(weight, mesh, [Replicate()]))
    other = init_device_mesh("cpu", (1, 1))
    x = distribute_tensor(torch.randn(ROWS), other, [Replicate()] * 2)
    with pytest.raises(ValueError, match=f"{op}: a parameter lies on .*they must lie on the same mesh"):
        function(x, distribute_tensor(weight, mesh, [Replicate()]))


def test_residuals_that_do_not_match_are_refused(mesh: DeviceMesh) -> None:
    heads, rows = (distribute_tensor(torch.randn(ROWS), mesh, [Shard(dim)]) for dim in (1, 0))
    assert ops.cohere_norm(heads, torch.ones(3, H)).placements == (Replicate(),)
    assert ops.cohere_norm(heads, torch.ones(H)).placements == (Shard(1),)
    for residual in (heads, torch.randn(ROWS)):
        with pytest.raises(ValueError, match="fused_add_rms_norm: residual must be a DTensor placed as x is"):
            ops.fused_add_rms_norm(rows, residual)
