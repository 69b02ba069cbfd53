"""The losses as modules, with the constructor of their torch counterparts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss.cosine_distance import cosine_distance
from liger_kernels_loss.cross_entropy import cross_entropy
from liger_kernels_loss.jsd import jsd
from liger_kernels_loss.kl_div import kl_div
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy
from liger_kernels_loss.linear_jsd import linear_jsd
from liger_kernels_loss.tvd import tvd


class _Loss(torch.nn.Module):
    """Keeps the options and shows those that were given."""

    weight: torch.Tensor | None

    def __init__(self, weight: torch.Tensor | None, options: dict[str, Any]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.options = options

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class CrossEntropyLoss(_Loss):
    """``liger.ops.cross_entropy`` as a module.

    Args:
        weight: class weights (V,), kept as a buffer.
        options: keyword arguments of ``liger.ops.cross_entropy``: ``ignore_index=0, label_smoothing=0.1``.

    Raises:
        TypeError: an option that the op does not have.
    """

    def __init__(self, weight: torch.Tensor | None = None, **options: Any) -> None:
        _known("cross_entropy", options)
        super().__init__(weight, options)

    def forward(
        self,
        logits: torch.Tensor,
        target: torch.Tensor,
        token_weight: torch.Tensor | None = None,
        *,
        num_items: int | float | torch.Tensor | None = None,
    ) -> torch.Tensor | CrossEntropyOutput:
        """logits (..., V), target (...,) -> what the op returns."""
        extra = {} if num_items is None else {"num_items": num_items}
        return cross_entropy(logits, target, self.weight, token_weight, **{**self.options, **extra})


class LinearCrossEntropyLoss(_Loss):
    """``liger.ops.linear_cross_entropy`` as a module. The head's weight is an argument of the call, so it can be tied.

    Args:
        weight: class weights (V,), kept as a buffer.
        options: keyword arguments of ``liger.ops.linear_cross_entropy``.

    Raises:
        TypeError: an option that the op does not have.
    """

    def __init__(self, weight: torch.Tensor | None = None, **options: Any) -> None:
        _known("linear_cross_entropy", options)
        super().__init__(weight, options)

    def forward(
        self,
        hidden: torch.Tensor,
        head: torch.Tensor,
        target: torch.Tensor,
        bias: torch.Tensor | None = None,
        token_weight: torch.Tensor | None = None,
        *,
        num_items: int | float | torch.Tensor | None = None,
    ) -> torch.Tensor | CrossEntropyOutput:
        """hidden (..., H), head (V, H), target (...,), bias (V,) -> what the op returns."""
        extra = {} if num_items is None else {"num_items": num_items}
        return linear_cross_entropy(hidden, head, target, bias, self.weight, token_weight, **{**self.options, **extra})


class _Options(torch.nn.Module):
    """Keeps the options of its op and shows those that were given.

    Args:
        options: keyword arguments of the op: ``temperature=2.0, ignore_index=0``.

    Raises:
        TypeError: an option that the op does not have.
    """

    op: Callable[..., torch.Tensor]

    def __init__(self, **options: Any) -> None:
        _known(type(self).op.__name__, options)
        super().__init__()
        self.options = options

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class _PairLoss(_Options):
    """A loss between the logits of a student and a teacher."""

    def forward(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        target: torch.Tensor | None = None,
        *,
        num_items: int | float | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """student and teacher (..., V), target (...,) or None -> scalar, or (...,) for reduction="none"."""
        extra = {} if num_items is None else {"num_items": num_items}
        return type(self).op(student, teacher, target, **{**self.options, **extra})


class JSDLoss(_PairLoss):
    """``liger.ops.jsd`` as a module, made with the op's keyword arguments: ``JSDLoss(beta=0.1, temperature=2.0)``."""

    op = staticmethod(jsd)


class TVDLoss(_PairLoss):
    """``liger.ops.tvd`` as a module, made with the op's keyword arguments: ``TVDLoss(temperature=2.0)``."""

    op = staticmethod(tvd)


class CosineDistanceLoss(_PairLoss):
    """``liger.ops.cosine_distance`` as a module, made with the op's keyword arguments."""

    op = staticmethod(cosine_distance)


class LinearJSDLoss(_Options):
    """``liger.ops.linear_jsd`` as a module, made with the op's keyword arguments: ``LinearJSDLoss(beta=0.1)``."""

    op = staticmethod(linear_jsd)

    def forward(
        self,
        student_hidden: torch.Tensor,
        student_head: torch.Tensor,
        teacher_hidden: torch.Tensor,
        teacher_head: torch.Tensor,
        target: torch.Tensor | None = None,
        student_bias: torch.Tensor | None = None,
        teacher_bias: torch.Tensor | None = None,
        *,
        num_items: int | float | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """student_hidden (..., H), student_head (V, H), teacher_hidden (..., T), teacher_head (V, T) -> the loss."""
        extra = {} if num_items is None else {"num_items": num_items}
        heads = student_hidden, student_head, teacher_hidden, teacher_head
        return type(self).op(*heads, target, student_bias, teacher_bias, **{**self.options, **extra})


class KLDivLoss(_Options):
    """``liger.ops.kl_div`` as a module: ``KLDivLoss(reduction="batchmean", log_target=True)``."""

    op = staticmethod(kl_div)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: A002  (torch's name)
        """Log-probabilities and probabilities of one shape -> scalar, or of that shape for reduction="none"."""
        return type(self).op(input, target, **self.options)


def _known(op: str, options: dict[str, Any]) -> None:
    from liger.registry import registry

    registry().check_options({op: {name: value for name, value in options.items() if name != "kernel"}})
