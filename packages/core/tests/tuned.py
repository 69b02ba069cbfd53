"""A plugin with one op, y = 2 x, and a Triton kernel whose launch settings can be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

import liger
from liger import Kernel, Needs, Op, Profile, Sweep
from liger.launch import GPU, ceil_div, gpu, launch
from liger.settings import settings

FAULTY = 256  # with a block as large as this the kernel is wrong; it does not compile with 32 warps


@settings(BLOCK=(32, 64, 128, 256), num_warps=(1, 2, 4, 32))
def forward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """A warp for 32 elements."""
    return {"BLOCK": 32, "num_warps": 2}


@settings(num_warps=(1, 2, 4))
def backward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]:
    """As the forward; the blocks are fixed."""
    return {"BLOCK": 64, "num_warps": 2}


@triton.jit(do_not_specialize=["N"])
def _double(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * (2.0 if BLOCK < 256 else 3.0), mask=at < N)


def _launch(x: torch.Tensor, chosen: dict[str, Any]) -> torch.Tensor:
    if chosen["num_warps"] == 32:
        raise RuntimeError("out of resource: threads")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(_double, (ceil_div(x.numel(), chosen["BLOCK"]),), (x.contiguous(), y), (x.numel(),), **chosen)
    return y


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _launch(x, forward_settings(x.shape[-1], x.element_size(), gpu(x.device)))

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        return _launch(dy, backward_settings(dy.shape[-1], dy.element_size(), gpu(dy.device)))


def doubled_triton(x: torch.Tensor) -> torch.Tensor:
    return _Double.apply(x)


def doubled_reference(x: torch.Tensor) -> torch.Tensor:
    """The definition."""
    return x * 2


def doubled(x: torch.Tensor, *, kernel: str | None = None) -> torch.Tensor:
    from liger.dispatch import run

    return run("doubled", (x,), {}, sizes={"H": x.shape[-1]}, kernel=kernel)


def doubled_inputs(device: str, dtype: Any, *, R: int, H: int, generator: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    return (torch.randn(R, H, generator=generator).to(device, dtype),), {}


def doubled_bytes(tensors: Sequence[Any], options: dict[str, Any]) -> dict[str, int]:
    return dict.fromkeys(("forward", "backward"), 2 * tensors[0].nbytes)


DOUBLED = Op(
    name="doubled",
    public="tuned:doubled",
    reference="tuned:doubled_reference",
    inputs="tuned:doubled_inputs",
    sizes={"R": (2, 3), "H": (8, 33)},
    production=({"R": 64, "H": 64},),
    sweeps=(Sweep(variable="H", values=(40, 48), fixed={"R": 4}),),
)
TRITON = Kernel(
    op="doubled",
    name="triton",
    fn="tuned:doubled_triton",
    rank=10,
    needs=Needs(devices=("cuda",), dtypes=("float32", "bfloat16"), interpreter=True),
    bytes="tuned:doubled_bytes",
    profile=Profile(tier="elementwise", gradients={"x": "2 dy"}),
    measured=("sm90", "sm80"),
)


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    return [DOUBLED, TRITON]
