"""Norms of DTensors on two processes: results and gradients of one process, and nothing is sent in the forward."""

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
PLACEMENTS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {  # shape of the mesh, placements of x
    "whole": ((2,), (Replicate(),)),
    "rows": ((2,), (Shard(0),)),
    "two axes": ((1, 2), (Shard(1), Shard(0))),
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Of all processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(
    op: Callable[..., Any], tensors: Sequence[torch.Tensor], place: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Outputs and the gradients of all tensors, whole; rows and output gradients are placed first."""
    leaves = [(place(t) if t.shape == ROWS else t.clone()).requires_grad_() for t in tensors]
    with CommDebugMode() as sent:
        out = op(*leaves)
    assert sent.get_total_counts() == 0
    outs = out if isinstance(out, tuple) else (out,)
    dys = [place(torch.randn(ROWS, generator=torch.Generator().manual_seed(7))) for _ in outs]
    grads = torch.autograd.grad(outs, leaves, dys)
    return [whole(t).detach() for t in (*outs, *grads)]


def two_processes(rank: int, rendezvous: str) -> None:
    """Everything that needs a second process, in one start of it."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    generator = torch.Generator().manual_seed(0)
    for name, (op, shapes) in OPS.items():
        tensors = [torch.randn(shape, generator=generator) for shape in shapes]
        expected = run(op, tensors, lambda t: t)
        for case, (axes, placements) in PLACEMENTS.items():
            if name == "cohere_norm" and case == "two axes":
                continue  # heads with weights of their own have to be whole
            mesh = init_device_mesh("cpu", axes)
            place = partial(distribute_tensor, device_mesh=mesh, placements=placements)
            replicated = [
                t if t.shape == ROWS else distribute_tensor(t, mesh, [Replicate()] * mesh.ndim) for t in tensors
            ]
            for kind, given in (("plain", tensors), ("replicated", replicated)):
                for found, wanted in zip(run(op, given, place), expected, strict=True):
                    assert_close(found, wanted, msg=lambda m, at=(name, case, kind): f"{at}: {m}")
    fsdp(init_device_mesh("cpu", (2,)), rank)
    sequence_parallel(init_device_mesh("cpu", (2,)), rank)
    torch.distributed.destroy_process_group()


def fsdp(mesh: DeviceMesh, rank: int) -> None:
    """A norm whose weight FSDP2 shards and gathers, on rows that are this process's own."""
    norm, sharded = liger.nn.RMSNorm(H), liger.nn.RMSNorm(H)
    fully_shard(sharded, mesh=mesh)
    x = torch.randn(4, H, generator=torch.Generator().manual_seed(1))
    norm(x).square().sum().backward()
    sharded(x[2 * rank : 2 * rank + 2]).square().sum().backward()
    assert_close(2 * whole(sharded.weight.grad), norm.weight.grad)  # FSDP takes the mean over processes


def sequence_parallel(mesh: DeviceMesh, rank: int) -> None:
    """A module of ours under torch's plan for norms: parameters become replicated DTensors, tokens are shared out."""
    norm, shared = liger.nn.LayerNorm(H), liger.nn.LayerNorm(H)
    parallelize_module(shared, mesh, SequenceParallel(use_local_output=True))
    x = torch.randn(2, 6, H, generator=torch.Generator().manual_seed(2))
    norm(x).square().sum().backward()
    y = shared(x[:, 3 * rank : 3 * rank + 3])
    assert y.shape == (2, 3, H)
    y.square().sum().backward()
    for found, wanted in zip(shared.parameters(), norm.parameters(), strict=True):
        assert_close(whole(found.grad), wanted.grad)


def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(two_processes, (str(tmp_path / "rendezvous"),), nprocs=2)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_placements_that_would_have_to_be_sent_are_refused(op: str, mesh: DeviceMesh) -> None:
    function, weight = getattr(ops, op), torch.ones(H)
    for dim in (2, -1):
        x = distribute_tensor(torch.randn(ROWS), mesh, [Shard(dim)])
        with pytest.raises(
            ValueError, match=rf"{op}: x has placement .*2.* on dimension 0 .*dimension 2 has to be whole"
        ):
            function(x, weight)
    x = DTensor.from_local(torch.randn(ROWS), mesh, [Partial()])
    with pytest.raises(ValueError, match=rf"{op}: x has placement .*, a sum that is not made yet; redistribute it"):
        function(x, weight)
    x = distribute_tensor(torch.randn(ROWS), mesh, [Replicate()])
    with pytest.raises(ValueError, match=rf"{op}: a parameter has placements .*Shard.*, expected Replicate\(\)"):
        function(x, distribute_tensor(weight, mesh, [Shard(0)]))
    with pytest.raises(ValueError, match=f"{op}: x is no DTensor, but a parameter is; pass its local or full tensor"):
        function(torch.randn(ROWS), distribute_tensor(weight, mesh, [Replicate()]))


def test_heads_and_residuals_that_do_not_match_are_refused(mesh: DeviceMesh) -> None:
    heads, rows = (distribute_tensor(torch.randn(ROWS), mesh, [Shard(dim)]) for dim in (1, 0))
    with pytest.raises(ValueError, match="cohere_norm: x has placement .*dimension 1 has to be whole"):
        ops.cohere_norm(heads, torch.ones(3, H))
    assert ops.cohere_norm(heads, torch.ones(H)).placements == (Shard(1),)
    for residual in (heads, torch.randn(ROWS)):
        with pytest.raises(ValueError, match="fused_add_rms_norm: residual must be a DTensor placed as x is"):
            ops.fused_add_rms_norm(rows, residual)
