"""How much memory a training step needs with and without Liger, counted on the meta device: no data, no GPU.

A forward and a backward run on tensors without memory, upstream's and then the patched ones with the kernels that a GPU
would choose, whose launches are left out; what is allocated and freed on the way is added up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import liger
from liger.declare import Call
from liger.errors import LigerError
from liger.launch import no_launches
from liger.plugins import describe
from liger.registry import registry

MIB = 2**20
ATTENTION = "liger_estimate"
GPU = {"device": "cuda", "capability": (9, 0)}


class NotEstimated(LigerError):
    """The model cannot run on the meta device."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of one training step, beside the optimizer's state.

    Attributes:
        parameters: also those that are not trained.
        gradients: of the parameters that are trained.
        kept: what the forward leaves for the backward, upstream and patched; with Liger that holds the head's gradient.
        peak: the highest use above the parameters during forward and backward, gradients included; the same two.
    """

    batch: int
    seq: int
    dtype: str
    parameters: int
    gradients: int
    kept: tuple[int, int]
    peak: tuple[int, int]

    @property
    def saved(self) -> int:
        """Bytes that the patched model needs less at its peak."""
        upstream, patched = self.peak
        return upstream - patched

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        pairs = {"kept": self.kept, "peak": self.peak}
        named = {name: dict(zip(("unpatched", "patched"), pair, strict=True)) for name, pair in pairs.items()}
        return {**asdict(self), **named, "saved": self.saved}

    def __str__(self) -> str:
        head = f"estimate for {self.batch} x {self.seq} tokens of text in {self.dtype} with a GPU's kernels, MiB"
        whole = (
            f"parameters {self.parameters / MIB:,.0f}, of the peak gradients {self.gradients / MIB:,.0f}, no optimizer"
        )
        lines = [f"{head}; {whole}", f"{'':<44}{'unpatched':>12}{'patched':>12}{'saved':>12}"]
        rows = {"kept by the forward for the backward": self.kept, "peak above parameters, with gradients": self.peak}
        for what, (upstream, patched) in rows.items():
            numbers = (upstream, patched, upstream - patched)
            share = 1 - patched / upstream
            lines.append(f"  {what:<42}" + "".join(f"{n / MIB:>12,.0f}" for n in numbers) + f"  {share:.0%}")
        return "\n".join(lines)


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that ops make while they live: ``now`` and the highest so far, ``peak``, in bytes."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.seen: dict[int, Any] = {t.untyped_storage()._cdata: t for t in known}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the op and note what is new."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return

        def forget(_: object) -> None:
            del self.seen[key]
            self.now -= size

        self.seen[key] = weakref.ref(storage, forget)
        self.now += size
        self.peak = max(self.peak, self.now)


class _Attention(torch.autograd.Function):
    """What attention without a matrix of scores keeps: its inputs, its output and a number per row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])


def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """(B, heads, T, D) each -> (B, T, heads, D), as transformers calls an attention."""
    return _Attention.apply(q, k, v).transpose(1, 2), None  # type: ignore[no-untyped-call]


@contextmanager
def _attention_without_scores(model: Any) -> Iterator[None]:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as ATTENTIONS

    ATTENTIONS[ATTENTION], MASKS[ATTENTION] = _attention, lambda *_, **__: None
    before = model.config._attn_implementation
    try:
        with suppress(ValueError):  # of a model that has only its own
            model.set_attn_implementation(ATTENTION)
        yield
    finally:
        with suppress(ValueError):
            model.set_attn_implementation(before)
        del ATTENTIONS[ATTENTION], MASKS[ATTENTION]


def estimate(make: Callable[[], Any], batch: int, seq: int, dtype: torch.dtype = torch.bfloat16) -> Estimate:
    """Count a step of a causal LM on ``batch`` sequences of ``seq`` tokens, every parameter trained.

    Attention is counted as one that keeps no scores (SDPA, FlashAttention); models that have no such attention run
    their own. Nothing is checkpointed, and images are not given.

    Args:
        make: makes the model on the meta device.
        batch, seq: 1 or more.
        dtype: of parameters and activations.

    Raises:
        ValueError: a size below 1.
        NotEstimated: upstream's forward cannot run without data.
    """
    if batch < 1 or seq < 1:
        raise ValueError(f"batch is {batch} and seq is {seq}, expected 1 or more of each")
    sides = []
    for patched in (False, True):
        model = make().to(dtype).train()
        if patched:
            liger.autopatch(model, prefer={op: _kernel(op, dtype) for op in registry().ops})
        try:
            with _attention_without_scores(model):
                sides.append(_step(model, batch, seq))
        except Exception as error:
            what = f"{type(model).__name__} cannot run on the meta device: {describe(error)}"
            raise NotEstimated(f"memory is not estimated: {what}") from error
    parameters = list(model.parameters())
    trained = sum(p.nbytes for p in parameters if p.grad is not None)
    whole = sum(p.nbytes for p in parameters)
    kept, peak = zip(*sides, strict=True)
    return Estimate(batch, seq, str(dtype).removeprefix("torch."), whole, trained, kept, peak)


def _step(model: Any, batch: int, seq: int) -> tuple[int, int]:
    """Bytes above what there is before: after a forward, and at the peak of it and its backward."""
    ids = torch.empty(batch, seq, dtype=torch.long, device="meta")
    places = torch.arange(seq, device="meta").expand(batch, seq)
    known = [ids, places, *model.parameters(), *model.buffers()]
    with Live(known) as live, no_launches():
        inputs = {"input_ids": ids, "labels": ids, "position_ids": places, "attention_mask": torch.ones_like(ids)}
        loss = model(**inputs, use_cache=False).loss
        kept = live.now
        loss.backward()
    return kept, live.peak


def _kernel(op: str, dtype: torch.dtype) -> str:
    """The name of the kernel that serves an op on a GPU."""
    call = Call(op=op, dtypes=(str(dtype).removeprefix("torch."),), **GPU)  # type: ignore[arg-type]
    return next(kernel.name for kernel in registry().kernels(op) if not kernel.needs.static_reasons(call))
