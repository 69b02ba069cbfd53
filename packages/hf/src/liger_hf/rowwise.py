"""A head that is no matrix, such as a Linear with adapters on it: called on some rows at a time, by its own forward.

Of each chunk of rows the head's forward makes the logits, ``cross_entropy`` the loss, and autograd the gradients, all
while the loss is computed, so that only one chunk's logits are ever there. Nothing reads a weight, so it is right for
whatever the head does with a row. ``docs/decisions/0023-heads-with-adapters.md`` says what else was considered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from liger import dispatch, ops
from liger.context import CONTEXT
from liger.errors import KernelUnavailable
from liger.numerics import acc
from liger.registry import registry
from liger.swap import Spec, is_swapped, swapped_class
from liger_hf.slot import SLOT, Slot

ADAPTER = "liger_hf.head:output_rows"
CHUNK_MIB, CHUNK_MIB_CPU = 256, 64
"""Of one chunk's logits; twice as much is no faster on a H200 (decision 0023)."""


class Output(NamedTuple):
    """What ``linear_cross_entropy`` returns with a token accuracy."""

    loss: Tensor
    token_accuracy: Tensor | None


# -- Which heads -------------------------------------------------------------------------------------------------------
def by_rows(head: Any) -> bool:
    """Whether a plugin knows that each row of what the head returns depends on that row alone."""
    return any(answer for _, answer in registry().plugins.call("liger_rowwise_head", module=head))


def layers(head: Any) -> Iterator[Any]:
    """What stands inside an adapted head, from the outside to the layer that the adapters are on."""
    while (head := getattr(head, "base_layer", None)) is not None:
        yield head


def still_by_rows(head: Any, slot: Slot) -> bool:
    """The same during training: plugins are asked again when other adapters have become active."""
    key = (head, tuple(getattr(head, "active_adapters", ())))
    if slot.rowwise is None or slot.rowwise[0] != key:
        slot.rowwise = key, by_rows(head)
    # ZeRO-3 gathers the parameters of each module inside only around that module's own call
    return slot.rowwise[1] and all(p.numel() for p in head.parameters())


def adopt(head: Any, slot: Slot) -> bool:
    """Patch a head that was put around the patched one, as ``get_peft_model`` does; whether it is one of ours now."""
    base = next((layer for layer in layers(head) if is_swapped(type(layer))), None)
    if base is None or base.__dict__.get(SLOT) is not slot or not still_by_rows(head, slot):
        return False
    spec: Spec = type(base).__liger_spec__
    head.__class__ = swapped_class(type(head), spec._replace(adapter=ADAPTER))
    head.__dict__[SLOT] = slot
    return True


# -- The loss ----------------------------------------------------------------------------------------------------------
def loss_of_rows(module: Any, head: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A stand-in for ``linear_cross_entropy`` whose logits are ``head(rows)``; it ignores weight and bias.

    Args:
        module: the patched head, whose spec has the kernel and options that ``autopatch`` was given.
        head: its own forward, from (n, H) to (n, V).
    """
    spec: Spec = type(module).__liger_spec__

    def loss(rows: Tensor, weight: None, target: Tensor, bias: None, **call: Any) -> Any:
        options = {**dict(spec.op_options), **CONTEXT.options.get(spec.op, {}), **call}
        ignore = options["ignore_index"]
        if options.pop("compact", False):
            kept = (target != ignore).nonzero().squeeze(1)
            rows, target = rows[kept], target[kept]
        size, wants = _chunk(rows, module.out_features, options), bool(options.pop("returns", ()))
        by = (target != ignore).sum() if options.pop("reduction") == "mean" else options.pop("num_items", None)
        late = by if torch.float16 in (rows.dtype, _autocast_dtype(rows)) else None
        options |= {"reduction": "sum", "num_items": by if late is None else None}
        if kernel := _kernel(CONTEXT.prefer.get(spec.op) or spec.kernel, spec.op):
            options["kernel"] = kernel
        _note(spec.op, rows, CONTEXT.prefer.get(spec.op) or spec.kernel)

        def step(part: Tensor, labels: Tensor) -> Any:
            return ops.cross_entropy(head(part), labels, returns=("predictions",) if wants else (), **options)

        found, accuracy = _Chunks(step, size, wants, ignore).run(rows, target, list(module.parameters()))
        found = found if late is None else _divided(found, torch.as_tensor(late, device=rows.device))
        return Output(found, accuracy) if wants else found

    return loss


def _divided(total: Tensor, by: Tensor) -> Tensor:
    """``total / by``, whose gradient is 0 where there is nothing to divide by."""
    return total.detach() / by + (total - total.detach()) / torch.where(by == 0, math.inf, by)


def _autocast_dtype(rows: Tensor) -> torch.dtype | None:
    """What autocast makes of a product; in fp16 a gradient that is divided before the loss is scaled would be 0."""
    device = rows.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _note(op: str, rows: Tensor, by_hand: str | None) -> None:
    """Enter into the log of decisions, which reports read, what serves ``op`` here."""
    call, chosen = dispatch.make_call(op, rows.device, (rows.dtype,)), "cross_entropy in chunks of rows"
    dispatch.LOG.decisions[dispatch.Decision(op, call.device, call.dtypes, by_hand, chosen, ())] = None
    for observer in dispatch.LOG.observers:
        observer(op, chosen)


def _kernel(asked: str | None, op: str) -> str | None:
    """The kernel of ``cross_entropy`` that stands for one of ``op`` chosen by hand.

    Raises:
        KernelUnavailable: there is none.
    """
    known = [kernel.name for kernel in registry().kernels("cross_entropy")]
    found = {**{name: name for name in known}, "torch": "reference"}
    if asked is not None and asked not in found:
        raise KernelUnavailable(
            f"kernel {asked!r} of {op} was asked for, but this head has adapters, so that its loss is that of "
            f"cross_entropy in chunks of rows: choose one of {', '.join(sorted(found))}"
        )
    return None if asked is None else found[asked]


def _chunk(rows: Tensor, classes: int, options: dict[str, Any]) -> int:
    """How many rows a chunk has; takes the options that are about it out of ``options``.

    Raises:
        ValueError: an option that cannot be kept.
    """
    dtype, mib = options.pop("accum_dtype", None), options.pop("workspace_mb", None)
    if dtype not in (None, torch.float32, "float32"):
        raise ValueError(f"accum_dtype is {dtype!r}, but gradients of a head with adapters are summed in torch.float32")
    if mib is not None and not 0.0 < mib < float("inf"):
        raise ValueError(f"workspace_mb is {mib!r}, expected None or a positive number")
    mib = mib or (CHUNK_MIB_CPU if rows.device.type == "cpu" else CHUNK_MIB)
    most = max(1, int(mib * 2**20) // (classes * rows.element_size()))
    chunks = max(1, -(-rows.shape[0] // most))
    return max(1, -(-rows.shape[0] // chunks))


class _Chunks:
    """A loss summed over chunks of rows, with its gradients."""

    def __init__(self, step: Callable[[Tensor, Tensor], Any], size: int, wants: bool, ignore_index: int) -> None:
        self.step, self.size, self.wants, self.ignore_index = step, size, wants, ignore_index

    def run(self, rows: Tensor, target: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The loss, and the accuracy where it is wanted."""
        trained = [p for p in parameters if p.requires_grad]
        if torch.is_grad_enabled() and (rows.requires_grad or trained):
            return _WithGradients.apply(self, rows, target, *trained)  # type: ignore[no-untyped-call, no-any-return]
        return self.sum(rows, target, self.step)

    def sum(self, rows: Tensor, target: Tensor, step: Callable[[Tensor, Tensor], Any]) -> tuple[Tensor, Tensor | None]:
        """``step`` on each chunk, at least on one: its losses added up, and the share of right predictions."""
        total: Any = None
        best = []
        for part, labels in zip(torch.split(rows, self.size), torch.split(target, self.size), strict=True):
            found = step(part, labels)
            loss = found.loss if self.wants else found
            total = loss.detach() if total is None else total + loss.detach()
            if self.wants:
                best.append(found.predictions)
        if not self.wants:
            return total, None
        kept = target != self.ignore_index
        return total, ((torch.cat(best) == target) & kept).sum() / kept.sum()


def _own(gradient: Tensor) -> Tensor:
    """A copy to add to, in fp32, or fp64 for fp64."""
    return gradient.to(acc(gradient[:0]).dtype, copy=True).contiguous()


class _WithGradients(torch.autograd.Function):
    """Makes the gradients of rows and parameters in the forward and multiplies them in the backward."""

    @staticmethod
    def forward(
        ctx: Any, chunks: _Chunks, rows: Tensor, target: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The loss and the accuracy of rows (n, H)."""
        of_rows: list[Tensor] = []
        sums: list[Tensor | None] = [None] * len(parameters)

        def step(part: Tensor, labels: Tensor) -> Any:
            with torch.enable_grad():
                leaf = part.detach().requires_grad_(ctx.needs_input_grad[1])
                found = chunks.step(leaf, labels)
            leaves = [leaf] if leaf.requires_grad else []
            with torch.autocast(rows.device.type, enabled=False):
                loss = found.loss if chunks.wants else found
                got = torch.autograd.grad(loss, [*leaves, *parameters], allow_unused=True)
            of_rows.extend(got[: len(leaves)])
            for at, gradient in enumerate(got[len(leaves) :]):
                if gradient is not None:
                    sums[at] = _own(gradient) if (total := sums[at]) is None else total.add_(gradient)
            return found

        loss, accuracy = chunks.sum(rows, target, step)
        made = [None if g is None else g.to(p.dtype) for g, p in zip(sums, parameters, strict=True)]
        ctx.save_for_backward(torch.cat(of_rows) if of_rows else None, *made)
        ctx.mark_non_differentiable(*([] if accuracy is None else [accuracy]))
        return loss, accuracy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """What was made, times the gradient of the loss."""
        of_rows, *of_parameters = (None if g is None else g * dloss for g in ctx.saved_tensors)
        return None, of_rows, None, *of_parameters
