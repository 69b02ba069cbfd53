"""Other libraries' losses, for benchmarks; mean over all rows, none of them ignored, no class weights."""

from __future__ import annotations

import torch

from liger.bench import peer


@peer("liger_kernel", overwrites=True, capture=False, modes=("full",))  # makes the gradient in the forward, and waits
def liger_cross_entropy(logits: torch.Tensor, target: torch.Tensor, weight: None, token_weight: None) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(logits, target, weight)[0]  # type: ignore[no-any-return]


@peer("quack")
def quack_cross_entropy(logits: torch.Tensor, target: torch.Tensor, weight: None, token_weight: None) -> torch.Tensor:
    """quack-kernels 0.6.5."""
    from quack import cross_entropy

    return cross_entropy(logits, target, reduction="mean")  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True, capture=False, modes=("full",))
def liger_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: None,
    class_weight: None,
    token_weight: None,
    softcap: float | None = None,
) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    return _liger_linear(hidden, weight, target, softcap, 1)


def _liger_linear(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, softcap: float | None, memory: int
) -> torch.Tensor:
    """``memory``: a multiple of the size of hidden, for logits."""
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    # bias, class weights, ignore_index, z-loss, smoothing, reduction; behind the soft cap what else it may return
    options = (None, None, -100, 0.0, 0.0, "mean", softcap, False, None, False, False, False, None, None, memory)
    return LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, target, *options)[0]  # type: ignore[no-any-return]


@peer("liger_kernel", overwrites=True, capture=False, modes=("full",))
def liger_linear_cross_entropy_x8(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: None,
    class_weight: None,
    token_weight: None,
    softcap: float | None = None,
) -> torch.Tensor:
    """liger-kernel 0.8.5 with eight times its default of memory for logits."""
    return _liger_linear(hidden, weight, target, softcap, 8)


@peer("quack", modes=("full",))
def quack_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: None,
    class_weight: None,
    token_weight: None,
) -> torch.Tensor:
    """quack-kernels 0.6.5, in chunks of 4096 rows."""
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return chunked_linear_cross_entropy(hidden, weight, target)  # type: ignore[no-any-return]


@peer("cut_cross_entropy")
def cut_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: None,
    class_weight: None,
    token_weight: None,
    softcap: float | None = None,
) -> torch.Tensor:
    """cut-cross-entropy 25.1.1, without its filter, which leaves small gradients out."""
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(hidden, weight, target, filter_eps=None, softcap=softcap)  # type: ignore[no-any-return]


@peer("liger_kernel", capture=False, modes=("full",))  # makes the gradient in the forward, and waits
def liger_jsd(student: torch.Tensor, teacher: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5, which takes log-probabilities; beta=0.5."""
    from liger_kernel.ops import LigerJSDFunction

    logs = (torch.log_softmax(t, -1, dtype=torch.float32) for t in (student, teacher))
    return LigerJSDFunction.apply(*logs, target)  # type: ignore[no-any-return]


@peer("liger_kernel", capture=False, modes=("full",))  # makes the gradient in the forward, and waits
def liger_tvd(student: torch.Tensor, teacher: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5, which takes probabilities."""
    from liger_kernel.ops import LigerTVDLossFunction

    probabilities = (torch.softmax(t, -1, dtype=torch.float32) for t in (student, teacher))
    return LigerTVDLossFunction.apply(*probabilities, target, "batchmean")  # type: ignore[no-any-return]


@peer("liger_kernel", capture=False, modes=("full",))
def liger_kl_div(log_q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """liger-kernel 0.8.5."""
    from liger_kernel.ops import LigerKLDivLossFunction

    return LigerKLDivLossFunction.apply(log_q, target, "mean")  # type: ignore[no-any-return]


@peer("torch", modes=("full",))
def torch_kl_div(log_q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's own, in the dtype of its arguments."""
    losses = torch.nn.functional.kl_div(log_q, target, reduction="sum")
    return losses / log_q.numel()


@peer("liger_kernel", capture=False, modes=("full",))  # makes the gradient in the forward, and waits
def liger_linear_jsd(
    student: torch.Tensor,
    weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    target: torch.Tensor,
    student_bias: None,
    teacher_bias: None,
) -> torch.Tensor:
    """liger-kernel 0.8.5; beta=0.5."""
    from liger_kernel.ops import LigerFusedLinearJSDFunction

    return LigerFusedLinearJSDFunction.apply(student, weight, teacher, teacher_weight, target)  # type: ignore[no-any-return]
