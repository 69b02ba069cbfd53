"""``liger_kernel.utils``: what is there. ``liger_kernel.ops.utils``: what kernels of others use."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch


def infer_device() -> str:
    """The kind of accelerator, as "cuda", or "cpu"."""
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None else found.type


def is_npu_available() -> bool:
    """Whether the accelerator is an NPU."""
    return infer_device() == "npu"


def is_peft_available() -> bool:
    """Whether peft is installed."""
    return find_spec("peft") is not None


def is_transformers_available() -> bool:
    """Whether transformers is installed, on which this package depends."""
    return find_spec("transformers") is not None


def is_hip() -> bool:
    """Whether torch was built for ROCm."""
    return torch.version.hip is not None


def infer_comm_backend() -> str:
    """The backend that torch.distributed would choose for this device: "nccl", "gloo", ..."""
    return str(torch.distributed.get_default_backend_for_device(infer_device()))


def get_total_gpu_memory() -> int:
    """Memory of the first GPU in whole GiB.

    Raises:
        RuntimeError: there is none.
    """
    if (device := infer_device()) == "cpu":
        raise RuntimeError("get_total_gpu_memory: expected an accelerator, there is only a CPU")
    return int(torch.get_device_module(device).get_device_properties(0).total_memory) >> 30


def transformers_version_dispatch(
    required_version: str,
    before_fn: Callable[..., Any],
    after_fn: Callable[..., Any],
    before_args: Sequence[Any] = (),
    after_args: Sequence[Any] = (),
    before_kwargs: Mapping[str, Any] | None = None,
    after_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What ``after_fn`` returns where transformers has that version or a newer one, else what ``before_fn`` does."""
    import transformers
    from packaging.version import Version

    if Version(transformers.__version__) < Version(required_version):
        return before_fn(*before_args, **(before_kwargs or {}))
    return after_fn(*after_args, **(after_kwargs or {}))


# -- For kernels of others ---------------------------------------------------------------------------------------------
MOST_COLUMNS = 65536


def calculate_settings(n: int) -> tuple[int, int]:
    """A block size that holds a row of ``n``, the next power of 2, and warps for it; Liger's own kernels choose others.

    Raises:
        RuntimeError: the row is longer than ``MOST_COLUMNS``.
    """
    block = 1 << max(n - 1, 0).bit_length()
    if block > MOST_COLUMNS:
        raise RuntimeError(f"calculate_settings: n is {n}, expected at most {MOST_COLUMNS}, to be in one block")
    warps = {32768: 16 if is_hip() else 32, 8192: 16, 2048: 8}
    return block, next((count for least, count in warps.items() if block >= least), 4)


def ensure_contiguous(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose tensor arguments are made contiguous first; ``ctx`` comes before them."""

    def contiguous(value: Any) -> Any:
        return value.contiguous() if isinstance(value, torch.Tensor) else value

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(ctx, *map(contiguous, args), **{name: contiguous(value) for name, value in kwargs.items()})

    return wrapper


def compare_version(package: str, operator: Callable[[Any, Any], bool], target: str) -> bool:
    """``operator`` of the version of a package that can be imported and ``target``; False where it cannot."""
    from packaging.version import Version

    try:
        found = importlib.import_module(package).__version__
    except ImportError:
        return False
    return operator(Version(found), Version(target))
