"""``linear_jsd`` at its two ends: forward KL, KL(teacher || student), and reverse KL, KL(student || teacher).

    loss = linear_jsd(..., beta=1 if reverse else 0)

Source, formulas, shapes and precision: ``linear_jsd.py``, of which this is another name.
"""

from __future__ import annotations

import torch

from liger.dispatch import check_flag, public, run
from liger_kernels_loss._head import check_chunking
from liger_kernels_loss._pairs import NumItems
from liger_kernels_loss.linear_jsd import check_hard, check_heads, check_soft, linear_jsd_reference

OP = "linear_kl"


# -- Reference ---------------------------------------------------------------------------------------------------------
def linear_kl_reference(
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor | None = None,
    student_bias: torch.Tensor | None = None,
    teacher_bias: torch.Tensor | None = None,
    *,
    reverse: bool = False,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    hard_weight: float = 0.0,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
) -> torch.Tensor:
    """The definition: ``linear_jsd_reference`` at beta 0 or 1."""
    del accum_dtype, workspace_mb
    return linear_jsd_reference(
        *(student_hidden, student_weight, teacher_hidden, teacher_weight, target, student_bias, teacher_bias),
        beta=float(reverse),
        temperature=temperature,
        ignore_index=ignore_index,
        reduction=reduction,
        num_items=num_items,
        hard_weight=hard_weight,
    )


# -- Public ------------------------------------------------------------------------------------------------------------
@public(OP)
def linear_kl(
    student_hidden: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor | None = None,
    student_bias: torch.Tensor | None = None,
    teacher_bias: torch.Tensor | None = None,
    *,
    reverse: bool = False,
    temperature: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    num_items: NumItems = None,
    hard_weight: float = 0.0,
    accum_dtype: torch.dtype | str | None = None,
    workspace_mb: float | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """KL divergence of two heads' distributions, computed in chunks of rows: ``linear_jsd`` with beta 0 or 1.

    Args:
        student_hidden, student_weight, teacher_hidden, teacher_weight, target, student_bias, teacher_bias: as in
            ``linear_jsd``.
        reverse: KL(student || teacher) in place of KL(teacher || student).
        temperature, ignore_index, reduction, num_items, hard_weight, accum_dtype, workspace_mb: as in ``linear_jsd``.
        kernel: choose a kernel by hand.

    Returns:
        The loss, fp32 (fp64 for fp64): scalar, or (...,) for reduction="none".

    Raises:
        ValueError: shapes do not match, a weight is empty, an option lies outside its range, ``hard_weight`` comes
            without a target, or something of the teacher requires a gradient.
        TypeError: an argument is of the wrong type, dtypes of a head differ, or a tensor is not of the right kind or
            lies on another device.
        KernelUnavailable: ``kernel`` cannot serve the call.

    Example:
        >>> import torch
        >>> from liger.ops import linear_kl
        >>> heads = torch.ones(2, 4), torch.zeros(8, 4), torch.ones(2, 6), torch.eye(8, 6)
        >>> linear_kl(*heads), linear_kl(*heads, reverse=True)
        (tensor(0.0628), tensor(0.0780))
    """
    check_flag(OP, "reverse", reverse)
    heads = check_heads(OP, student_hidden, student_weight, teacher_hidden, teacher_weight, student_bias, teacher_bias)
    hard_weight, target = check_hard(OP, hard_weight, heads[0], heads[1], target)
    options = {
        "reverse": reverse,
        **check_soft(OP, temperature, ignore_index, reduction, num_items),
        "hard_weight": hard_weight,
        **check_chunking(OP, heads[1], accum_dtype, workspace_mb),
    }
    sizes = {"H": heads[1].shape[1], "T": heads[3].shape[1], "V": heads[1].shape[0]}
    return run(OP, (*heads[:4], target, *heads[4:]), options, sizes=sizes, kernel=kernel)  # type: ignore[no-any-return]
