"""A prepared launch: what its compiled kernel depends on, and how that is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from liger.launch import Launch, prepare  # noqa: E402

Direct = tuple[Launch, list[Any], list[Any]]


def test_a_launch_is_prepared_once_and_forgotten_by_nobody() -> None:
    kernel = object()
    assert prepare(kernel, BLOCK=4) is prepare(kernel, BLOCK=4)
    assert prepare(kernel, BLOCK=4) is not prepare(kernel, BLOCK=8) is not prepare(kernel, BLOCK=8, num_warps=4)


class OnCuda:
    """What a launch asks of a tensor."""

    is_cuda = True

    def __init__(self, pointer: int, dtype: torch.dtype = torch.float32, device: int = 0, negative: bool = False):
        self.pointer, self.dtype, self.device, self.negative = pointer, dtype, device, negative

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return self.device

    def is_neg(self) -> bool:
        return self.negative

    def resolve_neg(self) -> OnCuda:
        return OnCuda(self.pointer + 1024, self.dtype, self.device) if self.negative else self


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Direct:
    """A launch, what was compiled for it and the arguments of compiled kernels that were called directly."""
    compiled: list[Any] = []
    called: list[Any] = []
    device = [7]

    def exchange(index: int) -> int:
        before, device[0] = device[0], index
        return before

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
            def ordinary(*args: Any, **constants: Any) -> Any:
                assert device[0] != 7, "not on the tensors' device"
                compiled.append((grid, args, constants))
                run = lambda *args: called.append((device[0], *args))  # noqa: E731
                return SimpleNamespace(run=run, function=f"compiled {len(compiled)}", packed_metadata="packed")

            return ordinary

    monkeypatch.setattr(torch._C, "_cuda_exchangeDevice", exchange, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_maybeExchangeDevice", exchange, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 40 + index, raising=False)
    monkeypatch.setattr("liger.launch._has_hooks", lambda: False)
    monkeypatch.setattr("liger.launch._compiled", {})
    return prepare(Kernel(), BLOCK=4, num_warps=8), compiled, called


def test_a_compiled_kernel_is_called_directly(direct: Direct) -> None:
    launch, compiled, called = direct
    launch((0, 3), (OnCuda(64),))
    assert not compiled
    launch((2,), (OnCuda(64), None), (5, 0.5))
    assert [(grid, args[1:]) for grid, args, _ in compiled] == [((2,), (None, 5, 0.5))]
    assert compiled[0][2] == {"BLOCK": 4, "num_warps": 8, "num_stages": 1, "enable_fp_fusion": True} and not called
    launch((9, 2), (OnCuda(128), None), (6, 0.25))
    assert called == [(0, 9, 2, 1, 40, "compiled 1", "packed", None, None, None, 128, 0, 6, 0.25, 4)]
    launch((2,), (OnCuda(128, negative=True), None), (6, 0.25))
    assert called[1][10] == 128 + 1024 and len(compiled) == 1


@pytest.mark.parametrize(
    "tensors, numbers",
    [
        ((OnCuda(64, torch.bfloat16), OnCuda(64)), (5, 0.5)),
        ((OnCuda(64), OnCuda(72)), (5, 0.5)),
        ((OnCuda(72), OnCuda(64)), (5, 0.5)),
        ((OnCuda(64), None), (5, 0.5)),
        ((OnCuda(64, device=1), OnCuda(64, device=1)), (5, 0.5)),
        ((OnCuda(64), OnCuda(64)), (2**31, 0.5)),
        ((OnCuda(64), OnCuda(64)), (5, 1)),
    ],
    ids=["dtype", "second unaligned", "first unaligned", "None", "device", "64 bits", "type of a number"],
)
def test_what_a_kernel_is_compiled_for_compiles_it_again(
    direct: Direct, tensors: Sequence[Any], numbers: Sequence[int | float]
) -> None:
    launch, compiled, called = direct
    launch((1,), (OnCuda(64), OnCuda(64)), (5, 0.5))
    launch((1,), tensors, numbers)
    launch((1,), tensors, numbers)
    assert len(compiled) == 2 and [c[5] for c in called] == ["compiled 2"]
