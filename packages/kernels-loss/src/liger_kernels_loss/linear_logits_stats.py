"""Statistics of the logits of a head, for scoring: without gradients and without ever holding all logits.

For a row: z = transform(hidden W^T + bias), see ``transforms.py``,

    lse = log sum_c exp(z_c),    entropy = lse - sum_c p_c * z_c,    top_logprob = max_c z_c - lse,    p = exp(z - lse)

Source: the definition; the chunks are those of ``linear_cross_entropy``.
Shapes: hidden (..., H), weight (V, H), bias (V,); N is the number of rows.
Precision: logits are rounded to the inputs' dtype, as the head itself does; everything after is fp32 (fp64 for fp64).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from liger.dispatch import public, run
from liger_kernels_loss._head import check_chunking, check_head
from liger_kernels_loss._labels_chunked import chunked
from liger_kernels_loss._loss import Loss, Rows, Wants, check_options, row_results
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_inputs
from liger_kernels_loss.transforms import head, transform

OP = "linear_logits_stats"


class LogitsStats(NamedTuple):
    """Statistics of each token's logits, of shape (...,), fp32 (fp64 for fp64) but for ``predictions``; no gradients.

    Attributes:
        lse: log sum exp of the transformed logits.
        entropy: of their softmax in nats.
        predictions: int64, the most likely class, the first of equals.
        top_logprob: log-probability of that class, at most 0.
    """

    lse: torch.Tensor
    entropy: torch.Tensor
    predictions: torch.Tensor
    top_logprob: torch.Tensor


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_logits_stats_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    workspace_mb: float | None = None,
) -> LogitsStats:
    """The definition: all logits at once."""
    del workspace_mb
    loss = Loss(softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    with torch.no_grad():
        logits = head(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
        labels = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
        rows = row_results(logits, labels, None, loss, Wants(entropy=True, best=True))
        z = transform(logits, softcap=softcap, logit_scale=logit_scale, temperature=temperature)
        top = z.amax(-1)
        total = (z - top[:, None]).exp().sum(-1)
    return _finish(Rows(rows.loss, top, total, rows.entropy, rows.best), hidden.shape[:-1])


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_logits_stats(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    temperature: float = 1.0,
    workspace_mb: float | None = None,
    kernel: str | None = None,
) -> LogitsStats:
    """What the logits ``hidden @ weight.T + bias`` of each row look like, for scoring; without gradients, in chunks.

    Args:
        hidden: (..., H), floating; any leading shape, any strides, 0 rows included.
        weight, bias: the head, (V, H) and (V,) or None; dtypes as in ``linear_token_logprobs``.
        softcap, logit_scale, temperature: as in ``cross_entropy``.
        workspace_mb: as in ``linear_cross_entropy``.
        kernel: choose a kernel by hand.

    Returns:
        ``LogitsStats``: lse, entropy, predictions and their log-probability, each (...,).

    Raises:
        ValueError: shapes do not match, the weight is empty, or an option lies outside its range.
        TypeError: an argument is of the wrong type, dtypes differ, or a tensor lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_logits_stats
        >>> linear_logits_stats(torch.ones(2, 4), torch.zeros(8, 4)).entropy
        tensor([2.0794, 2.0794])
    """
    loss = Loss(softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    loss = check_options(OP, loss, "none", None)
    hidden, weight, bias = check_head(OP, hidden, weight, bias)
    options = {
        "softcap": loss.softcap,
        "logit_scale": loss.logit_scale,
        "temperature": loss.temperature,
        "workspace_mb": check_chunking(OP, weight, None, workspace_mb)["workspace_mb"],
    }
    sizes = {"H": weight.shape[1], "V": weight.shape[0]}
    return run(OP, (hidden, weight, bias), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- In chunks ---------------------------------------------------------------------------------------------------------
def logits_stats_chunked(
    backend: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    workspace_mb: float | None,
) -> LogitsStats:
    """``linear_logits_stats`` for a backend of ``_chunked.py``."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    labels = torch.zeros(flat.shape[0], dtype=torch.int64, device=flat.device)
    loss = Loss(softcap=softcap, logit_scale=logit_scale, temperature=temperature)
    wants = Wants(lse=True, entropy=True, best=True)
    with torch.no_grad():
        found = chunked(
            flat, weight, labels, bias, *[None] * 5, backend, None, workspace_mb, *loss, *wants, *[False] * 3
        )
    return _finish(Rows(*found[:5]), hidden.shape[:-1])


def _finish(rows: Rows, shape: torch.Size) -> LogitsStats:
    assert rows.top is not None
    assert rows.total is not None
    assert rows.entropy is not None
    assert rows.best is not None
    log_total = rows.total.log()
    return LogitsStats(*[t.view(shape) for t in (rows.top + log_total, rows.entropy, rows.best, -log_total)])


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def linear_logits_stats_inputs(
    device: str, dtype: torch.dtype, *, N: int, H: int, V: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Those of linear_cross_entropy, without a target."""
    (hidden, weight, _, bias, *_), options = linear_cross_entropy_inputs(
        device, dtype, N=N, H=H, V=V, generator=generator, variant=variant
    )
    return [None if t is None else t.detach() for t in (hidden, weight, bias)], options


def linear_logits_stats_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Hidden and weight read; logits written and read."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    rows = hidden.numel() // hidden.shape[-1]
    return {"forward": hidden.nbytes + weight.nbytes + 2 * rows * weight.shape[0] * hidden.element_size()}


def linear_logits_stats_flops(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """One product of 2 N V H."""
    hidden, weight = tensors[0], tensors[1]
    assert hidden is not None
    assert weight is not None
    return {"forward": 2 * hidden.numel() * weight.shape[0]}
