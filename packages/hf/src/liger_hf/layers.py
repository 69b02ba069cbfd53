"""Norms and MLPs: how upstream's modules meet the ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import Probe, load
from liger.registry import registry
from liger.swap import forward, original_class


@forward
def rms_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, cast: str, eps: str, offset: float) -> Tensor:
    """(..., H) -> (..., H)."""
    return op(x, module.weight, eps=getattr(module, eps), cast=cast, offset=offset)


@forward
def gated_mlp(op: Callable[..., Tensor], module: Any, x: Tensor, /, **options: Any) -> Tensor:
    """(..., H) -> (..., H)."""
    return module.down_proj(op(module.gate_proj(x), module.up_proj(x), **options))  # type: ignore[no-any-return]


def match_rms_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether weight and epsilon are where the fit says, and the weight can be read directly."""
    if not isinstance(getattr(module, options["eps"], None), float):
        return f"it has no float attribute {options['eps']!r}"
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return "it has no one-dimensional weight"
    return readable(weight, "weight") or _computes_rms(original_class(module), *sorted(options.items()))


@functools.cache
def _computes_rms(cls: Any, *options: tuple[str, Any]) -> str | None:
    """Run upstream's forward on a small stand-in and compare with the op's reference, bit by bit."""
    constants = dict(options)
    reference, eps = load(registry().op("rms_norm").reference), constants.pop("eps")
    generator = torch.Generator().manual_seed(0)
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    for dtype in (torch.float32, torch.bfloat16):
        module.weight = nn.Parameter(torch.randn(32, generator=generator).to(dtype), requires_grad=False)
        setattr(module, eps, 0.01)
        x = torch.randn(16, 32, generator=generator).to(dtype)
        try:
            found = cls.forward(module, x)
        except Exception as error:
            return f"a probe of its forward failed with {type(error).__name__}: {error}"
        if not torch.equal(found, reference(x, module.weight, eps=0.01, **constants)):
            return (
                f"its forward does not compute rms_norm with cast={constants['cast']!r}, offset={constants['offset']}"
            )
    return None


def readable(weight: Tensor, name: str) -> str | None:
    """Why an op must not read ``weight`` directly: quantised and other tensor subclasses mean something else."""
    kind = type(weight)
    if kind not in (nn.Parameter, Tensor) and kind.__name__ != "DTensor":
        return f"{name} is a {kind.__module__}.{kind.__qualname__}, not a plain parameter"
    if not weight.dtype.is_floating_point:
        return f"{name} has dtype {weight.dtype}, not a floating one"
    return None


def match_gated_mlp(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether the submodules are there and ``act_fn`` computes what the fit says, compared bit by bit."""
    missing = [n for n in ("gate_proj", "up_proj", "down_proj", "act_fn") if not hasattr(module, n)]
    if missing:
        return f"it has no {', '.join(missing)}"
    act: Any = module.act_fn
    if isinstance(act, nn.Module):
        if any(True for _ in act.parameters()):
            return f"its activation {type(act).__name__} has parameters"
        if act._forward_hooks or act._forward_pre_hooks or act._backward_hooks:
            return f"hooks on its activation {type(act).__name__} would no longer be called"
    approximate = options.get("approximate")
    if not _computes(act, approximate):
        want = "silu" if approximate is None else f"gelu (approximate={approximate!r})"
        return f"its activation {getattr(act, '__name__', type(act).__name__)} does not compute {want}"
    return None


def _computes(act: Callable[[Tensor], Tensor], approximate: str | None) -> bool:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.linspace(-12, 12, 2001, dtype=dtype)
        expected = nn.functional.silu(x) if approximate is None else nn.functional.gelu(x, approximate=approximate)
        with torch.no_grad():
            found = act(x)
        if not torch.equal(found, expected):
            return False
    return True


def probe_hidden(module: Any, generator: torch.Generator) -> Probe:
    """Hidden states (2, 5, H) for a norm or an MLP, in the dtype and on the device of its first parameter."""
    weight = next(module.parameters())
    width = module.gate_proj.in_features if hasattr(module, "gate_proj") else weight.shape[-1]
    x = torch.randn(2, 5, width, generator=generator)
    return Probe(lambda m, x: m.forward(x), (x.to(weight.device, weight.dtype).requires_grad_(),))
