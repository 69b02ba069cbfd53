"""A plugin with one op, ``copy``, a kernel for each fault that the compile gate must find, and a right one."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl

import liger
from liger import Kernel, Needs, Op, Profile

SIZES = {"R": 4, "H": 32768}


@triton.jit
def _copy(x_ptr, y_ptr, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at).to(tl.float32)
    if FAULT == "spills":
        x = x - tl.sum(x, axis=0)  # all of the row is alive here
    if FAULT == "shared":
        wide = tl.reshape(tl.join(x, x), (64, 1024))  # 256 KB
        x = tl.reshape(tl.dot(wide, tl.trans(wide)), (64 * 64,))
        at = tl.arange(0, 64 * 64)
    tl.store(y_ptr + at, x)


def copy(x, *, kernel=None):
    """The public function."""
    from liger.dispatch import run

    return run("copy", (x,), {}, sizes={"H": x.shape[-1]}, kernel=kernel)


def bare(x, *, kernel=None):
    """An op without production sizes."""
    return x


def inputs(device, dtype, *, R, H, generator):
    """x (R, H), without gradient."""
    x = torch.empty(R, H, dtype=torch.int32, device=device)
    return (x,), {}


def _launching(fault, warps=16):
    def call(x):
        if fault == "raises":
            raise ValueError("no such luck")
        if fault == "dies":
            os._exit(7)
        if fault != "launches_nothing":
            _copy[(1,)](x, torch.empty_like(x), BLOCK=x.shape[1], FAULT=fault, num_warps=warps)
        return x

    return call


right, misdeclared = _launching("none", 32), _launching("none", 32)
shared = _launching("shared")
spills = _launching("spills", 4)
raises, dies, launches_nothing = _launching("raises"), _launching("dies"), _launching("launches_nothing")


def _kernel(name, rank, op="copy", grid=None):
    profile = Profile(tier="elementwise", grid=grid) if grid else None
    needs = Needs(devices=("cuda",), interpreter=True)
    return Kernel(op=op, name=name, fn=f"planted_launches:{name}", rank=rank, needs=needs, profile=profile)


@liger.hookimpl
def liger_register_ops():
    """The ops and all kernels."""
    names = ("right", "spills", "shared", "raises", "dies", "launches_nothing")
    sizes = {name: (size,) for name, size in SIZES.items()}
    common = {"reference": "planted_launches:copy", "inputs": "planted_launches:inputs", "sizes": sizes}
    return [
        Op(name="copy", public="planted_launches:copy", production=(SIZES,), **common),
        Op(name="bare", public="planted_launches:bare", **common),
        *(_kernel(name, rank) for rank, name in enumerate(names, start=1)),
        _kernel("misdeclared", 20, grid={"_other": "a row each"}),
        _kernel("right", 21, op="bare"),
    ]
