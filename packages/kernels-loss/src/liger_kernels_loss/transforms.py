"""What happens between the head's product and the loss.

    z = softcap * tanh(x * logit_scale / softcap) / temperature, without a softcap x * logit_scale / temperature,

where x = h W^T + bias.

The one place for logit transforms in torch; ``_transforms_triton.py`` holds the same formula for kernels. Every loss
and log-prob op goes through these functions, so that no two of them can disagree. The bias belongs to the product and
is rounded with it, as in ``torch.nn.functional.linear``; the rest is fp32 (fp64 for fp64).
"""

from __future__ import annotations

import torch

from liger.dispatch import check_number
from liger.numerics import acc


def check_transform(
    op: str, *, softcap: float | None, logit_scale: float, temperature: float = 1.0
) -> tuple[float | None, float, float]:
    """Return the three as Python's floats, which numbers of numpy are not.

    Raises:
        ValueError: a softcap or temperature that is not positive, a scale that is 0, or one of them not finite.
        TypeError: something that is no number.
    """
    if softcap is not None:
        softcap = check_number(op, "softcap", softcap, "None or a number")
    logit_scale = check_number(op, "logit_scale", logit_scale)
    temperature = check_number(op, "temperature", temperature)
    if softcap is not None and not 0.0 < softcap < float("inf"):
        raise ValueError(f"{op}: softcap is {softcap!r}, expected None or a positive number")
    if logit_scale == 0.0 or not abs(logit_scale) < float("inf"):
        raise ValueError(f"{op}: logit_scale is {logit_scale!r}, expected a finite number other than 0")
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"{op}: temperature is {temperature!r}, expected a finite positive number")
    return softcap, logit_scale, temperature


def transform(
    logits: torch.Tensor, *, softcap: float | None = None, logit_scale: float = 1.0, temperature: float = 1.0
) -> torch.Tensor:
    """Logits of any floating dtype -> transformed logits in fp32 (fp64 for fp64). Differentiable, out of place."""
    z = acc(logits)
    if logit_scale != 1.0:
        z = z * logit_scale
    if softcap is not None:
        z = torch.tanh(z / softcap) * softcap
    if temperature != 1.0:
        z = z / temperature
    return z


def inner_and_outer(softcap: float | None, logit_scale: float, temperature: float) -> tuple[float, float]:
    """z = outer * tanh(inner * logits) with a softcap, else inner * logits and outer is 1: what kernels compute."""
    if softcap is None:
        return logit_scale / temperature, 1.0
    return logit_scale / softcap, softcap / temperature


def transform_(
    z: torch.Tensor,
    *,
    softcap: float | None,
    logit_scale: float,
    temperature: float,
    slope: torch.Tensor | None = None,
) -> torch.Tensor:
    """``transform`` in place on fp32 or fp64 ``z``; if a softcap is set, ``slope``, of equal shape, gets dz_out/dz_in.

    Without a softcap the slope is the constant ``logit_scale / temperature``.
    """
    inner, outer = inner_and_outer(softcap, logit_scale, temperature)
    if inner != 1.0:
        z.mul_(inner)
    if softcap is not None:
        z.tanh_()
        if slope is not None:
            torch.mul(z, z, out=slope)
            slope.neg_().add_(1.0).mul_(inner * outer)
        z.mul_(outer)
    return z


def head(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """hidden (N, H), weight (V, H), bias (V,) or None -> (N, V) in their dtype, optionally into ``out``."""
    if bias is None:
        return torch.mm(hidden, weight.t()) if out is None else torch.mm(hidden, weight.t(), out=out)
    return torch.addmm(bias, hidden, weight.t()) if out is None else torch.addmm(bias, hidden, weight.t(), out=out)
