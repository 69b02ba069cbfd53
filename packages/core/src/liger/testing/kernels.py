"""Everything a kernel must pass, as one list of checks, made from its declaration alone.

A check is a function of a `Kernel` and a device that raises ContractViolation. It stands in one of five modules, and in
``CHECKS`` at its end: `behaviour` and `backward` (one kernel alone), `routes` (an op's kernels beside each other,
limits, refusals), `profile` (what is declared is true), `gpu` (needs a GPU). How close results must be is not theirs:
`contract`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from liger.declare import Kernel
from liger.errors import ContractViolation
from liger.testing import backward, behaviour, gpu, profile, routes
from liger.testing.cases import find, make_cases, parameter
from liger.testing.fixtures import count_gpus

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


@dataclass(frozen=True, slots=True)
class Check:
    """A named check of one kernel; call it with a device. It needs ``gpus`` CUDA devices."""

    name: str
    run: Callable[[str], None]
    gpus: int = 0

    def __call__(self, device: str = "cpu") -> None:
        """Run it; raises ContractViolation or what the kernel raises."""
        self.run(str(device))


def checks(*kernels: str | Kernel) -> list[ParameterSet]:
    """All checks of these kernels, for ``pytest.mark.parametrize("check", checks("silu_mul/triton"))``.

    With ``LIGER_TEST_PART=0/3`` in the environment the first third of them; which these are depends on their names.
    """
    found = [find(kernel) for kernel in kernels]
    prefix = "{.id}-" if len(found) > 1 else ""
    return [
        parameter(check, prefix.format(kernel) + check.name, kernel, check.gpus)
        for kernel in found
        for check in make_checks(kernel)
        if in_part(f"{kernel.id} {check.name}")
    ]


def part() -> tuple[int, int]:
    """I and N of ``LIGER_TEST_PART``, "I/N" with 0 <= I < N; (0, 1), everything, without it.

    Raises:
        ValueError: it is something else.
    """
    text = os.environ.get("LIGER_TEST_PART", "0/1")
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"LIGER_TEST_PART is {text!r}, expected I/N with 0 <= I < N, such as 0/3")
    return int(found[1]), int(found[2])


def in_part(name: str) -> bool:
    """Whether the part of ``LIGER_TEST_PART`` has the check of this name."""
    index, of = part()
    return zlib.crc32(name.encode()) % of == index


def check_kernel(kernel: str | Kernel, device: str = "cpu") -> None:
    """Run all checks of a kernel that this machine can run, and report every one that fails.

    Raises:
        ContractViolation: with the name and the message of each failed check.
    """
    if found := [f"{name}: {type(error).__name__}: {error}" for name, error in failures(kernel, device)]:
        raise ContractViolation("\n".join(found))


def failures(kernel: str | Kernel, device: str = "cpu", part: str = "") -> Iterator[tuple[str, Exception]]:
    """Names and errors of the checks that fail, as they do; only those with ``part`` in their names are run.

    Raises:
        ValueError: no check that this machine can run has ``part`` in its name.
    """
    chosen = [check for check in make_checks(find(kernel)) if part in check.name and check.gpus <= count_gpus()]
    if not chosen:
        raise ValueError(f"no check of {kernel} that this machine can run has {part!r} in its name")
    for check in chosen:
        try:
            check(device)
        except Exception as error:
            yield check.name, error


def make_checks(kernel: Kernel) -> list[Check]:
    """The checks of ``checks``, without pytest."""
    accuracy = [Check(f"contract-{case.id}", case.check) for case in make_cases(kernel)]
    anywhere = {**behaviour.CHECKS, **backward.CHECKS, **profile.CHECKS, **routes.CHECKS}
    return [
        *accuracy,
        *(Check(name, _bind(fn, kernel)) for name, fn in anywhere.items()),
        *(Check(name, _bind(fn, kernel), gpus) for name, (fn, gpus) in gpu.CHECKS.items()),
    ]


def _bind(fn: Callable[[Kernel, str], None], kernel: Kernel) -> Callable[[str], None]:
    return lambda device: fn(kernel, device)
