"""Compile every launch of every Triton kernel, at the sizes of real models, for GPUs that are not here.

    python tools/compile_gate.py [--kernels rms_norm/triton ...] [--targets sm90 ...] [--json FILE]

The public ops run forward and backward on meta tensors under a driver that launches nothing, so what is compiled is
what would be launched: the same constants, the same number of warps. Fails on spilled registers and on shared memory
beyond what the target has. Needs triton, no GPU, and TRITON_INTERPRET unset.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as at a launch; triton 3.10 changes the default

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from liger.declare import Kernel
from liger.registry import registry
from liger.testing.cases import Case, option_values

TARGETS = {
    "sm80": GPUTarget("cuda", 80, 32),
    "sm90": GPUTarget("cuda", 90, 32),
    "sm100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMIT = {"sm80": 166_912, "sm90": 232_448, "sm100": 232_448, "gfx942": 65_536}  # bytes of one program


@dataclass(frozen=True, slots=True)
class Launch:
    """One compiled launch and what it uses."""

    kernel: str
    target: str
    constants: str
    registers: int
    spilled: int  # bytes, loads and stores
    stack: int
    shared: int
    seconds: float

    def faults(self) -> list[str]:
        """Why it must not be used, if anything."""
        out = []
        if self.registers == 0:
            out.append("registers were not measured")
        if self.spilled or self.stack:
            out.append(f"spills {self.spilled} bytes, stack frame {self.stack}")
        if self.shared > SHARED_LIMIT[self.target]:
            out.append(f"shared memory {self.shared} exceeds {SHARED_LIMIT[self.target]}")
        return out


class _NoGpu:
    """Just enough of a driver for ``JITFunction.run(warmup=True)``."""

    utils = SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 1 << 30, "multiprocessor_count": 132})

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return f"dry:{self.target.arch}"

    def get_current_stream(self, device: object = None) -> int:
        return 0


class _OnMeta(TorchFunctionMode):
    """Inputs functions make tensors from a CPU generator; on meta there is nothing to generate."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **{k: v for k, v in (kwargs or {}).items() if k != "generator"})


def measure(name: str, target: str, constants: str, build: Callable[[], Any]) -> tuple[Any, Launch]:
    """Compile by ``build`` and read what the assembler says about it."""
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # the cache would print no log
    log, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(log):
        compiled = build()
    seconds = time.perf_counter() - start

    def total(pattern: str, text: str) -> int:
        return sum(int(n) for n in re.findall(pattern, text))

    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        registers = total(r"\.vgpr_count:\s+(\d+)", text)
        spilled = 4 * total(r"\.vgpr_spill_count:\s+(\d+)", text)  # scalar ones go to vector registers, not to memory
        stack = total(r"\.private_segment_fixed_size:\s+(\d+)", text)
    else:
        text = log.getvalue()
        registers, spilled = total(r"Used (\d+) registers", text), total(r"(\d+) bytes spill", text)
        stack = total(r"(\d+) bytes stack frame", text)
    return compiled, Launch(name, target, constants, registers, spilled, stack, compiled.metadata.shared, seconds)


@contextlib.contextmanager
def dry_launches(target: str) -> Iterator[dict[tuple[str, str], Launch]]:
    """Inside the block launches compile for ``target`` instead of running; yields what was compiled."""
    launches: dict[tuple[str, str], Launch] = {}
    run, active = JITFunction.run, driver._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        constants = ", ".join(f"{k}={v}" for k, v in kwargs.items() if k not in ("debug", "num_stages"))
        dtypes = " ".join(
            str(a.dtype).removeprefix("torch.") if a is not None else "-"
            for a in args
            if hasattr(a, "dtype") or a is None
        )
        key = (self.__name__, f"{constants} [{dtypes}]")
        if key in launches:
            return None
        compiled, launches[key] = measure(
            *key[:1], target, key[1], lambda: run(self, *args, grid=grid, warmup=True, **kwargs)
        )
        return compiled

    driver.set_active(_NoGpu(TARGETS[target]))
    JITFunction.run = compile_only
    try:
        yield launches
    finally:
        JITFunction.run, driver._active = run, active


def cases(kernel: Kernel) -> Iterator[Case]:
    """bf16 at every production size; the first one also in fp32 and with each option."""
    op = registry().op(kernel.op)
    for sizes in op.production:
        yield Case(kernel=kernel, dtype="bfloat16", sizes=sizes)
    for sizes in op.production[:1]:
        yield Case(kernel=kernel, dtype="float32", sizes=sizes)
        for name, value in option_values(kernel):
            if not op.options[name].waits:  # there is nothing to wait for on meta
                yield Case(kernel=kernel, dtype="bfloat16", sizes=sizes, options={name: value})
        for name in op.mixed:
            yield Case(kernel=kernel, dtype="bfloat16", sizes=sizes, mixed=name)
        for variant in op.variants:
            yield Case(kernel=kernel, dtype="bfloat16", sizes=sizes, variant=variant)


def step(case: Case) -> None:
    """Forward and backward on meta tensors."""
    with torch.device("meta"), _OnMeta():
        tensors, options = case.make("meta")
    made = case.public()(*tensors, **options)
    outputs = [made] if isinstance(made, torch.Tensor) else [o for o in made if o is not None]
    roots = [o for o in outputs if o.requires_grad]
    torch.autograd.backward(roots, [torch.empty_like(o) for o in roots])


def gate(kernel: Kernel, target: str) -> list[Launch]:
    """Compile all launches of a kernel for a target.

    Raises:
        SystemExit: nothing was launched, so the gate would pass for no reason.
    """
    with dry_launches(target) as launches:
        for case in cases(kernel):
            step(case)
    if not launches:
        raise SystemExit(f"{kernel.id} launched nothing: does its op declare production sizes?")
    return list(launches.values())


def show(kernel: Kernel, target: str, launches: Sequence[Launch], everything: bool) -> None:
    """Print the launches with faults, or all, and a line for the kernel."""
    bad = [launch for launch in launches if launch.faults()]
    for launch in launches if everything else bad:
        faults = "; ".join(launch.faults()) or "ok"
        print(f"  {launch.kernel} {launch.constants}: {launch.registers} registers; {faults}")
    used = f"registers <= {max(x.registers for x in launches)}, shared <= {max(x.shared for x in launches)}"
    seconds = sum(x.seconds for x in launches)
    print(f"{kernel.id:28} {target:7} {len(launches):3} launches, {used}, {seconds:.0f} s, {len(bad)} bad", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per launch that fails and a summary per kernel; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", nargs="*", help="ids, all Triton kernels by default")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--json", help="write every launch to this file")
    parser.add_argument("--verbose", action="store_true", help="print every launch")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("unset TRITON_INTERPRET: the interpreter compiles nothing")
    known = [k for op in registry().ops for k in registry().kernels(op) if k.needs.interpreter]
    if unknown := set(options.kernels or ()) - {k.id for k in known}:
        parser.error(f"no kernel {', '.join(sorted(unknown))}; Triton kernels: {', '.join(k.id for k in known)}")
    chosen = [k for k in known if not options.kernels or k.id in options.kernels]
    launches: list[Launch] = []
    for kernel in chosen:
        for target in options.targets:
            made = gate(kernel, target)
            launches += made
            show(kernel, target, made, options.verbose)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(launch) for launch in launches], file, indent=1)
    return 1 if not launches or any(launch.faults() for launch in launches) else 0


if __name__ == "__main__":
    sys.exit(main())
