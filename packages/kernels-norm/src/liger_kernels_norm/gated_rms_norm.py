"""Gated RMSNorm: RMSNorm times an activation of a gate, in one pass, over groups of the last dimension.

norm_before_gate=True:   y = w * x / rms(x) * act(gate)                          (Qwen3-Next, OLMo hybrid, Kimi Linear)
norm_before_gate=False:  y = w * u / rms(u),  u = x * act(gate)                                   (Mamba-2 and after it)

rms(x) = sqrt(mean(x^2) + eps) over each of ``groups`` equal groups of consecutive columns.

Source: Dao and Gu 2024, "Transformers are SSMs", section 7 (norm after the gate); Yang et al. 2024, "Gated Delta
Networks", section 3 (before it); Zhang and Sennrich 2019, eq. 4 (RMSNorm).
Shapes: x, gate, y (..., H), w (H,) or None; H = groups * N.
Precision: everything in fp32, rounded to x.dtype at the end. The orders of casts of upstream's modules:

=============  ==============================================================================  =======================
cast           what is rounded as well                                                         dtype of y
=============  ==============================================================================  =======================
"llama"        the normalised value to x.dtype before the weight, and its product with the     x.dtype; after the gate
               weight to their promoted dtype (mamba2, qwen3_next)                             promoted from x and w
"fp32-weight"  nothing (falcon_h1, kimi_linear)                                                x.dtype
=============  ==============================================================================  =======================

Gradients: with xhat what is normalised, z the gradient of w * xhat and c = mean(z * w * xhat) over the group,
d = (z * w - xhat * c) / rms is the gradient of what enters the norm, and dw = sum over rows of z * xhat.
Before the gate: z = dy * act(gate), dx = d, dgate = dy * w * xhat * act'(gate).
After it: z = dy, dx = d * act(gate), dgate = d * x * act'(gate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, public, run
from liger.numerics import acc
from liger_kernels_norm._arguments import check_beside, check_count, check_input

ACTIVATIONS = ("silu", "sigmoid")
CASTS = ("llama", "fp32-weight")


# -- Reference ---------------------------------------------------------------------------------------------------------
def gated_rms_norm_reference(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_before_gate: bool = True,
    groups: int = 1,
    cast: str = "llama",
) -> torch.Tensor:
    """The definition, in plain torch; bit-equal to upstream's modules."""
    wide = acc(gate)
    act = torch.nn.functional.silu(wide) if activation == "silu" else torch.sigmoid(wide)
    h = acc(x) if norm_before_gate else acc(x) * act
    h = h.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).reshape(x.shape)
    if cast == "llama":
        h = h.to(x.dtype)
        h = h if weight is None else weight * h
    elif weight is not None:
        h = acc(weight) * h
    if norm_before_gate:
        return (h * act).to(x.dtype)
    return h if cast == "llama" else h.to(x.dtype)


# -- Public ------------------------------------------------------------------------------------------------------------
@public("gated_rms_norm")
def gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_before_gate: bool = True,
    groups: int = 1,
    cast: str = "llama",
    kernel: str | None = None,
) -> torch.Tensor:
    """RMSNorm over groups of the last dimension, times an activation of a gate.

    Args:
        x: (..., H), floating; any leading shape, any strides, 0 rows included.
        gate: the shape of x, floating.
        weight: (H,), floating, possibly of another dtype than x; None leaves it out.
        eps: added to the mean square.
        activation: of the gate, one of ``ACTIVATIONS``.
        norm_before_gate: True multiplies the normalised x with the gate; False normalises their product.
        groups: equal parts of H that are normalised by themselves; it divides H.
        cast: order of casts, one of ``CASTS``; see the module's docstring.
        kernel: choose a kernel by hand.

    Returns:
        (..., H) of x.dtype, or of the promoted dtype of x and weight for cast "llama" with the norm after the gate.

    Raises:
        ValueError: shapes do not match, an unknown ``cast`` or ``activation``, ``groups`` does not divide H, or ``eps``
            is negative or not finite.
        TypeError: an argument is of the wrong type, or a tensor is not floating or lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import liger, torch
        >>> x, gate = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
        >>> liger.ops.gated_rms_norm(x, gate, activation="sigmoid")  # x / sqrt(12.5) * 0.5
        tensor([[0.4243, 0.5657]])
    """
    op = "gated_rms_norm"
    check_choice(op, "cast", cast, CASTS)
    check_choice(op, "activation", activation, ACTIVATIONS)
    check_choice(op, "norm_before_gate", norm_before_gate, (True, False))
    eps = check_eps(op, eps)
    check_input(op, x)
    check_beside(op, "gate", gate, x, x.shape, why="that of x")
    check_count(op, "groups", groups)
    if x.shape[-1] % groups:
        raise ValueError(f"{op}: groups is {groups}, which does not divide {x.shape[-1]}, the last dimension of x")
    if weight is not None:
        check_beside(op, "weight", weight, x, x.shape[-1:], why="the last of x")
    options = {
        "eps": eps,
        "activation": activation,
        "norm_before_gate": norm_before_gate,
        "groups": groups,
        "cast": cast,
    }
    sizes = {"H": x.shape[-1] // groups}
    return run(op, (x, gate, weight), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def gated_rms_norm_inputs(
    device: str, dtype: torch.dtype, *, R: int, H: int, generator: torch.Generator, variant: str = ""
) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
    """Rows of magnitude 1e-3, 1 and 1e3 in turn, gates around 0, weights around 1; H is the width of a group.

    Variants: "weightless"; "mamba2", three groups and the norm after the gate; "kimi", a sigmoid and no early cast.
    """
    groups = 3 if variant == "mamba2" else 1
    x = torch.randn(R, groups * H, generator=generator) * torch.tensor([1e-3, 1.0, 1e3])[torch.arange(R) % 3, None]
    gate = 2 * torch.randn(R, groups * H, generator=generator)
    weight = 1 + 0.2 * torch.randn(groups * H, generator=generator)
    options: dict[str, Any] = {}
    if variant == "mamba2":
        options = {"groups": groups, "norm_before_gate": False}
    if variant == "kimi":
        options = {"activation": "sigmoid", "cast": "fp32-weight"}
    last = None if variant == "weightless" else weight.to(device, dtype)
    return (x.to(device, dtype), gate.to(device, dtype), last), options


def gated_rms_norm_bytes(tensors: Sequence[torch.Tensor | None], options: Mapping[str, Any]) -> dict[str, int]:
    """Read x, gate and weight, write y; read them and dy, write dx, dgate and dweight."""
    x, gate, weight = tensors
    assert x is not None
    assert gate is not None
    w = 0 if weight is None else weight.nbytes
    return {"forward": 2 * x.nbytes + gate.nbytes + w, "backward": 3 * x.nbytes + 2 * gate.nbytes + 2 * w}
