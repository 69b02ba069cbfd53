"""RMSNorm of each head of queries and keys, then the rotary embedding, half layout: two ops and four passes in one.

n = x / sqrt(mean(x^2) + eps) * (offset + w) over the D columns of a head, q and k each with its own weight; then, with
the first D_rot columns in halves, n = (n1, n2, rest): y1 = n1 * c1 - n2 * s1,  y2 = n2 * c2 + n1 * s2,  rest unchanged.

Source: Henry et al. 2020, "Query-Key Normalization for Transformers", with RMSNorm as in Qwen3 and Gemma3; rotation as
in ``rope``.
Shapes: q (B, Nq, T, D), k (B, Nk, T, D), with ``unsqueeze_dim=2`` heads behind tokens; weights (D,); cos, sin
(B or 1, T, D_rot). Without a batch as in ``rope``.
Precision: that of ``rms_norm`` followed by ``rope``. Statistics in fp32, and by ``cast``:

=============  ========================================================================  ===============================
cast           what is rounded                                                           dtype of n
=============  ========================================================================  ===============================
"llama"        x/rms to x's dtype, then its product with the weight (qwen3, glm4_moe)    promoted from x and the weight
"fp32-weight"  only the product with the weight (gpt_oss, olmo2)                         that of x
"gemma"        the same arithmetic; gemma3 pairs it with offset=1                        that of x
=============  ========================================================================  ===============================

The offset is added in fp32. n is rounded before it is turned; the products of the rotation and their sum are rounded to
the dtype promoted from n and cos.
Memory: nothing is kept but the arguments; the backward computes rms and n again. Results and gradients have the strides
of their input, as in ``rope``.
Gradients: with g = the transposed rotation of dy in fp32, xhat = x/rms: dx = (h - xhat * mean(h * xhat)) / rms,
h = g * (offset + w); dw = sum over tokens and heads of g * xhat, in fp32, in a fixed order. cos and sin get none, and
are refused if they require one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from liger.dispatch import check_choice, check_eps, check_number, public, run
from liger.numerics import acc
from liger_kernels_rope._arguments import check_floating, check_heads, check_tables, refuse_trained
from liger_kernels_rope.rope import turn

CASTS = ("llama", "fp32-weight", "gemma")


# -- Reference ---------------------------------------------------------------------------------------------------------
def normalise(x: torch.Tensor, weight: torch.Tensor, eps: float, cast: str, offset: float) -> torch.Tensor:
    """RMSNorm over the last dimension."""
    h = acc(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if cast == "llama":
        scale = (acc(weight) + offset) if offset else weight
        return (scale * h.to(x.dtype)).to(torch.promote_types(x.dtype, weight.dtype))
    return (h * (acc(weight) + offset)).to(x.dtype)


def qk_norm_rope_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in plain torch; bit-equal to upstream's norms and ``apply_rotary_pos_emb``."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    q, k = normalise(q, q_weight, eps, cast, offset), normalise(k, k_weight, eps, cast, offset)
    return turn(q, cos, sin, "half", "none"), turn(k, cos, sin, "half", "none")


# -- Public ------------------------------------------------------------------------------------------------------------
@public("qk_norm_rope")
def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float = 1e-6,
    cast: str = "llama",
    offset: float = 0.0,
    unsqueeze_dim: int = 1,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise each head of queries and keys, then rotate them.

    Args:
        q: (B, Nq, T, D), floating, any strides; (B, T, Nq, D) with ``unsqueeze_dim=2``. Without a batch (T, Nq, D), or
            (Nq, T, D) with ``unsqueeze_dim=0``.
        k: the same with Nk heads.
        q_weight: (D,), floating, possibly of another dtype than q.
        k_weight: (D,), floating.
        cos: (B, T, D_rot) or (1, T, D_rot), floating; D_rot is even and at most D. (T, D_rot) without a batch.
        sin: like cos.
        eps: added to the mean square.
        cast: order of casts of the norm, one of ``CASTS``; see the module.
        offset: added to the weights in fp32 (1 for Gemma).
        unsqueeze_dim: where the head axis of q and k is.
        kernel: choose a kernel by hand.

    Returns:
        q and k, shapes and memory layouts as given; dtypes promoted from q or k and cos, with "llama" also the weight.

    Raises:
        ValueError: shapes do not match, an unknown value of an option, ``eps`` is negative or not finite, or cos or sin
            requires a gradient.
        TypeError: an argument is of the wrong type, a tensor is not floating or lies on another device than q, or sin
            has another dtype than cos.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import qk_norm_rope
        >>> q, k, weight = torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[[[0.0, 5.0]]]]), torch.ones(2)
        >>> cos, sin = torch.zeros(1, 1, 2), torch.ones(1, 1, 2)  # a quarter turn
        >>> qk_norm_rope(q, k, weight, weight, cos, sin)
        (tensor([[[[0.0000, 1.4142]]]]), tensor([[[[-1.4142,  0.0000]]]]))
    """
    op = "qk_norm_rope"
    check_choice(op, "cast", cast, CASTS)
    eps = check_eps(op, eps)
    offset = check_number(op, "offset", offset)
    batch, length, width = check_heads(op, q, k, unsqueeze_dim)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        check_floating(op, name, weight, q)
        if weight.shape != q.shape[-1:]:
            raise ValueError(f"{op}: {name} has shape {tuple(weight.shape)}, expected ({width},), the last of q")
    check_tables(op, cos, sin, q, unsqueeze_dim, (batch, length), width, True)
    refuse_trained(op, cos=cos, sin=sin)
    options = {"eps": eps, "cast": cast, "offset": offset, "unsqueeze_dim": unsqueeze_dim}
    tensors = (q, k, q_weight, k_weight, cos, sin)
    return run(op, tensors, options, sizes={"D": width}, kernel=kernel)  # type: ignore[no-any-return]


# -- For liger.testing and benchmarks ----------------------------------------------------------------------------------
def qk_norm_rope_inputs(
    device: str,
    dtype: torch.dtype,
    *,
    T: int,
    B: int,
    NQ: int,
    NK: int,
    D: int,
    generator: torch.Generator,
    variant: str = "",
) -> tuple[Sequence[torch.Tensor], Mapping[str, Any]]:
    """q and k (B, T, N, D) transposed, tokens of magnitude 1e-3, 1 and 1e3; weights around 1; cos, sin (1, T, D).

    Variants: "heads last", with cos and sin (B, T, D); "partial", D_rot about D / 2; "gemma", its casts and offset
    together, no batch, and fp32 weights.
    """
    magnitude = torch.tensor([1e-3, 1.0, 1e3])[torch.arange(T) % 3, None, None]
    q, k = ((torch.randn(B, T, n, D, generator=generator) * magnitude).to(device, dtype) for n in (NQ, NK))
    weights = [1 + 0.2 * torch.randn(D, generator=generator) for _ in range(2)]
    weights = [w.to(device, torch.float32 if variant == "gemma" else dtype) for w in weights]
    width = 2 * max(D // 4, 1) if variant == "partial" else D - D % 2
    angle = 6.3 * torch.rand(B if variant == "heads last" else 1, T, width, generator=generator)
    cos, sin = angle.cos().to(device, dtype), angle.sin().to(device, dtype)
    options: dict[str, Any] = {}
    if variant == "gemma":
        options = {"cast": "gemma", "offset": 1.0}
        q, k, cos, sin = q[0], k[0], cos[0], sin[0]
    elif variant == "heads last":
        options = {"unsqueeze_dim": 2}
    else:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    trained = [t.detach().requires_grad_() for t in (q, k, *weights)]
    return (*trained, cos, sin), options


def qk_norm_rope_bytes(tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> dict[str, int]:
    """Read q and k, write both; read them and the gradients, write gradients; cos and sin either way."""
    q, k, q_weight, k_weight, cos, sin = tensors
    heads, rest = q.nbytes + k.nbytes, q_weight.nbytes + k_weight.nbytes + cos.nbytes + sin.nbytes
    return {"forward": 2 * heads + rest, "backward": 3 * heads + rest}
