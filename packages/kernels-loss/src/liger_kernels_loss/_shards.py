"""A vocabulary in shards, one for each rank of a process group in rank order, and what the ranks tell each other.

Collectives stand in private ops, so that ``torch.compile`` sees each as one opaque step. They are the same on all ranks
and in the same order, whatever a rank holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from liger.launch import private_op

ALONE = "self"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MOST_CLASSES = 1 << 24  # columns travel as float32


class Shards(NamedTuple):
    """Who holds which columns.

    Attributes:
        group: name of the process group; ``ALONE`` if this process holds all columns.
        rank: of this process in the group.
        sizes: number of columns of each rank.
    """

    group: str
    rank: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, group: str, sizes: tuple[int, ...]) -> Shards:
        """From what ``find_shards`` has resolved."""
        return cls(group, _members(group)[0], sizes)

    @property
    def alone(self) -> bool:
        """Whether nobody has to be asked."""
        return self.group == ALONE

    @property
    def first(self) -> int:
        """The class of this rank's first column."""
        return sum(self.sizes[: self.rank])

    @property
    def classes(self) -> int:
        """Size of the whole vocabulary."""
        return sum(self.sizes)


# -- Who holds what ----------------------------------------------------------------------------------------------------
def find_shards(
    op: str, group: Any, sizes: Sequence[int] | None, *, rows: int, hidden: int, like: torch.Tensor
) -> Shards:
    """Resolve the arguments ``group`` and ``shards`` of an op; ``like`` (..., columns) are this rank's columns.

    Without ``sizes`` the group is asked, in the first call for this group, number of columns, ``hidden`` and dtype.
    That waits for the device; the answer is kept.

    Raises:
        TypeError: ``group`` is no process group, or ``sizes`` no sequence of integers.
        ValueError: ``sizes`` do not fit the group or this rank's columns, the ranks disagree in the number of rows,
            ``hidden`` or the dtype, or there are more than 2^24 classes.
    """
    name, columns = _group_name(op, group), like.shape[-1]
    rank, ranks = _members(name)
    if sizes is not None:
        found = _checked_sizes(op, sizes, rank, ranks, columns)
    elif name == ALONE:
        found = (columns,)
    else:
        rows = -1 if torch.compiler.is_compiling() else rows  # a number that changes is not to be a constant
        found = _ask(op, name, columns, hidden, like.dtype, like.device, rows)
    if sum(found) > MOST_CLASSES:
        raise ValueError(f"{op}: {sum(found)} classes, expected at most {MOST_CLASSES}")
    return Shards(name, rank, found)


def _group_name(op: str, group: Any) -> str:
    if group is None:
        group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else ALONE
    if isinstance(group, str):
        return group
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{op}: group is {group!r}, expected a process group that this process is in, its name, {ALONE!r} or None"
        )
    return group.group_name


def _group_named(name: str) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _members(name: str) -> tuple[int, int]:
    """Rank of this process, number of processes."""
    if name == ALONE:
        return 0, 1
    group = _group_named(name)
    return group.rank(), group.size()


def _checked_sizes(op: str, sizes: Sequence[int], rank: int, ranks: int, columns: int) -> tuple[int, ...]:
    if not isinstance(sizes, Sequence) or not all(isinstance(n, int) for n in sizes):
        raise TypeError(f"{op}: shards is {sizes!r}, expected the number of classes of each rank, as (512, 488)")
    if len(sizes) != ranks:
        raise ValueError(f"{op}: shards names {len(sizes)} ranks, but the group has {ranks}")
    if sizes[rank] != columns:
        raise ValueError(f"{op}: shards says {sizes[rank]} classes for rank {rank}, which holds {columns}")
    return tuple(sizes)


_answers: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], tuple[int, ...]]] = weakref.WeakKeyDictionary()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _ask(
    op: str, name: str, columns: int, hidden: int, dtype: torch.dtype, device: torch.device, rows: int
) -> tuple[int, ...]:
    """The number of columns of each rank."""
    answers = _answers.setdefault(_group_named(name), {})
    key = columns, hidden, dtype, device
    if key not in answers:
        code = DTYPES.index(dtype) if dtype in DTYPES else -1
        mine = torch.tensor([columns, hidden, code, rows], device=device)
        everyone = gathered(mine, name, _members(name)[1]).t().tolist()
        for what, values in zip(("sizes of hidden", "dtypes", "numbers of rows"), everyone[1:], strict=True):
            if len(set(values)) > 1:
                found = [str(DTYPES[v]) for v in values] if what == "dtypes" else values
                raise ValueError(f"{op}: the ranks of the group have different {what}, {found}; expected equal ones")
        answers[key] = tuple(everyone[0])
    return answers[key]


# -- Collectives -------------------------------------------------------------------------------------------------------
def _gathered_fake(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    return x.new_empty((ranks, *x.shape))


@private_op("gathered", _gathered_fake)
def gathered(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    """x (...) of each rank, of one shape -> (ranks, ...), the same bits everywhere."""
    out = x.new_empty((ranks, *x.shape))
    dist.all_gather(list(out.unbind(0)), x.contiguous(), group=_group_named(group))
    return out


def everyone(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    """``gathered``, without a copy if there is nobody else."""
    return x.unsqueeze(0) if shards.alone else gathered(x, shards.group, len(shards.sizes))


def _summed_fake(x: torch.Tensor, group: str) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@private_op("summed", _summed_fake)
def _summed(x: torch.Tensor, group: str) -> torch.Tensor:
    """Sum over the ranks, in x's dtype."""
    out = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=_group_named(group))
    return out


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str, op: str) -> torch.Tensor:
        ctx.group, ctx.op = group, op
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _refuse_second_derivative(ctx.op)
        return _summed(dy, ctx.group), None, None


def summed_gradient(x: torch.Tensor, shards: Shards, op: str) -> torch.Tensor:
    """x as it is, which all ranks have; the backward sums what they found as its gradient."""
    if shards.alone:
        return x
    return _SummedGradient.apply(x, shards.group, op)  # type: ignore[no-any-return, no-untyped-call]


class _AllColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shards: Shards, op: str) -> torch.Tensor:
        ctx.shards, ctx.op = shards, op
        widest = max(shards.sizes)
        padded = torch.nn.functional.pad(x, (0, widest - x.shape[-1]))
        parts = everyone(padded, shards)
        return torch.cat([part[..., :size] for part, size in zip(parts, shards.sizes, strict=True)], -1)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _refuse_second_derivative(ctx.op)
        return dy[..., ctx.shards.first :][..., : ctx.shards.sizes[ctx.shards.rank]], None, None


def all_columns(x: torch.Tensor, shards: Shards, op: str) -> torch.Tensor:
    """x (..., columns) of each rank -> (..., V) on all of them, who do the same with it; so the gradient is a part."""
    if shards.alone:
        return x
    return _AllColumns.apply(x, shards, op)  # type: ignore[no-any-return, no-untyped-call]


def _refuse_second_derivative(op: str) -> None:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{op}: there is no second derivative over a process group, which create_graph=True asks for"
        )
