"""Checks that the ops of this package share."""

from __future__ import annotations

import torch

from liger.dispatch import check_tensor


def check_heads(op: str, q: torch.Tensor, k: torch.Tensor, unsqueeze_dim: int) -> tuple[int | None, int, int]:
    """B, T and D of q and k; B is None if they have no batch.

    Raises:
        ValueError: shapes do not match, or an unknown ``unsqueeze_dim``.
        TypeError: q or k is no tensor, is not floating, or they lie on different devices.
    """
    for name, t in (("q", q), ("k", k)):
        check_floating(op, name, t, q)
        if t.dim() not in (3, 4) or t.dim() != q.dim():
            wanted = "3 or 4 dimensions" if t is q else f"{q.dim()} dimensions, as q has"
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, expected {wanted}")
    known = (1, 2) if q.dim() == 4 else (0, 1)
    if unsqueeze_dim not in known:
        expected = f"{known[0]} or {known[1]} with {q.dim()} dimensions of q"
        raise ValueError(f"{op}: unsqueeze_dim is {unsqueeze_dim!r}, expected {expected}")
    shape, before, behind = q.shape, slice(unsqueeze_dim), slice(unsqueeze_dim + 1, None)
    if k.shape[before] != shape[before] or k.shape[behind] != shape[behind]:
        expected_k = (*shape[before], "Nk", *shape[behind])
        raise ValueError(f"{op}: k has shape {tuple(k.shape)}, expected {expected_k} to match q {tuple(shape)}")
    return shape[0] if len(shape) == 4 else None, shape[sum(known) - unsqueeze_dim], shape[-1]


def check_tables(
    op: str,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q: torch.Tensor,
    unsqueeze_dim: int,
    lead: tuple[int | None, ...],
    most: int,
    even: bool,
) -> None:
    """cos and sin against ``lead`` and the number of columns.

    Args:
        op: for the message.
        cos: the table.
        sin: must be like cos.
        q: for device and message.
        unsqueeze_dim: for the message.
        lead: axes, B and T as in q; None is left out. The second to last may be 1 in the table.
        most: columns at most.
        even: whether they must be even.

    Raises:
        ValueError: shapes do not match.
        TypeError: a table is no tensor, is not floating, or lies on another device than q.
    """
    expected = [n for n in lead if n is not None]
    for name, t in (("cos", cos), ("sin", sin)):
        check_floating(op, name, t, q)
        if t.dim() != len(expected) + 1:
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}, expected {len(expected) + 1} dimensions")
    shape, rows = cos.shape, None if lead[-2] is None else len(expected) - 2
    for at, n in enumerate(expected):
        if shape[at] != n and not (at == rows and shape[at] == 1):
            shared = [f"1 or {n}" if i == rows and n != 1 else str(n) for i, n in enumerate(expected)]
            raise ValueError(
                f"{op}: cos has shape {tuple(shape)}, expected ({', '.join(shared)}, columns) to match q "
                f"{tuple(q.shape)} with unsqueeze_dim={unsqueeze_dim}"
            )
    if (even and shape[-1] % 2) or not 0 < shape[-1] <= most:
        number = "an even number of at most" if even else "at most"
        raise ValueError(f"{op}: cos has {shape[-1]} columns, expected {number} {most}")
    if sin.shape != shape:
        raise ValueError(f"{op}: sin has shape {tuple(sin.shape)}, expected {tuple(shape)} like cos")
    if sin.dtype != cos.dtype:
        raise TypeError(f"{op}: sin has dtype {sin.dtype}, expected {cos.dtype} like cos")


def check_floating(op: str, name: str, t: torch.Tensor, q: torch.Tensor) -> None:
    """Raise TypeError unless ``t`` is a floating tensor on q's device."""
    check_tensor(op, name, t)
    if not t.dtype.is_floating_point or t.device != q.device:
        raise TypeError(f"{op}: {name} must be floating on {q.device} like q, got {t.dtype} on {t.device}")


def refuse_trained(op: str, **tables: torch.Tensor) -> None:
    """Raise ValueError if a table requires a gradient, which the op does not give."""
    for name, t in tables.items():
        if t.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{op}: {name} requires a gradient, which this op does not give; pass {name}.detach()")
