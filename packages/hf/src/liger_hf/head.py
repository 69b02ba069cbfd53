"""The head seam: head and loss as one op, while upstream's forward runs unchanged.

The model's forward notes that labels came in. The head's call is then *deferred*: the hidden states are kept and a
zero-width carrier is returned. The loss call re-enters ``head.__call__`` with the real arguments, so every hook on the
head (FSDP, ZeRO, accelerate) fires around the fused op, and the loss is the module's output. No carrier leaves the
model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from liger.declare import Probe
from liger.errors import CarrierLeaked, PatchRefused
from liger.planner import inner_modules
from liger.swap import Namespace, Part, original_class, own, still_patched
from liger_hf import output, rowwise, sharded, stub, transform
from liger_hf.accuracy import accuracy_of_logits, shifted
from liger_hf.slot import SLOT, Slot
from liger_hf.standin import place, readable

KEPT = ("skip_logits", "logits", "token_accuracy", "shift_labels", "num_items_in_batch")
"""What the forward offers also where head and loss are not fused at the moment."""
FEATURES = ("fused_loss", *KEPT)
LOSSES = "transformers.loss.loss_utils"
SHIFTS, ALIGNED = "ForCausalLMLoss", "ForMaskedLMLoss"
"""Upstream's losses that the op computes: of the next token, and of the token at its place (t5gemma)."""


class LossCall(NamedTuple):
    """The arguments of upstream's loss call, and the transform of the logits."""

    labels: Tensor | None
    shift_labels: Tensor | None
    num_items_in_batch: Tensor | int | None
    ignore_index: int
    logit_scale: float
    softcap: float | None
    accuracy: bool


# -- Adapters ----------------------------------------------------------------------------------------------------------
def causal_lm(
    original: Any,
    op: Callable[..., Tensor],
    *,
    logit_scale: float,
    softcap: float | None,
    softcap_path: str | None,
    aligned: bool,
) -> Namespace:
    """Adapter of the model: opens the slot, and closes it on a loss without logits."""
    upstream = original.forward
    upstream_loss = original.loss_function.fget
    position = [p for p in inspect.signature(upstream).parameters if p != "self"].index("labels")

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not still_patched(self):  # undone, and called by a wrapper that still holds this function
            return upstream(self, *args, **kwargs)
        labels = args[position] if len(args) > position else kwargs.get("labels")
        want = output.wanted(kwargs, labels is not None)
        mode = output.mode(want, self.training)
        slot = self._liger_slot
        if labels is None or mode == "full" or not _fusable(self, slot, upstream_loss):
            return _finish(upstream(self, *args, **kwargs), want, labels, kwargs, aligned)
        slot.enter(tuple(labels.shape), want.accuracy)
        try:
            out = upstream(self, *args, **kwargs)
            hidden, consumed, accuracy = slot.hidden, slot.consumed, slot.accuracy
        finally:
            slot.leave()
        if hidden is None:  # the head saw another shape than the labels (logits_to_keep): upstream's own path ran
            return _finish(out, want, labels, kwargs, aligned)
        out = _without_carrier(self, out, consumed)
        if want.accuracy:
            out = output.add_accuracy(out, accuracy)
        return output.lazy(out, self, hidden) if mode == "lazy" else out

    def loss_function(self: Any) -> Any:
        base, slot = upstream_loss(self), self._liger_slot
        if slot.hidden is None:
            return base

        def loss(logits: Any = None, labels: Any = None, vocab_size: Any = None, *args: Any, **kwargs: Any) -> Any:
            if logits is None or logits.shape[-1] != 0:
                return base(logits, labels, vocab_size, *args, **kwargs)
            slot.consumed = True
            scale, cap = (transform.at_call(self, slot.known, slot.floats) or (logit_scale, softcap))[:2]
            cap = transform.read(self, softcap_path) if softcap_path else cap
            call = _loss_call(scale, cap, slot.want_accuracy, _loss_name(base), labels, *args, **kwargs)
            head = self.get_output_embeddings()  # with what is around it: FSDP may gather at a wrapper of PEFT's
            # the hooks of tensor parallelism are about logits
            enter = functools.partial(type(head).forward, head) if sharded.is_split(head) else head
            value, slot.accuracy = enter(slot.hidden, call)
            return value

        return loss

    return {
        "forward": own(forward, original),
        "loss_function": property(loss_function, original.loss_function.fset),
        "__liger_features__": lambda self: FEATURES if _fusable(self, self._liger_slot, upstream_loss) else KEPT,
    }


def output_embeddings(original: Any, op: Callable[..., Tensor], **constants: Any) -> Namespace:
    """Adapter of the head: defers its call while the slot is open, and computes the loss when it gets a LossCall."""
    upstream = original.forward

    def forward(self: Any, hidden: Tensor, call: LossCall | None = None) -> Any:
        if call is None or not still_patched(self):
            return upstream(self, hidden)
        if sharded.is_split(self):
            over = sharded.loss_over(self, self.__liger_spec__)
            return _fused_loss(over, sharded.whole(hidden), *sharded.rows(self), LossCall(*call))
        return _fused_loss(op, hidden, self.weight, self.bias, LossCall(*call))

    return {"__call__": own(_call_or_defer, original), "forward": own(forward, original)}


def output_rows(original: Any, op: Callable[..., Tensor], **constants: Any) -> Namespace:
    """Adapter of a head that is no matrix: its own forward is called on some rows at a time."""
    upstream = original.forward

    def forward(self: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not isinstance(args[0], tuple) or not still_patched(self):
            return upstream(self, hidden, *args, **kwargs)
        by_rows = rowwise.loss_of_rows(self, functools.partial(upstream, self))
        return _fused_loss(by_rows, hidden, None, None, LossCall(*args[0]))

    return {"__call__": own(_call_or_defer, original), "forward": own(forward, original)}


def _call_or_defer(self: Any, *args: Any, **kwargs: Any) -> Any:
    slot = self._liger_slot
    if len(args) != 1 or kwargs or not slot.open or slot.hidden is not None:
        return nn.Module.__call__(self, *args, **kwargs)
    hidden = args[0]
    if tuple(hidden.shape[:-1]) != slot.shape:
        return nn.Module.__call__(self, hidden)
    slot.hidden = hidden
    return torch.empty((*slot.shape, 0), dtype=hidden.dtype, device=hidden.device)  # plain, for a DTensor too


def _without_carrier(model: Any, out: Any, consumed: bool) -> Any:
    """The output without the carrier in place of its logits."""
    if not consumed:
        raise CarrierLeaked(
            f"{type(model).__name__} called its head but not self.loss_function, so the logits it used were empty; "
            "call it with logits='full', and report the model type"
        )
    return output.drop_logits(out)


def _finish(out: Any, want: output.Wanted, labels: Tensor | None, kwargs: Mapping[str, Any], aligned: bool) -> Any:
    """Of upstream's own output, with real logits, what was asked for."""
    if want.accuracy:
        logits, ignore = (out["logits"] if isinstance(out, dict) else out[1]), kwargs.get("ignore_index", -100)
        shift = kwargs.get("shift_labels")
        target = shifted(labels, labels if aligned and shift is None else shift, ignore)
        output.add_accuracy(out, accuracy_of_logits(logits, target, ignore))
    return output.drop_logits(out) if want.logits == "none" else out


def _loss_call(
    logit_scale: float,
    softcap: float | None,
    accuracy: bool,
    loss: str,
    labels: Tensor | None,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **ignored: Any,  # as upstream's loss does with attention arguments that pass through the forward
) -> LossCall:
    shift_labels = labels if loss == ALIGNED else shift_labels
    return LossCall(labels, shift_labels, num_items_in_batch, ignore_index, logit_scale, softcap, accuracy)


def _fused_loss(
    op: Callable[..., Any], hidden: Tensor, weight: Tensor | None, bias: Tensor | None, call: LossCall
) -> tuple[Tensor, Tensor | None]:
    """The loss, and the accuracy if it was asked for."""
    target = shifted(call.labels, call.shift_labels, call.ignore_index).reshape(-1)
    rows = hidden.reshape(-1, hidden.shape[-1])
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        rows, target = _kept(rows, target, call.ignore_index)
    found = op(
        rows,
        weight,
        target.to(hidden.device),
        bias,
        ignore_index=call.ignore_index,
        reduction="mean" if call.num_items_in_batch is None else "sum",
        num_items=call.num_items_in_batch,
        logit_scale=call.logit_scale,
        softcap=call.softcap,
        **({"returns": ("token_accuracy",)} if call.accuracy else {}),
    )
    loss, accuracy = (found.loss, found.token_accuracy) if call.accuracy else (found, None)
    return loss if loss.dtype == torch.float32 else loss.float(), accuracy  # upstream's, also for an fp64 model


def _kept(rows: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Hidden states and labels without the ignored ones, where those are more than a few: the head costs more."""
    kept = (target != ignore_index).nonzero().squeeze(1)
    if 8 * kept.numel() > 7 * target.numel():
        return rows, target
    return rows.index_select(0, kept.to(rows.device)), target[kept]


# -- When the seam can be used at a call -------------------------------------------------------------------------------
def _fusable(model: Any, slot: Slot, loss: Callable[[Any], Any]) -> bool:
    """Whether head and loss are still those that were patched, or what PEFT has made of that head; no other loss is."""
    if _loss_name(loss(model)) not in (SHIFTS, ALIGNED) or not _still_known(model, slot):
        return False
    head = model.get_output_embeddings()
    return _joined(head, slot) and not any(map(sharded.hooked, head.modules()))


def _joined(head: Any, slot: Slot) -> bool:
    """Whether the head can still be called with a loss; what PEFT has put around it since is made a part of it."""
    if SLOT not in head.__dict__ and "modules_to_save" in head._modules and "original_module" in head._modules:
        heads = [m for m in head.modules() if SLOT in m.__dict__]
        for inner in heads:  # PEFT copied the head alone, so its copy holds a slot of its own
            if inner.__dict__[SLOT] is not slot:
                inner.__dict__[SLOT] = slot
        return len(heads) > 0 and all(readable(inner.weight, "") is None for inner in heads)
    if getattr(head, "__liger_spec__", None) is not None and head.__liger_spec__.adapter != rowwise.ADAPTER:
        return head.__dict__.get(SLOT) is slot and readable(head.weight, "") is None
    if torch.compiler.is_compiling():  # what goes by rows calls autograd, which cannot be traced
        return False
    if SLOT in head.__dict__:
        return head.__dict__[SLOT] is slot and rowwise.still_by_rows(head, slot)
    return rowwise.adopt(head, slot)


def _still_known(model: Any, slot: Slot) -> bool:
    """Whether a transform lies between head and loss now."""
    if torch.compiler.is_compiling():
        return not transform.AT_TRACING or transform.at_call(model, slot.known, slot.floats) is not None
    if slot.known is None:  # of a copy
        slot.known = transform.Known(model, transform.find_now(model))
    return slot.known.now(model) is not None


def _loss_name(loss: Any) -> str:
    """The name of a loss function of transformers, and what tells another one that has or was given its name."""
    name = getattr(loss, "__name__", "?")
    if getattr(loss, "__wrapped__", None) is not None:
        return f"a wrapper of {name}"
    home = getattr(loss, "__module__", "?")
    return name if home == LOSSES else f"{home}.{name}"


# -- Planning ----------------------------------------------------------------------------------------------------------
def parts(model: Any, options: Mapping[str, Any]) -> list[Part]:
    """The model and its head, or the heads that a wrapper of PEFT's holds.

    Raises:
        PatchRefused: the head, the loss or what lies between them is not what the op computes.
    """
    cls = original_class(model)
    if "labels" not in inspect.signature(cls.forward).parameters:  # type: ignore[attr-defined]
        raise PatchRefused("its forward takes no labels")
    head = model.get_output_embeddings()
    if head is None:
        raise PatchRefused(f"{cls.__name__} has no output embeddings")
    heads, whole = _heads(head)
    loss = _loss_name(cls.loss_function.fget(model))  # type: ignore[attr-defined]
    if loss not in (SHIFTS, ALIGNED):
        raise PatchRefused(f"its loss function is {loss}, neither {SHIFTS} nor {ALIGNED}")
    size = (whole or heads)[0]
    try:
        found = transform.find(model, size.out_features, size.in_features)
    except PatchRefused:
        if not stub.mentions(cls, "loss_function"):  # which is why, whatever a probe of it met
            raise PatchRefused(transform.NO_LOSS) from None
        raise
    _agree(model, options["softcap_path"], found.softcap)
    slot = Slot(transform.Known(model, found), transform.floats(model))
    aligned = found.aligned or loss == ALIGNED
    constants = {"logit_scale": found.scale, "softcap": found.softcap, "aligned": aligned}
    return [
        Part(model, "liger_hf.head:causal_lm", constants, {SLOT: slot}),
        *(Part(linear, "liger_hf.head:output_embeddings", {}, {SLOT: slot}) for linear in heads),
        *(Part(one, rowwise.ADAPTER, {}, {SLOT: slot}) for one in whole),
    ]


def _heads(head: Any) -> tuple[list[Any], list[Any]]:
    """The Linears that are the head or that PEFT switches between, and what stands around one and goes by rows.

    Raises:
        PatchRefused: it is something else.
    """
    linears: list[Any] = [head] if original_class(head) is nn.Linear else list(inner_modules(head))
    whole: list[Any] = []
    if not linears and rowwise.by_rows(head):
        whole = [head]
        linears = [m for m in rowwise.layers(head) if original_class(m) is nn.Linear and readable(m.weight, "") is None]
    for linear in linears or whole or [head]:
        kind = original_class(linear)
        if kind is not nn.Linear and linear not in whole:
            raise PatchRefused(f"its head is a {kind.__module__}.{kind.__qualname__}, not a plain Linear: real logits")
        if SLOT in linear.__dict__:
            raise PatchRefused("its head is patched already, as a part of another model")
        if linear not in whole and (reason := readable(linear.weight, "the head's weight")):
            raise PatchRefused(reason)
    if owner := next(filter(None, map(sharded.hooked, head.modules())), None):
        raise PatchRefused(f"a hook or forward of {owner} on its head would no longer see logits: real logits")
    return linears, whole


def _agree(model: Any, path: str | None, found: float | None) -> None:
    declared = transform.read(model, path) if path else None
    if path and (declared is None) != (found is None):
        raise PatchRefused(f"{path} is {declared}, but its forward applies a soft cap of {found}")
    if declared is not None and found is not None and abs(declared - found) > 1e-3 * abs(declared):
        raise PatchRefused(f"{path} is {declared}, but its forward applies a soft cap of {found}")


def probe_head(model: Any, generator: torch.Generator) -> Probe:
    """Head and loss on hidden states (2, 6, H) as if from the backbone."""
    head = model.get_output_embeddings()
    hidden = torch.randn(2, 6, head.in_features, generator=generator).to(*place(head))
    labels = torch.randint(head.out_features, (2, 6), generator=generator).to(hidden.device)

    def run(m: Any, hidden: Tensor, labels: Tensor) -> Tensor:
        return stub.run(m, hidden, patched=True, labels=labels).loss  # type: ignore[no-any-return]

    return Probe(run, (hidden.requires_grad_(), labels), uses=(stub.children(model)[1].partition(".")[0],))
