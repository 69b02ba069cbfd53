"""Launches of the losses between a student and a teacher: jsd, tvd and cosine_distance."""

# mypy: warn-unused-ignores=False

from __future__ import annotations

import math

import torch

from liger.launch import GPU, gpu, launch, next_power_of_2, private_op
from liger.settings import settings
from liger_kernels_loss._cosine_triton import cosines
from liger_kernels_loss._divergence_triton import BETWEEN, FORWARD, REVERSE, VARIATION, divergences
from liger_kernels_loss._pairs import NumItems, pair_loss, row_divisor
from liger_kernels_loss._row_terms_triton import blocks_of
from liger_kernels_loss._scale_triton import scaled

FORMS = {"forward": FORWARD, "reverse": REVERSE, "between": BETWEEN, "variation": VARIATION}
WIDE = 65536  # columns above which a row pair is more than the nearest cache keeps beside others


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4, 8), num_warps=(4, 8, 16, 32))
def _settings(V: int, itemsize: int, form: str, device: GPU) -> dict[str, int]:
    """Constants of ``divergences``, a row pair a program.

    Few registers, so that all warps a multiprocessor has are at work. A mixture, limited by its arithmetic, and the
    forward KL, which reads twice, have small programs; who reads three times has as few at a time as possible. On an
    H200 4096 rows of 128256 take tvd 1545, 1647 and 1702 us with 32, 16 and 8 warps, jsd 1897, 1898 and 1823; of 32000
    columns 361, 336 and 391, and 481, 462 and 447. With odd V each value is loaded alone.
    """
    small = form in ("between", "forward")
    chosen = _block(V, itemsize, device.most_warps // (4 if small else 2 if V <= WIDE else 1), device)
    if V % 2:
        return {**chosen, "DEPTH": 4 if small else 8}
    return {**chosen, "DEPTH": 2 if form == "forward" else 1}


@settings(DEPTH=(1, 2, 4, 8), PROGRAMS=(1, 2, 4, 8))
def _cosine_settings(V: int, itemsize: int, device: GPU) -> dict[str, int]:
    """Constants of ``cosines``, and its programs for each multiprocessor: one of wide rows, which it reads twice."""
    chosen = _block(V, itemsize, device.most_warps // 2, device)
    return {**chosen, "PROGRAMS": 1 if V > WIDE else min(8, device.most_warps // chosen["num_warps"])}


def _block(V: int, itemsize: int, most: int, device: GPU) -> dict[str, int]:
    """A block of at most ``most`` warps: 16 bytes a thread, or 8 values where they are loaded alone."""
    depth, each = (8, 1) if V % 2 else (1, 16 // max(itemsize, 2))
    warps = max(1, min(most, next_power_of_2(V) // (device.lanes * each)))
    return {"DEPTH": depth, "THREADS": warps * device.lanes, "EACH": each, "num_warps": warps}


def _rows_fake(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    form: str,
    beta: float,
    temperature: float,
    ignore_index: int,
    loss: bool,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = student.new_empty(student.shape[:-1], dtype=torch.float32) if loss else None
    made = torch.empty_like(student, memory_format=torch.contiguous_format) if gradient else None
    return rows, made  # type: ignore[return-value]


@private_op("pair_rows", _rows_fake)
def _rows(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    dy: torch.Tensor | None,
    op: str,
    form: str,
    beta: float,
    temperature: float,
    ignore_index: int,
    loss: bool,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """student and teacher (..., V) of any strides -> losses (...,) fp32, dstudent (..., V) contiguous, or None."""
    rows, made = _rows_fake(student, teacher, target, dy, op, form, beta, temperature, ignore_index, loss, gradient)
    labels = None if target is None else target.contiguous()
    factor = None if dy is None else dy.reshape(-1)  # a gradient may arrive expanded
    _launch(
        student.contiguous(), teacher.contiguous(), labels, factor, rows, form, beta, temperature, ignore_index, made
    )
    return rows, made


def _launch(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor | None,
    factor: torch.Tensor | None,
    rows: torch.Tensor | None,
    form: str,
    beta: float,
    temperature: float,
    ignore_index: int,
    made: torch.Tensor | None,
) -> None:
    """Contiguous student and teacher (..., V) -> losses into ``rows``, the gradient into ``made``, where given.

    ``made`` may be the student or the teacher: each value is read before it is written, by one thread.
    """
    V, device, gradient = student.shape[-1], gpu(student.device), made is not None
    R = student.numel() // V
    size = max(student.element_size(), teacher.element_size())
    stride = 0 if factor is None or factor.numel() == 1 else factor.stride(0)
    tensors, constants = (student, teacher, labels, factor, rows, made), {"V": V, "GRADIENT": gradient}
    if form == "cosine":
        chosen = {**_cosine_settings(V, size, device)}
        programs = min(R, chosen.pop("PROGRAMS") * device.processors)
        counts = (R, blocks_of(V, chosen), stride, ignore_index)
        launch(cosines, (programs,), tensors, counts, **constants, **chosen, fuse_multiply_add=False)
    else:
        chosen = _settings(V, size, form, device)
        scales = (beta, math.log2(math.e) / temperature, 1.0 / temperature)
        numbers = (blocks_of(V, chosen), stride, ignore_index, *scales)
        launch(divergences, (R,), tensors, numbers, **constants, **chosen, FORM=FORMS[form].value)


def launch_pairs(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    factor: torch.Tensor | None,
    losses: torch.Tensor,
    beta: float,
    temperature: float,
    ignore_index: int,
    out: torch.Tensor | None,
) -> None:
    """``torch_pair`` of ``_divergence_torch.py``."""
    _launch(student, teacher, target, factor, losses, _form(beta), beta, temperature, ignore_index, out)


def _form(beta: float) -> str:
    return {0.0: "forward", 1.0: "reverse"}.get(beta, "between")


def _launched(
    op: str,
    form: str,
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
    beta: float = 0.0,
    temperature: float = 1.0,
) -> torch.Tensor:
    labels = None if target is None else target.long()
    rows = student.numel() // student.shape[-1]
    by = row_divisor(rows, student, labels, ignore_index, reduction, num_items)
    options = (op, form, beta, temperature, ignore_index)
    return pair_loss(_rows, scaled, student, teacher, labels, by, reduction != "none", options)


def jsd_triton(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    *,
    beta: float,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    """See ``liger_kernels_loss.jsd``."""
    return _launched(
        "jsd", _form(beta), student, teacher, target, ignore_index, reduction, num_items, beta, temperature
    )


def tvd_triton(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    *,
    temperature: float,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    """See ``liger_kernels_loss.tvd``."""
    return _launched(
        "tvd", "variation", student, teacher, target, ignore_index, reduction, num_items, temperature=temperature
    )


def cosine_distance_triton(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor | None,
    *,
    ignore_index: int,
    reduction: str,
    num_items: NumItems,
) -> torch.Tensor:
    """See ``liger_kernels_loss.cosine_distance``."""
    return _launched("cosine_distance", "cosine", student, teacher, target, ignore_index, reduction, num_items)
