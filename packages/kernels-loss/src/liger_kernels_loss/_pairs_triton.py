"""Launches of the losses between a student and a teacher: jsd, tvd and cosine_distance."""

# mypy: warn-unused-ignores=False

from __future__ import annotations

import math

import torch

from liger.launch import GPU, ceil_div, gpu, launch, next_power_of_2, private_op
from liger.settings import settings
from liger_kernels_loss._cosine_triton import cosines
from liger_kernels_loss._divergence_triton import BETWEEN, FORWARD, REVERSE, VARIATION, divergences
from liger_kernels_loss._pairs import NumItems, pair_loss, row_divisor
from liger_kernels_loss._scale_triton import scaled

FORMS = {"forward": FORWARD, "reverse": REVERSE, "between": BETWEEN, "variation": VARIATION}
ALONE = 65536  # columns above which a row pair has a multiprocessor for itself


# -- Launches ----------------------------------------------------------------------------------------------------------
@settings(DEPTH=(1, 2, 4, 8), PROGRAMS=(1, 2, 4, 8))
def _settings(V: int, itemsize: int, form: str, device: GPU) -> dict[str, int]:
    """Constants of ``divergences`` and ``cosines``, and their programs for each multiprocessor.

    Exponentials and logarithms are the limit, so a multiprocessor gets as many warps as have registers, 32, in two to
    four programs, of which one computes while another loads: on an H200 1.2 to 1.7 times as fast as one of 16 warps,
    though the rows in work leave the cache before their further reads. Cosines have no logarithms, and of wide rows one
    pair. A mixture has the most values at hand and so the smallest programs. With odd V each value is loaded alone.
    """
    lanes, most = device.lanes, device.most_warps // 2
    mixture = form == "between"
    depth, each = (4 if mixture else 8, 1) if V % 2 else (1, 16 // max(itemsize, 2) if mixture else 8)
    warps = max(1, min(most // 2 if mixture else most, next_power_of_2(V) // (lanes * each)))
    programs = 1 if form == "cosine" and V > ALONE else min(8, 2 * most // warps)
    return {"DEPTH": depth, "THREADS": warps * lanes, "EACH": each, "num_warps": warps, "PROGRAMS": programs}


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
    chosen = {**_settings(V, max(student.element_size(), teacher.element_size()), form, device)}
    grid = (min(R, chosen.pop("PROGRAMS") * device.processors),)
    blocks = ceil_div(V, chosen["DEPTH"] * chosen["THREADS"] * chosen["EACH"])
    stride = 0 if factor is None or factor.numel() == 1 else factor.stride(0)
    tensors = (student, teacher, labels, factor, rows, made)
    numbers: tuple[float, ...] = (R, blocks, stride, ignore_index)
    if form == "cosine":
        launch(cosines, grid, tensors, numbers, V=V, **chosen, GRADIENT=gradient, fuse_multiply_add=False)
    else:
        numbers = (*numbers, beta, math.log2(math.e) / temperature, 1.0 / temperature)
        launch(divergences, grid, tensors, numbers, V=V, **chosen, FORM=FORMS[form].value, GRADIENT=gradient)


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
