"""Compile launches instead of running them, for GPUs that are not here: what `tools/compile_gate.py` stands on."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from compile_limits import TARGETS, Launch, Target
from liger.launch import ASSUMED, assume

NVIDIA = {  # in the log of ptxas
    "registers": r"Used (\d+) registers",
    "spilled": r"(\d+) bytes spill",
    "stack": r"(\d+) bytes stack frame",
}
AMD = {  # in the assembly; scalar registers are spilled to vector registers, not to memory
    "registers": r"\.vgpr_count:\s+(\d+)",
    "spilled": r"\.vgpr_spill_count:\s+(\d+)",
    "stack": r"\.private_segment_fixed_size:\s+(\d+)",
}
_devices = itertools.count()


class _NoGpu:
    """Just enough of a driver for ``JITFunction.run(warmup=True)``."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 1 << 30, "multiprocessor_count": 132})

    def __init__(self, target: Target) -> None:
        self.target = GPUTarget(target.backend, target.arch, target.warp_size)
        self.device = f"dry:{next(_devices)}"  # triton keeps what it compiled by device: start with nothing

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return self.device

    def get_current_stream(self, device: object = None) -> int:
        return 0


def measure(compiled: Any, log: str) -> dict[str, int | None]:
    """What a compiled kernel uses, from the assembler's ``log`` or the assembly; None for what neither says."""
    patterns, text = (AMD, compiled.asm["amdgcn"]) if "amdgcn" in compiled.asm else (NVIDIA, log)
    numbers = {name: [int(n) for n in re.findall(pattern, text)] for name, pattern in patterns.items()}
    factor = {"spilled": 4} if patterns is AMD else {}  # AMD counts registers of 4 bytes
    used = {name: sum(found) * factor.get(name, 1) if found else None for name, found in numbers.items()}
    return {**used, "shared": getattr(compiled.metadata, "shared", None)}


def describe(args: Sequence[Any], constants: Mapping[str, Any]) -> str:
    """Constants and the tensors' dtypes: ``H=4096, num_warps=8 [bfloat16 - float32]``."""
    dtypes = [str(getattr(a, "dtype", "-")).removeprefix("torch.") for a in args if hasattr(a, "dtype") or a is None]
    return f"{', '.join(f'{k}={v}' for k, v in constants.items() if k != 'debug')} [{' '.join(dtypes)}]"


class Recorder:
    """Compiles instead of launching, and measures what triton had not compiled yet."""

    def __init__(self, target: str, run: Callable[..., Any]) -> None:
        self.target, self.run = target, run
        self.kernel = self.case = ""  # the launches to come belong to these
        self.launches: dict[int, Launch] = {}
        self.kept: list[Any] = []  # so that no two compiled kernels have the same id

    def compile(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stands in for ``function.run(*args, **kwargs)``."""
        _refuse_specialised_numbers(function, args)
        log, start = io.StringIO(), time.perf_counter()
        with contextlib.redirect_stdout(log):
            compiled = self.run(function, *args, **{**kwargs, "warmup": True})
        if id(compiled) not in self.launches:
            constants = {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}
            self.kept.append(compiled)
            self.launches[id(compiled)] = Launch(
                kernel=self.kernel,
                function=function.__name__,
                target=self.target,
                constants=describe(args, constants),
                case=self.case,
                **measure(compiled, log.getvalue()),
                threads=compiled.metadata.num_warps * TARGETS[self.target].warp_size,
                seconds=time.perf_counter() - start,
            )
        return compiled


def _refuse_specialised_numbers(function: Any, args: Sequence[Any]) -> None:
    """``liger.launch`` keeps a compiled kernel for any value of a number, so none may be compiled in."""
    for parameter, value in zip(function.params, args, strict=False):
        if type(value) in (int, float) and not (parameter.is_constexpr or parameter.do_not_specialize):
            raise TypeError(
                f"{function.__name__}: name {parameter.name!r} in do_not_specialize, or make it a constexpr"
            )


@contextlib.contextmanager
def dry_launches(target: str) -> Iterator[Recorder]:
    """Inside the block launches compile for ``target`` instead of running; yields the record of them."""
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # the cache would print no log
    run, active, hip = JITFunction.run, driver._active, torch.version.hip
    recorder = Recorder(target, run)
    driver.set_active(_NoGpu(TARGETS[target]))
    JITFunction.run = lambda function, *args, **kwargs: recorder.compile(function, args, kwargs)
    torch.version.hip = "dry" if TARGETS[target].backend == "hip" else None  # launch functions ask it
    try:
        with assume(ASSUMED._replace(name=target, shared=TARGETS[target].shared)):
            yield recorder
    finally:
        JITFunction.run, driver._active, torch.version.hip = run, active, hip
