"""The flag ``cross_entropy``: a causal LM's loss from its logits by ``liger.ops.cross_entropy``; the logits stay.

The model's class is swapped as by ``liger.autopatch``, for this instance alone, so ``liger.unpatch`` undoes it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from liger import Report, Row
from liger.api import undo_later
from liger.patch import Action, apply
from liger.planner import unwrap
from liger.report import log
from liger.swap import Namespace, Spec, is_swapped, still_patched
from liger_hf.accuracy import shifted
from liger_kernel import __version__

FIT = "causal_lm_loss"
SPEC = Spec(fit=FIT, op="cross_entropy", adapter="liger_kernel._logits_loss:causal_lm_loss")


def causal_lm_loss(original: Any, op: Callable[..., Tensor]) -> Namespace:
    """Adapter of a causal LM: its loss function, while that is still upstream's for causal LMs."""
    upstream = original.loss_function.fget

    def loss(
        logits: Tensor,
        labels: Tensor,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **ignored: Any,  # as upstream's loss does with what passes through the forward
    ) -> Tensor:
        target = shifted(labels, shift_labels, ignore_index).reshape(-1).to(logits.device)
        reduction = "mean" if num_items_in_batch is None else "sum"
        rows = logits.reshape(-1, vocab_size)
        value = op(rows, target, ignore_index=ignore_index, reduction=reduction, num_items=num_items_in_batch)
        return value.float()  # upstream's, also for an fp64 model

    def loss_function(self: Any) -> Callable[..., Tensor]:
        base: Callable[..., Tensor] = upstream(self)
        return loss if still_patched(self) and base is ForCausalLMLoss else base

    return {"loss_function": property(loss_function, original.loss_function.fset)}


def add_loss(report: Report, target: Any) -> None:
    """Patch the loss of a model, or of the one inside wrappers; the report gets a row, and undoes it too."""
    model = unwrap(target)
    reason = _why_not(model)
    owner = f"liger-compat {__version__}"
    row = Row(path="", cls=type(model).__name__, fit=FIT, op=SPEC.op, status="applied", owner=owner)
    if reason is not None:
        report.rows.append(replace(row, status="skipped", reason=reason))
        return
    undo, before = undo_later(model, apply(model, [Action("", model, SPEC, {})])), report._revert

    def revert() -> None:
        undo()
        if before is not None:
            before()

    report.rows.append(row)
    report._revert = revert
    log(type(model), f"applied {SPEC.op}")


def _why_not(model: Any) -> str | None:
    """Why the loss of this model is left alone, or None."""
    if is_swapped(type(model)):
        same = type(model).__liger_spec__ == SPEC
        return "already patched with the same options" if same else "the model is patched already; unpatch it first"
    loss = getattr(model, "loss_function", None)
    if loss is not ForCausalLMLoss:
        return f"its loss function is {getattr(loss, '__qualname__', loss)}, expected transformers' ForCausalLMLoss"
    return None if model.get_output_embeddings() is not None else "it has no head"
