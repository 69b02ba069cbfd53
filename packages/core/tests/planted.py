"""A plugin with the op ``scaled``, y = factor * x * w, and a right kernel; and an equal op for each planted fault."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

import liger
from liger import Kernel, Needs, Op, Option, Profile

# fault -> the check that has to find it (the start of its name)
FAULTS = {
    "wrong_forward": "contract-float32",
    "gradient_1_percent": "contract-bfloat16",
    "one_element": "contract-float32",
    "truncated": "contract-bfloat16",
    "float32_output": "contract-bfloat16",
    "nan_output": "contract-float32",
    "follows_autocast": "autocast",
    "drops_nan": "not_finite",
    "spreads_nan": "not_finite",
    "assumes_contiguous": "contract-float32-R3-H33-strided_rows",
    "uninitialised": "contract-float32",
    "past_the_end": "contract-float32",
    "before_the_start": "contract-float32",
    "writes_input": "contract-float32",
    "writes_between_rows": "contract-float32-R3-H33-strided_rows",
    "writes_grad_output": "caller_memory_untouched",
    "returns_view": "caller_memory_untouched",
    "ignores_option": "options_matter",
    "ignores_needs_input_grad": "needs_input_grad",
    "two_nodes": "one_node",
    "assumes_dense_gradient": "gradient_layouts",
    "overwrites_saved": "second_backward",
    "hands_out_saved": "second_backward",
    "ignores_sign_of_dy": "linear_in_dy",
    "random_bits": "deterministic",
    "synchronises": "no_host_sync",
    "limit_too_high": "size_limits",
    "graph_break": "compile",
    "width_of_four_plus_two": "any_shape",
    "transposed_gradient": "contract-float32",
    "leaks": "memory_leak",
    "saves_more": "profile",
    "waits_in_a_case": "contract-float32-R5",
    "no_second_derivative": "second_derivative",
    "other_name": "signature",
    "wrong_beyond_row_200": "big",
    "gradient_beyond_row_200": "big",
}
LEAKED: list[Any] = []


def scaled_reference(x: Any, w: Any, *, factor: float = 1.0) -> Any:
    """The definition."""
    return x * w * factor


def _public(op: str) -> Callable[..., Any]:
    def public(x: Any, w: Any, *, factor: float = 1.0, kernel: str | None = None) -> Any:
        from liger.dispatch import run

        return run(op, (x, w), {"factor": factor}, sizes={"H": x.shape[-1]}, kernel=kernel)

    return public


scaled = _public("scaled")


def scaled_inputs(device: str, dtype: Any, *, R: int, H: int, generator: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """x (R, H), w (H,)."""
    x, w = torch.randn(R, H, generator=generator), torch.randn(H, generator=generator)
    return (x.to(device, dtype), w.to(device, dtype)), {}


def scaled_bytes(tensors: Sequence[Any], options: dict[str, Any]) -> dict[str, int]:
    """Read x and w, write y; read all three, write two gradients."""
    x, w = tensors
    return {"forward": 2 * x.nbytes + w.nbytes, "backward": 3 * x.nbytes + 2 * w.nbytes}


def _poke(t: Any, offset: int) -> None:
    """Write one byte ``offset`` bytes from the start of ``t``'s memory, as a kernel with a wrong mask would."""
    (ctypes.c_uint8 * 1).from_address(t.data_ptr() + offset)[0] = 7


def _stored(wide: Any, dtype: Any, fault: str) -> Any:
    """In memory of its own. The right one is not copied into it: compiled with torch 2.11, that has no gradients."""
    if fault == "right":
        return wide.to(dtype)
    y = torch.empty(wide.shape, dtype=dtype, device=wide.device)
    return y if fault == "uninitialised" else y.copy_(wide)


def _forward(ctx: Any, x: Any, w: Any, factor: float, fault: str) -> Any:
    if fault == "graph_break":
        torch._dynamo.graph_break()
    wrong = fault == "float32_output" or (fault == "follows_autocast" and torch.is_autocast_enabled(x.device.type))
    dtype = torch.float32 if wrong else x.dtype
    wide = (x.float() * w.float() * (1.0 if fault == "ignores_option" else factor)).double()
    if fault == "wrong_forward":
        wide = wide * 1.001
    if fault == "drops_nan":
        wide = wide.nan_to_num(0.0)
    if fault == "limit_too_high" and x.shape[1] > 290:
        wide[:, 290:] = 0
    if fault == "one_element" and wide.numel():
        wide[-1, -1] += 0.1 * wide.abs().max()
    if fault == "truncated" and x.dtype == torch.bfloat16:
        wide = (wide.float().view(torch.int32) & -65536).view(torch.float32)
    if fault == "random_bits":
        wide = wide + 1e-3 * torch.rand_like(wide) * wide
    if fault == "assumes_contiguous":
        wide = x.as_strided(x.shape, (x.shape[1], 1)).float() * w.float() * factor
    y = _stored(wide, dtype, fault)
    _plant_effects(x, y, fault)
    ctx.save_for_backward(x, w, *((x * w,) if fault == "saves_more" else ()))
    ctx.factor, ctx.fault = factor, fault
    return x.view(x.shape) if fault == "returns_view" else y


def _plant_effects(x: Any, y: Any, fault: str) -> None:
    if fault == "synchronises" or (fault == "waits_in_a_case" and x.shape[0] == 5):
        y.sum().item()
    if fault == "leaks":
        LEAKED.append(x + 1)
    if fault == "wrong_beyond_row_200":
        y[200:] = 0
    if fault == "width_of_four_plus_two" and x.shape[1] % 4 == 2:
        y[:, -1:] = 0
    if y.numel():
        _plant_writes(x, y, fault)


def _plant_writes(x: Any, y: Any, fault: str) -> None:
    if fault == "nan_output":
        y.view(-1)[0] = float("nan")
    if fault == "past_the_end":
        _poke(y, y.nbytes + 5)
    if fault == "before_the_start":
        _poke(y, -3)
    if fault == "writes_input":
        _poke(x, 0)
    if fault == "writes_between_rows" and not x.is_contiguous():
        _poke(x, x.shape[-1] * x.element_size())


def _plant_in_dx(dx: Any, x: Any, fault: str) -> Any:
    if fault == "spreads_nan":
        return dx + 0 * x.sum()
    if fault == "gradient_beyond_row_200":
        dx[200:] = 0
    return dx.t().contiguous().t() if fault == "transposed_gradient" and dx.numel() else dx


def _backward(ctx: Any, dy: Any) -> Any:
    fault, (x, w, *_) = ctx.fault, ctx.saved_tensors
    if fault == "no_second_derivative":
        dy = dy.detach()
        x, w = x.detach(), w.detach()
    if fault == "assumes_dense_gradient":
        dense = tuple(dy.stride()) == (dy.shape[1], 1)
        dy = dy if dense else dy * 0
    if fault == "writes_grad_output":
        dy.mul_(0.5)
        dy = dy * 2
    if fault == "ignores_sign_of_dy":
        dy = dy.abs()
    wide = dy.float() * (1.0 if fault == "ignores_option" else ctx.factor)
    everything = fault == "ignores_needs_input_grad"
    dx = (wide * w.float()).to(x.dtype) if ctx.needs_input_grad[0] or everything else None
    dw = (wide * x.float()).sum(0).to(w.dtype) if ctx.needs_input_grad[1] or everything else None
    if fault == "gradient_1_percent" and dw is not None:
        dw = dw * 1.01
    if dx is not None:
        dx = _plant_in_dx(dx, x, fault)
    if fault == "overwrites_saved":
        w.data.mul_(3.0)
        w.data.div_(2.0)
    if fault == "hands_out_saved" and dx is not None:
        ctx.made = dx = getattr(ctx, "made", dx / 2).mul_(2)
    return dx, dw, None, None


class Scaled(torch.autograd.Function):
    """Forward and backward with the fault named by the last argument."""

    forward = staticmethod(_forward)
    backward = staticmethod(_backward)


def _make(fault: str) -> Callable[..., Any]:
    def kernel(x: Any, w: Any, *, factor: float) -> Any:
        y = Scaled.apply(x, w, factor, fault)
        return y.clone() if fault == "two_nodes" else y

    def renamed(x: Any, weight: Any, *, factor: float) -> Any:
        return kernel(x, weight, factor=factor)

    return renamed if fault == "other_name" else kernel


kernels = SimpleNamespace(**{name: _make(name) for name in ("right", *FAULTS)})

SCALED = Op(
    name="scaled",
    public="planted:scaled",
    reference="planted:scaled_reference",
    options={"factor": Option(default=1.0, values=(0.5, -3.0))},
    inputs="planted:scaled_inputs",
    sizes={"R": (2, 3, 5), "H": (8, 33, 257)},
    production=({"R": 16384, "H": 64},),
)


publics = SimpleNamespace(**{fault: _public(f"scaled_{fault}") for fault in FAULTS})


def _op(fault: str) -> Op:
    return dataclasses.replace(SCALED, name=f"scaled_{fault}", public=f"planted:publics.{fault}")


def _kernel(op: str, name: str, rank: int) -> Kernel:
    return Kernel(
        op=op,
        name=name,
        fn=f"planted:kernels.{name}",
        rank=rank,
        needs=Needs(max_size={"H": 300}),
        bytes="planted:scaled_bytes",
        profile=Profile(
            tier="elementwise", saved=("x", "w"), gradients={"x": "dy * w * factor", "w": "sum of dy * x * factor"}
        ),
    )


@liger.hookimpl
def liger_register_ops() -> Sequence[Op | Kernel]:
    """The ops and their kernels; of ``scaled`` two wrong ones too, which are never chosen by rank."""
    wrong = [_kernel("scaled", name, -i) for i, name in enumerate(("wrong_forward", "one_element"), 1)]
    faulty = [d for fault in FAULTS for d in (_op(fault), _kernel(f"scaled_{fault}", fault, 10))]
    return [SCALED, _kernel("scaled", "right", 10), *wrong, *faulty]
