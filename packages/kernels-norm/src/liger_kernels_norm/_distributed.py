"""DTensors: rows are normalised where they are. Nothing is sent in the forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import run

PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


def run_rows(
    op: str,
    tensors: Sequence[torch.Tensor | None],
    options: Mapping[str, Any],
    *,
    sizes: Mapping[str, int],
    kernel: str | None,
    rows: int = 1,
) -> Any:
    """``run`` for an op over the last dimension, of tensors or of DTensors whose last dimension is whole.

    Args:
        tensors: ``rows`` tensors of the same shape, then parameters.

    Raises:
        ValueError: a DTensor is placed so that it would have to be sent first.
    """
    for tensor in tensors:
        if type(tensor) not in PLAIN and type(tensor).__name__ == "DTensor":
            return _run_local(op, tensors, options, sizes, kernel, rows)
    return run(op, tensors, options, sizes=sizes, kernel=kernel)


def _run_local(
    op: str,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
    sizes: Mapping[str, int],
    kernel: str | None,
    rows: int,
) -> Any:
    """Run on what is here, and give results the placements of x."""
    from torch.distributed.tensor import DTensor

    x, parameters = tensors[0], tensors[rows:]
    if not isinstance(x, DTensor):
        raise ValueError(f"{op}: x is no DTensor, but a parameter is; pass its local or full tensor, or make x one")
    _check_rows(op, x, max([1, *[p.dim() for p in parameters if p is not None]]))
    for other in tensors[1:rows]:
        if not isinstance(other, DTensor) or (other.device_mesh, other.placements) != (x.device_mesh, x.placements):
            raise ValueError(f"{op}: residual must be a DTensor placed as x is, {x.placements}; redistribute it first")
    local = [t.to_local(grad_placements=x.placements) for t in tensors[:rows]]
    local += [p if p is None else _local_parameter(op, p, x) for p in parameters]
    out = run(op, local, options, sizes=sizes, kernel=kernel)
    return tuple(_placed_as(x, y) for y in out) if isinstance(out, tuple) else _placed_as(x, out)


def _local_parameter(op: str, parameter: Any, x: Any) -> torch.Tensor:
    """A parameter as a plain tensor; its gradient is summed over the dimensions of the mesh that divide x's rows."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    if not isinstance(parameter, DTensor):  # the same everywhere, and so will be its gradient
        parameter = DTensor.from_local(parameter, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)
    _check_parameter(op, parameter, x)
    summed = [Replicate() if p.is_replicate() else Partial() for p in x.placements]
    return parameter.to_local(grad_placements=summed)  # type: ignore[no-any-return]


def _placed_as(x: Any, y: torch.Tensor) -> Any:
    """A DTensor of x's shape from the local y."""
    from torch.distributed.tensor import DTensor

    stride = torch.empty(x.shape, device="meta").stride()  # shards may differ in size, so they do not tell
    return DTensor.from_local(
        y.contiguous(), x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=stride
    )


def _check_rows(op: str, x: Any, whole: int) -> None:
    """Raise ValueError unless the last ``whole`` dimensions of x are whole and its values final."""
    for at, placement in enumerate(x.placements):
        where = f"x has placement {placement} on dimension {at} of its mesh"
        if placement.is_partial():
            raise ValueError(
                f"{op}: {where}, a sum that is not made yet; redistribute it to Replicate() or a Shard first"
            )
        dim = getattr(placement, "dim", None)
        if dim is not None and dim % x.dim() >= x.dim() - whole:
            raise ValueError(
                f"{op}: {where}, but dimension {dim} has to be whole; redistribute it to Replicate() or to a Shard of "
                "another dimension first"
            )


def _check_parameter(op: str, parameter: Any, x: Any) -> None:
    """Raise ValueError unless a parameter is replicated over the mesh of x."""
    if parameter.device_mesh != x.device_mesh or not all(p.is_replicate() for p in parameter.placements):
        raise ValueError(
            f"{op}: a parameter has placements {parameter.placements} on {parameter.device_mesh}, expected Replicate() "
            f"on that of x, {x.device_mesh}; redistribute it first"
        )
