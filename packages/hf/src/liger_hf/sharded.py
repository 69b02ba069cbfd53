"""A head whose rows, one for each class, are shared out by tensor parallelism: torch's plans or transformers' own.

They change what goes into the head and comes out of it, by hooks or by a forward on the instance. The loss needs none
of that: hidden states are the same on all ranks, and ``vocab_parallel_linear_cross_entropy`` takes the rows that are
here.
What FSDP2 shards is no such head: it is whole again where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from liger.context import CONTEXT
from liger.dispatch import bind
from liger.dtensor import is_dtensor
from liger.patch import TENSOR_PARALLEL, has_own_forward, is_accelerate, owner_of
from liger.registry import registry
from liger.swap import Spec

OP = "vocab_parallel_linear_cross_entropy"
FUSED = "linear_cross_entropy"
STYLES = ("torch.distributed.tensor.", TENSOR_PARALLEL)
"""Where the hooks and forwards of tensor parallelism come from."""
MOVERS = ("torch.", "deepspeed.", "accelerate.", "trl.models.activation_offloading.")
"""Where hooks come from that gather, move or keep tensors, whatever those are."""


def is_split(head: Any) -> bool:
    """Whether the weight holds this rank's rows of a head, by tensor parallelism and by nothing else."""
    tensors = [t for t in (getattr(head, "weight", None), getattr(head, "bias", None)) if t is not None]
    if not tensors or not all(map(is_dtensor, tensors)) or not any(map(is_style, attached(head))):
        return False
    if any(c.__name__ == "FSDPModule" for c in type(head).__mro__):
        return False
    return all(t.device_mesh.ndim == 1 and t.placements[0].is_shard(0) for t in tensors) and OP in registry().ops


def attached(head: Any) -> list[Any]:
    """The functions that see what goes into the head or comes out: hooks, and a forward on the instance."""
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    held = [head.__dict__["forward"]] if "forward" in head.__dict__ else []
    return [*held, *(hook for kind in hooks for hook in kind.values())]


def hooked(head: Any) -> str | None:
    """The owner of a hook or forward on the head that would see hidden states and the loss instead of logits.

    Hooks that gather or move weights are what the seam is made for, and those of tensor parallelism if the rows of the
    head are split as the op over its ranks takes them.
    """
    split, held = is_split(head), head.__dict__.get("forward")
    for function in attached(head):
        owner = owner_of(function)
        if is_style(function):
            fine = split
        elif function is held:
            fine = is_accelerate(head) or has_own_forward(head)
        else:
            fine = owner.startswith(MOVERS)
        if not fine:
            return owner
    return None


def is_style(function: Any) -> bool:
    """Whether a hook or a forward is one that tensor parallelism has put there."""
    return owner_of(function).startswith(STYLES)


def whole(hidden: Any) -> Tensor:
    """Hidden states as a plain tensor with all rows; each rank computes their whole gradient."""
    if not is_dtensor(hidden):
        return hidden  # type: ignore[no-any-return]
    from torch.distributed.tensor import Replicate

    placements = [Replicate()] * hidden.device_mesh.ndim
    return hidden.redistribute(placements=placements).to_local(grad_placements=placements)  # type: ignore[no-any-return]


def rows(head: Any) -> tuple[Tensor, Tensor | None]:
    """The rows of weight and bias that are here."""
    weight, bias = head.weight, head.bias
    return (
        weight.to_local(grad_placements=weight.placements),
        None if bias is None else bias.to_local(grad_placements=bias.placements),
    )


def loss_over(head: Any, spec: Spec) -> Callable[..., Any]:
    """The op over the ranks of a head, with what was chosen for the op of a whole one."""
    op = bind(OP, spec.kernel, {**dict(spec.op_options), **CONTEXT.options.get(FUSED, {})})
    chosen = {"kernel": CONTEXT.prefer[FUSED]} if FUSED in CONTEXT.prefer else {}
    ranks = head.weight.device_mesh.size()
    most = -(-head.weight.shape[0] // ranks)  # as DTensor cuts: the last ranks may have fewer
    shards = tuple(max(0, min(most, head.weight.shape[0] - most * rank)) for rank in range(ranks))
    group = head.weight.device_mesh.get_group().group_name
    return lambda *args, **kwargs: op(*args, group=group, shards=shards, **chosen, **kwargs)
