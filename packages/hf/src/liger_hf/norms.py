"""Norms: how upstream's modules meet the ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from liger.declare import Probe
from liger.numerics import acc
from liger.swap import forward, original_class, present
from liger_hf.standin import ROWS, differs, readable

NARROW = (torch.float16, torch.bfloat16)
ABSENT = object()
AUTOCAST_TO_FP32 = ("cuda", "xpu")
"""Where autocast runs ``F.layer_norm`` and ``F.group_norm`` in float32 and returns that; on a CPU it does not."""


@forward
def rms_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, cast: str, eps: str, offset: float) -> Tensor:
    """(..., H) -> (..., H)."""
    return op(x, getattr(module, "weight", None), eps=getattr(module, eps), cast=cast, offset=offset)


@forward
def weightless_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str, rounded: bool) -> Tensor:
    """(..., H) -> (..., H)."""
    if rounded and x.dtype in NARROW:
        cls: Any = original_class(module)
        return cls.forward(module, x)  # type: ignore[no-any-return]
    return op(x, None, eps=getattr(module, eps), cast="llama")


@forward
def t5_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str) -> Tensor:
    """(..., H) -> (..., H) in the weight's dtype if that is a 16-bit one, and not rounded at all if it is not."""
    wide = module.weight.dtype not in NARROW
    if not wide and x.dtype != module.weight.dtype:  # the op returns the dtype of x or a wider one
        cls: Any = original_class(module)
        return cls.forward(module, x)  # type: ignore[no-any-return]
    return op(acc(x) if wide else x, module.weight, eps=getattr(module, eps), cast="llama")


@forward
def layer_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str | float, fp32: bool = False) -> Tensor:
    """(..., H) -> (..., H)."""
    dtype = x.dtype
    autocast = isinstance(module, nn.LayerNorm) and _autocast_to_fp32(x.device.type)
    if fp32 or autocast:
        x = acc(x)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    y = op(x, weight, bias, eps=getattr(module, eps) if isinstance(eps, str) else eps)
    return y.to(dtype) if fp32 else y


@forward
def layer_norm_1p(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str) -> Tensor:
    """(..., H) -> (..., H), in the dtype of autocast where upstream asks for it: on CUDA."""
    tensors = [x, module.weight + 1, module.bias]
    if torch.is_autocast_enabled("cuda"):
        tensors = [t.to(torch.get_autocast_dtype(x.device.type)) for t in tensors]
    return op(*tensors, eps=getattr(module, eps))


def _autocast_to_fp32(device: str) -> bool:
    return device in AUTOCAST_TO_FP32 and torch.is_autocast_enabled(device)


@forward
def cohere_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str) -> Tensor:
    """(..., H) or (..., N, H), the same."""
    return op(x, module.weight, eps=getattr(module, eps))


@forward
def l2norm(op: Callable[..., Tensor], module: Any, x: Tensor, /, *, eps: str, cast: str) -> Tensor:
    """(..., H) -> (..., H)."""
    return op(x, eps=getattr(module, eps), cast=cast)


@forward
def group_norm(op: Callable[..., Tensor], module: Any, x: Tensor, /) -> Tensor:
    """(N, C, ...) -> (N, C, ...), contiguous whatever the strides of x, as torch's on CUDA."""
    if x.numel() == module.num_groups:  # one value for each group, of which torch's forward raises an error
        return nn.GroupNorm.forward(module, x)
    if _autocast_to_fp32(x.device.type):
        x = acc(x)
    return op(x, module.weight, module.bias, num_groups=module.num_groups, eps=module.eps)


@forward
def gated_rms_norm(
    op: Callable[..., Tensor],
    module: Any,
    x: Tensor,
    gate: Tensor | None = None,
    /,
    *,
    eps: str,
    groups: str | None,
    group_size: str | None,
    **options: Any,
) -> Tensor:
    """(..., H), (..., H) -> (..., H); without a gate upstream's own forward."""
    if gate is None:
        cls: Any = original_class(module)
        return cls.forward(module, x)  # type: ignore[no-any-return]
    count = 1 if groups is None else getattr(module, groups)
    if group_size is not None:
        count = x.shape[-1] // getattr(module, group_size)
    return op(x, gate, module.weight, eps=getattr(module, eps), groups=count, **options)


def match_rms_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether epsilon and weight are where the fit says, and the class computes the op."""
    return _attributes(module, options) or differs(
        module, options, op="rms_norm", adapter=rms_norm, inputs=[(ROWS, 2, *_shape(module))]
    )


def match_weightless_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same; there must be no parameter."""
    if module._parameters:
        return f"it has the parameters {', '.join(module._parameters)}, expected none"
    return _attributes(module, options) or differs(
        module, options, op="rms_norm", adapter=weightless_norm, inputs=[(ROWS, 2, *_shape(module))]
    )


def match_t5_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same; there must be a weight."""
    if not isinstance(getattr(module, "weight", None), Tensor):
        return "it has no weight"
    return _attributes(module, options) or differs(
        module, options, op="rms_norm", adapter=t5_norm, inputs=[(ROWS, 2, *_shape(module))]
    )


def match_layer_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same, with a bias; over more than one dimension it is another op."""
    if len(getattr(module, "normalized_shape", (0,))) != 1:
        return f"it normalises over {tuple(module.normalized_shape)}, expected one dimension"  # type: ignore[arg-type]
    return _attributes(module, options) or differs(
        module,
        options,
        op="layer_norm",
        adapter=layer_norm,
        inputs=[(ROWS, 2, *_shape(module))],
        mixed=False,  # torch's function for mixed dtypes has other bits on a CPU
    )


def match_layer_norm_1p(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same; weight and bias must be there."""
    if getattr(module, "weight", None) is None or getattr(module, "bias", None) is None:
        return "it has no weight or no bias"
    return _attributes(module, options) or differs(
        module, options, op="layer_norm", adapter=layer_norm_1p, inputs=[(ROWS, 2, *_shape(module))], mixed=False
    )


def match_cohere_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same; the weight may have two dimensions, one row for each head."""
    if not isinstance(getattr(module, "weight", None), Tensor):
        return "it has no weight"
    return _attributes(module, options, dimensions=(1, 2)) or differs(
        module, options, op="cohere_norm", adapter=cohere_norm, inputs=[(ROWS, 2, *_shape(module))]
    )


def match_l2norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same; there must be no weight."""
    if module._parameters:
        return f"it has the parameters {', '.join(module._parameters)}, expected none"
    return _attributes(module, options) or differs(
        module, options, op="l2norm", adapter=l2norm, inputs=[(ROWS, 2, *_shape(module))]
    )


def match_group_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """Whether its forward is torch's, weight and bias can be read, and torch's is the op."""
    cls: Any = original_class(module)
    if cls.forward is not nn.GroupNorm.forward:
        return "its forward is not that of torch.nn.GroupNorm"
    return _attributes(module, {"eps": "eps"}) or differs(
        module,
        options,
        op="group_norm",
        adapter=group_norm,
        inputs=[(ROWS, module.num_channels, 2, 3)],  # type: ignore[list-item]
        positions=False,
        narrow=False,  # torch adds 16-bit elements in another order on a CPU
    )


def match_gated_rms_norm(module: nn.Module, options: Mapping[str, Any]) -> str | None:
    """The same, with a gate."""
    if not isinstance(getattr(module, "weight", None), Tensor):
        return "it has no weight"
    counts = [name for name in (options["groups"], options["group_size"]) if name is not None]
    for name in counts:
        if not isinstance(getattr(module, name, None), int):
            return f"it has no integer attribute {name!r}"
    return _attributes(module, options) or differs(
        module, options, op="gated_rms_norm", adapter=gated_rms_norm, inputs=[(ROWS, 2, *_shape(module))] * 2
    )


def _attributes(module: nn.Module, options: Mapping[str, Any], dimensions: tuple[int, ...] = (1,)) -> str | None:
    """Whether there is an epsilon, and weight and bias, where there are any, can be read directly."""
    eps = options["eps"]
    if isinstance(eps, str) and not isinstance(found := getattr(module, eps, ABSENT), float):
        return f"it has no float attribute {eps!r}" + ("" if found is ABSENT else f", it is {found!r}")
    for name in ("weight", "bias"):
        value = getattr(module, name, None)
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dim() not in dimensions:
            return f"its {name} has shape {tuple(getattr(value, 'shape', ()))}, expected one dimension"
        if reason := readable(value, name):
            return reason
    return None


def _shape(module: nn.Module) -> tuple[int, ...]:
    """Trailing dimensions of the input that a norm asks for; any width does where it says nothing."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        return tuple(present(weight).shape)
    return tuple(getattr(module, "normalized_shape", (32,)))


def probe_norm(module: Any, generator: torch.Generator, inputs: int = 1) -> Probe:
    """Hidden states (2, 5, H) or (2, 5, N, H), in the dtype and on the device of the weight if there is one."""
    weight = getattr(module, "weight", None)
    like = torch.empty(0) if weight is None else weight
    tensors = [torch.randn(2, 5, *_shape(module), generator=generator).to(like) for _ in range(inputs)]
    return Probe(lambda m, *x: m.forward(*x), tuple(x.requires_grad_() for x in tensors))


def probe_group_norm(module: Any, generator: torch.Generator) -> Probe:
    """Channels and positions (2, C, 5), in the dtype and on the device of the weight if there is one."""
    like = torch.empty(0) if module.weight is None else module.weight
    x = torch.randn(2, module.num_channels, 5, generator=generator).to(like)
    return Probe(lambda m, x: m.forward(x), (x.requires_grad_(),))


def probe_gated_norm(module: Any, generator: torch.Generator) -> Probe:
    """The same with a gate."""
    return probe_norm(module, generator, inputs=2)
