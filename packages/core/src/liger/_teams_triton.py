"""Rows that a team of programs shares: each takes a part, tells the others what it found, and hears what they found.

So a row that no multiprocessor can hold is read from memory once: every part is small enough for the nearest cache
until its program has heard from the others. A word on the board says two fp32 numbers at once; 0 says that nobody wrote
it yet.

Programs take their places in the order in which they start, not by their number. So whoever waits, waits for programs
that run already or are the next to start: a team gets done as soon as ``PARTS`` programs can run at a time.

Where programs run one after another, as in the interpreter, where a team is too large to run at a time, or where nobody
tried whether programs see each other's words, a kernel is launched twice: in the first launch programs tell, in the
second they hear.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

import torch
import triton
import triton.language as tl

from liger.launch import gpu

ALONE, TOGETHER, TELL, HEAR = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
UNWRITTEN = tl.constexpr(0x7FC0DEAD7FC0DEAD)  # two fp32 that nothing computes; words are xor this, so 0 is free


@triton.jit
def place(board_ptr, words, PARTS: tl.constexpr, PHASE: tl.constexpr):
    """-> row and part of this program; ``words`` are on the board, behind them the number of places that are taken."""
    ticket = tl.program_id(0)
    if PHASE == TOGETHER:
        ticket = tl.atomic_add(board_ptr + words, 1, sem="relaxed").to(tl.int32)
    return ticket // PARTS, ticket % PARTS


@triton.jit
def tell(word_ptr, first, second):
    """Put two fp32 numbers on the board."""
    high = first.to(tl.int32, bitcast=True).to(tl.int64) << 32
    low = second.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(word_ptr, (high | low) ^ UNWRITTEN, sem="relaxed")


@triton.jit
def hear(word_ptrs, mask, FIRST: tl.constexpr, SECOND: tl.constexpr, PHASE: tl.constexpr):
    """-> both numbers of each word, FIRST and SECOND where there is none, once all are there."""
    words = tl.load(word_ptrs, mask=mask, other=1, volatile=True)
    if PHASE == TOGETHER:
        while tl.min((words != 0).to(tl.int32), axis=0) == 0:
            words = tl.load(word_ptrs, mask=mask, other=1, volatile=True)
    words = words ^ UNWRITTEN
    first = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    second = (words & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(mask, first, FIRST), tl.where(mask, second, SECOND)


def phases(parts: int, device: torch.device) -> tuple[int, ...]:
    """One launch where the programs of a team can wait for each other, else two: values of ``PHASE``.

    A team of more programs than there are multiprocessors may not run at a time, and would wait for ever.
    """
    found = gpu(device)
    together = device.type != "cpu" and found.name.startswith("sm") and parts <= found.processors
    return (TOGETHER.value,) if together else (TELL.value, HEAR.value)


def board(words: int, device: torch.device) -> torch.Tensor:
    """(words + 1,) int64: an empty board, with the number of places that are taken behind it."""
    return torch.zeros(words + 1, dtype=torch.int64, device=device)
