"""DTensors: rows are normalised where they are. What of them lies on several ranks is gathered first, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import run
from liger.dtensor import is_dtensor


def run_rows(
    op: str,
    tensors: Sequence[torch.Tensor | None],
    options: Mapping[str, Any],
    *,
    sizes: Mapping[str, int],
    kernel: str | None,
    rows: int = 1,
) -> Any:
    """``run`` for an op over the last dimension, of tensors or of DTensors.

    Args:
        tensors: ``rows`` tensors of the same shape, then parameters.

    Raises:
        ValueError: a parameter is a DTensor and x is not, or they lie on different meshes.
    """
    if any(map(is_dtensor, tensors)):
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
    """Run on what is here, and give results the placements that x has then."""
    from torch.distributed.tensor import DTensor

    x, parameters = tensors[0], tensors[rows:]
    if not isinstance(x, DTensor):
        raise ValueError(f"{op}: x is no DTensor, but a parameter is; pass its local or full tensor, or make x one")
    for other in tensors[1:rows]:
        if not isinstance(other, DTensor) or (other.device_mesh, other.placements) != (x.device_mesh, x.placements):
            raise ValueError(f"{op}: residual must be a DTensor placed as x is, {x.placements}; redistribute it first")
    placements = _with_whole_rows(x, max([1, *[p.dim() for p in parameters if p is not None]]))
    if placements != x.placements:
        tensors = [t.redistribute(placements=placements) for t in tensors[:rows]]
        x = tensors[0]
    local = [t.to_local(grad_placements=placements) for t in tensors[:rows]]
    local += [p if p is None else _local_parameter(op, p, x) for p in parameters]
    out = run(op, local, options, sizes=sizes, kernel=kernel)
    return tuple(_placed_as(x, y) for y in out) if isinstance(out, tuple) else _placed_as(x, out)


def _local_parameter(op: str, parameter: Any, x: Any) -> torch.Tensor:
    """A parameter as a plain tensor; its gradient is summed over the dimensions of the mesh that divide x's rows."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    if not isinstance(parameter, DTensor):  # the same everywhere, and so will be its gradient
        parameter = DTensor.from_local(parameter, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)
    if parameter.device_mesh != x.device_mesh:
        raise ValueError(
            f"{op}: a parameter lies on {parameter.device_mesh}, x on {x.device_mesh}; they must lie on the same mesh"
        )
    parameter = parameter.redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    summed = [Replicate() if p.is_replicate() else Partial() for p in x.placements]
    return parameter.to_local(grad_placements=summed)  # type: ignore[no-any-return]


def _placed_as(x: Any, y: torch.Tensor) -> Any:
    """A DTensor of x's shape from the local y."""
    from torch.distributed.tensor import DTensor

    stride = torch.empty(x.shape, device="meta").stride()  # shards may differ in size, so they do not tell
    return DTensor.from_local(
        y.contiguous(), x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=stride
    )


def _with_whole_rows(x: Any, whole: int) -> tuple[Any, ...]:
    """The placements of x, where dimensions of its mesh that split its last ``whole`` ones, or a sum, replicate it."""
    from torch.distributed.tensor import Replicate

    def keeps(placement: Any) -> bool:
        dim = getattr(placement, "dim", None)
        return not placement.is_partial() and (dim is None or dim % x.dim() < x.dim() - whole)

    return tuple(placement if keeps(placement) else Replicate() for placement in x.placements)
