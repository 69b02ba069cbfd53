"""The head in front of a loss: what its tensors must be, and what autocast makes of them."""

from __future__ import annotations

from typing import Any

import torch

from liger.dispatch import check_number, check_tensor


def check_head(
    op: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, whose: str = ""
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return hidden (..., H), weight (V, H) and bias (V,) or None in the dtype of ``torch.nn.functional.linear``.

    ``whose`` stands before their names: "student_".

    Raises:
        TypeError: one is not floating, lies on another device, or has another dtype outside autocast.
        ValueError: shapes do not match, or the weight is empty.
    """
    _check_tensors(op, hidden, weight, bias, whose)
    hidden, weight, bias = _autocast(hidden, weight, bias)
    _check_dtypes(op, hidden, weight, bias, whose)
    return hidden, weight, bias


def _check_tensors(op: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, whose: str) -> None:
    for name, tensor in (("hidden", hidden), ("weight", weight), *((("bias", bias),) if bias is not None else ())):
        check_tensor(op, whose + name, tensor)
    if hidden.dim() == 0 or not hidden.dtype.is_floating_point:
        raise TypeError(
            f"{op}: {whose}hidden must be floating with at least one dimension, "
            f"got {hidden.dtype} {tuple(hidden.shape)}"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (not tensor.dtype.is_floating_point or tensor.device != hidden.device):
            raise TypeError(
                f"{op}: {whose}{name} must be floating on {hidden.device} like {whose}hidden, "
                f"got {tensor.dtype} on {tensor.device}"
            )
    if weight.numel() == 0:
        raise ValueError(
            f"{op}: {whose}weight has shape {tuple(weight.shape)}, expected (V, {hidden.shape[-1]}) with V at least 1; "
            "an empty head weight is usually a sharded parameter that was not gathered"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{op}: {whose}weight has shape {tuple(weight.shape)}, expected (V, {hidden.shape[-1]}) "
            f"from the last dimension of {whose}hidden {tuple(hidden.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{op}: {whose}bias has shape {tuple(bias.shape)}, expected ({weight.shape[0]},) from {whose}weight"
        )


def _autocast(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What autocast does to the arguments of ``torch.nn.functional.linear``; it leaves float64 alone."""
    device = hidden.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    hidden = hidden if hidden.dtype == torch.float64 else hidden.to(dtype)
    weight = weight if weight.dtype == torch.float64 else weight.to(dtype)
    if bias is not None and bias.dtype != torch.float64:
        bias = bias.to(dtype)
    return hidden, weight, bias


def _check_dtypes(op: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, whose: str) -> None:
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != hidden.dtype:
            raise TypeError(
                f"{op}: {whose}{name} is {tensor.dtype} but {whose}hidden is {hidden.dtype}; "
                f"expected equal dtypes outside autocast"
            )


def check_chunking(
    op: str, weight: torch.Tensor, accum_dtype: torch.dtype | str | None, workspace_mb: float | None
) -> dict[str, Any]:
    """The checked options as keyword arguments of a kernel."""
    megabytes = workspace_mb
    if workspace_mb is not None:
        megabytes = check_number(op, "workspace_mb", workspace_mb, "None or a number")
    if megabytes is not None and not 0.0 < megabytes < float("inf"):
        raise ValueError(f"{op}: workspace_mb is {workspace_mb!r}, expected None or a positive number")
    dtype = getattr(torch, accum_dtype, None) if isinstance(accum_dtype, str) else accum_dtype
    lower = dtype == torch.float32 and weight.dtype == torch.float64
    if (dtype is None and accum_dtype is not None) or lower or dtype not in (None, torch.float32, weight.dtype):
        expected = sorted({str(weight.dtype), "torch.float64" if lower else "torch.float32"})
        raise ValueError(f"{op}: accum_dtype is {accum_dtype!r}, expected None or {' or '.join(expected)}")
    return {"accum_dtype": dtype, "workspace_mb": megabytes}
