"""linear_cross_entropy: memory, chunks, dtypes, autocast, compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from liger.errors import KernelUnavailable
from liger.ops import cross_entropy, linear_cross_entropy
from liger.testing import check_compile, no_sync, opcheck
from liger_kernels_loss._chunks import chunk_rows

KERNELS = ("torch", "triton")
SLOW = ("torch", pytest.param("triton", marks=pytest.mark.gpu))  # thousands of rows are too many for the interpreter


class Allocations(TorchDispatchMode):
    """Every tensor that an operation makes, views and ``out=`` excepted: shape and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {t.untyped_storage().data_ptr() for t in (*args, *kwargs.values()) if isinstance(t, Tensor)}
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given:
                self.shapes.append(tuple(t.shape))
                self.largest = max(self.largest, t.nbytes)
        return out


def inputs(
    rows: int, width: int, classes: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """hidden, weight, target; the seed is the test's."""
    hidden, weight = torch.randn(rows, width), torch.randn(classes, width) * 0.2
    target = torch.randint(0, classes, (rows,))
    target[::7] = -100
    leaves = [t.to(device, dtype).requires_grad_() for t in (hidden, weight)]
    return leaves[0], leaves[1], target.to(device)


def relative(a: Tensor, b: Tensor) -> float:
    """Relative Frobenius distance."""
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


# -- Memory ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_never_all_logits(kernel: str, reduction: str, device: str) -> None:
    rows, width, classes = 96, 8, 300
    hidden, weight, target = inputs(rows, width, classes, device)
    with Allocations() as mode:
        loss = linear_cross_entropy(
            hidden,
            weight,
            target,
            softcap=5.0,
            label_smoothing=0.1,
            reduction=reduction,
            workspace_mb=0.02,
            kernel=kernel,
        )
        loss.sum().backward()
    assert mode.largest <= 0.02 * 2**20 < rows * classes * 4 / 5


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_c08_frozen_head_costs_nothing(kernel: str, reduction: str, device: str) -> None:
    hidden, weight, target = inputs(10, 40, 300, device)
    full = linear_cross_entropy(hidden, weight, target, reduction=reduction, kernel=kernel)
    (expected,) = torch.autograd.grad(full.sum(), hidden)
    weight.requires_grad_(False)
    with Allocations() as mode:
        loss = linear_cross_entropy(hidden, weight, target, reduction=reduction, kernel=kernel)
        loss.sum().backward()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, expected)
    assert weight.grad is None
    assert (300, 40) not in mode.shapes


@pytest.mark.parametrize("kernel", KERNELS)
def test_frozen_hidden_and_frozen_bias(kernel: str, device: str) -> None:
    hidden, weight, target = inputs(50, 40, 30, device)
    bias = torch.randn(30, device=device, requires_grad=True)
    full = linear_cross_entropy(hidden, weight, target, bias, kernel=kernel)
    expected = torch.autograd.grad(full, (hidden, weight, bias))
    for only in range(3):
        leaves = [t.detach().requires_grad_(i == only) for i, t in enumerate((hidden, weight, bias))]
        with Allocations() as mode:
            linear_cross_entropy(leaves[0], leaves[1], target, leaves[2], kernel=kernel).backward()
        assert [t.grad is not None for t in leaves] == [i == only for i in range(3)]
        assert torch.equal(leaves[only].grad, expected[only])
        assert ((50, 40) in mode.shapes) == (only == 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_gradient_buffers_without_gradients(kernel: str, device: str) -> None:
    hidden, weight, target = inputs(10, 40, 300, device)
    expected = linear_cross_entropy(hidden, weight, target, kernel=kernel)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context, Allocations() as mode:
            loss = linear_cross_entropy(hidden, weight, target, kernel=kernel)
        assert torch.equal(loss, expected)
        assert not {(300, 40), (10, 40)} & set(mode.shapes)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_are_handed_out_not_copied(kernel: str, device: str) -> None:
    """One (V, H) for the head's gradient: made in the forward, scaled in place, given to ``weight.grad``."""
    hidden, weight, target = inputs(10, 40, 300, device)
    with Allocations() as mode:
        linear_cross_entropy(hidden, weight, target, kernel=kernel).backward()
    assert mode.shapes.count((300, 40)) == 1


# -- Chunks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunks", [1, 4, 64, 512])
@pytest.mark.parametrize("kernel", SLOW)
def test_c04_head_gradient_does_not_depend_on_the_chunks(kernel: str, chunks: int, device: str) -> None:
    hidden, weight, _ = inputs(4096, 64, 256, device, torch.bfloat16)
    target = torch.randint(0, 256, (4096,), device=device)
    megabytes = 4096 / chunks * 256 * 2 / 2**20
    assert -(-4096 // chunk_rows(4096, 64, 256, 2, megabytes, device)) == chunks
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    true = torch.autograd.grad(F.cross_entropy(wide[0] @ wide[1].t(), target), wide)
    loss = linear_cross_entropy(hidden, weight, target, workspace_mb=megabytes, kernel=kernel)
    got = torch.autograd.grad(loss, (hidden, weight))
    assert relative(got[1], true[1]) <= 0.003
    assert relative(got[0], true[0]) <= 0.004  # of logits, dlogits and dhidden, each rounded once


@pytest.mark.parametrize("kernel", SLOW)
def test_accum_dtype(kernel: str, device: str) -> None:
    hidden, weight, target = inputs(512, 64, 256, device, torch.bfloat16)
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    (true,) = torch.autograd.grad(F.cross_entropy(wide[0] @ wide[1].t(), target), wide[1])

    def error(chunks: int, accum_dtype: torch.dtype | str | None) -> float:
        megabytes = 512 / chunks * 256 * 2 / 2**20
        loss = linear_cross_entropy(
            hidden, weight, target, workspace_mb=megabytes, accum_dtype=accum_dtype, kernel=kernel
        )
        (got,) = torch.autograd.grad(loss, weight)
        assert got.dtype == torch.bfloat16
        return relative(got, true)

    one = error(1, None)
    assert error(4, torch.float32) <= 1.1 * one
    assert error(64, "float32") <= 1.1 * one
    assert error(64, None) <= 1.1 * one
    assert error(64, torch.bfloat16) > 1.5 * one  # asked for by name


def test_chunk_sizes() -> None:
    assert chunk_rows(16384, 4096, 128256, 2, None, "cuda") == 4096  # dW is the sum of 4 chunks
    assert chunk_rows(4096, 4096, 128256, 2, None, "cuda") == 2048
    assert chunk_rows(32768, 4096, 128256, 2, None, "cuda") == 8192  # 2 GiB, as an fp32 dW would take beside its chunks
    assert chunk_rows(65536, 4096, 128256, 2, None, "cuda") == 4096  # 4 GiB
    assert chunk_rows(8192, 4096, 256000, 2, None, "cuda") == 2048
    assert chunk_rows(4097, 4096, 32000, 2, None, "cuda") == 2176  # evened out, whole tiles
    assert chunk_rows(10**6, 4096, 10**7, 2, None, "cuda") == 1024  # never below, whatever it takes
    assert chunk_rows(5, 4096, 32000, 2, None, "cuda") == 5
    assert chunk_rows(16384, 4096, 128256, 2, 250.5, "cuda") == 1024
    assert chunk_rows(16384, 4096, 128256, 2, 1e-9, "cuda") == 1
    assert chunk_rows(2048, 4096, 49152, 4, None, "cpu") == 293
    assert chunk_rows(0, 4096, 100, 4, None, "cpu") == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_fp16_neither_overflows_nor_vanishes(kernel: str, device: str) -> None:
    rows = 80
    hidden = 1000 + torch.randn(rows, 8)  # sums of 80 such rows exceed 65504
    hidden = hidden.to(device, torch.float16).requires_grad_()
    weight = (torch.randn(3, 8) * 2e-4).to(device, torch.float16).requires_grad_()
    target = torch.zeros(rows, dtype=torch.long, device=device)
    loss = linear_cross_entropy(hidden, weight, target, kernel=kernel)
    got = torch.autograd.grad(loss * 16, (hidden, weight))
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    true = torch.autograd.grad(F.cross_entropy(wide[0] @ wide[1].t(), target) * 16, wide)
    assert all(relative(a, b) < 2e-3 for a, b in zip(got, true, strict=True))


@pytest.mark.parametrize("size", [1e-6, 1e4])
@pytest.mark.parametrize("of", ["tokens", "classes", "logits"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_fp16_gradients_do_not_depend_on_the_size_of_weights(kernel: str, of: str, size: float, device: str) -> None:
    """Weights that the mean divides by, and a scale of the logits: what overflows or is lost is not in the result."""
    hidden, weight, target = inputs(64, 16, 97, device, torch.float16)
    token_weight = size * torch.rand(64, device=device) if of == "tokens" else None
    class_weight = size * torch.rand(97, device=device) if of == "classes" else None
    scale = size if of == "logits" and size < 1 else 1.0
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    z = wide[0] @ wide[1].t() * scale
    rows = F.cross_entropy(z, target, None if class_weight is None else class_weight.double(), reduction="none")
    kept = (
        (target != -100).double()
        if class_weight is None
        else class_weight.double()[target.clamp_min(0)] * (target != -100)
    )
    shares = torch.ones_like(kept) if token_weight is None else token_weight.double()
    true = torch.autograd.grad(65536 * (rows * shares).sum() / (kept * shares).sum(), wide)
    loss = linear_cross_entropy(
        hidden, weight, target, None, class_weight, token_weight, logit_scale=scale, kernel=kernel
    )
    for _ in range(2):  # a second one computes everything again
        got = torch.autograd.grad(loss * 65536, (hidden, weight), retain_graph=True)
        assert all(relative(a, b) < 1e-3 for a, b in zip(got, true, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_loss_is_cross_entropys(kernel: str, device: str) -> None:
    hidden, weight, target = inputs(33, 16, 77, device, torch.bfloat16)
    bias = torch.randn(77, device=device, dtype=torch.bfloat16)
    options: dict[str, Any] = {
        "label_smoothing": 0.1,
        "softcap": 4.0,
        "logit_scale": 1.5,
        "z_loss": 0.01,
        "reduction": "none",
    }
    logits = F.linear(hidden, weight, bias)
    plain = cross_entropy(logits, target, kernel="reference", **options)
    fused = linear_cross_entropy(hidden, weight, target, bias, workspace_mb=0.001, kernel=kernel, **options)
    assert relative(fused, plain) < 3e-7


# -- Dtypes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["reference", *KERNELS])
def test_c08_autocast_is_linear_and_cross_entropy_under_autocast(kernel: str, device: str) -> None:
    hidden = torch.randn(20, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(31, 16, device=device, requires_grad=True)
    bias = torch.randn(31, device=device, requires_grad=True)
    target = torch.randint(0, 31, (20,), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = F.cross_entropy(F.linear(hidden, weight, bias), target)
        got = linear_cross_entropy(hidden, weight, target, bias, kernel=kernel)
    # two products may round a bf16 logit differently: each loss is compared with the truth for the bf16 values
    logits = F.linear(hidden.double(), weight.bfloat16().double(), bias.bfloat16().double())
    truth = F.cross_entropy(logits, target)
    rounding = 2**-8 * logits.abs().max() / len(target) ** 0.5
    assert abs(got - truth) <= max(2 * abs(expected - truth), rounding)
    for reduction in ("mean", "none"):
        with torch.autocast(device, dtype=torch.bfloat16):
            got = linear_cross_entropy(hidden, weight, target, bias, reduction=reduction, kernel=kernel).mean()
        pairs = list(
            zip(
                torch.autograd.grad(got, (hidden, weight, bias)),
                torch.autograd.grad(expected, (hidden, weight, bias), retain_graph=True),
                strict=True,
            )
        )
        assert [a.dtype for a, _ in pairs] == [torch.bfloat16, torch.float32, torch.float32]
        assert all(relative(a, b) < 6e-3 for a, b in pairs)
    with pytest.raises(TypeError, match=r"weight is torch.float32 but hidden is torch.bfloat16; .* outside autocast"):
        linear_cross_entropy(hidden, weight, target, bias, kernel=kernel)


def test_float64_is_exact_and_not_for_triton() -> None:
    hidden, weight, target = inputs(6, 4, 9, "cpu", torch.float64)
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True)
    for reduction in ("mean", "none"):
        assert torch.autograd.gradcheck(
            lambda h, w, b, reduction=reduction: linear_cross_entropy(
                h, w, target, b, softcap=3.0, label_smoothing=0.1, z_loss=0.1, reduction=reduction, workspace_mb=2e-4
            ),
            (hidden, weight, bias),
        )
    with pytest.raises(KernelUnavailable, match="float64"):
        linear_cross_entropy(hidden, weight, target, kernel="triton")


def test_a_changed_weight_is_noticed_where_it_matters(device: str) -> None:
    """The first backward needs nothing of the weight; a later one would compute with the wrong one, and raises."""
    hidden, weight, target = inputs(6, 4, 9, device)
    loss = linear_cross_entropy(hidden, weight, target, kernel="torch")
    with torch.no_grad():
        weight.add_(1.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- Devices and compilation -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_sync_with_every_option(kernel: str, device: str) -> None:
    hidden, weight, target = inputs(6, 4, 9, device)
    class_weight = torch.rand(9, device=device)
    num_items = torch.tensor(4, device=device)
    with no_sync():
        for options in (
            {"num_items": num_items},
            {"reduction": "none"},
            {"label_smoothing": 0.1, "workspace_mb": 1e-4},
        ):
            loss = linear_cross_entropy(hidden, weight, target, None, class_weight, kernel=kernel, **options)
            loss.sum().backward()


OPTIONS: list[dict[str, Any]] = [
    {"softcap": 3.0, "num_items": 5},
    {"label_smoothing": 0.1, "reduction": "none"},
    {"workspace_mb": 0.001, "accum_dtype": "float32", "logit_scale": 0.5},
    {"check_labels": True, "z_loss": 0.1, "reduction": "sum"},
]


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_compile(kernel: str, options: dict[str, Any], device: str) -> None:
    """Lengths that are one chunk and lengths that are many: at most two graphs."""
    calls = []
    for rows in (5, 5, 20, 11, 14):
        hidden, weight, target = inputs(rows, 16, 57, device, torch.bfloat16)
        calls.append(([hidden.view(1, rows, 16), weight, target.view(1, rows)], options))

    def fn(*tensors: Tensor, **kwargs: Any) -> Tensor:
        return linear_cross_entropy(*tensors, kernel=kernel, **kwargs)

    assert check_compile(fn, calls) <= 2
    opcheck(fn, *calls[0])


@pytest.mark.parametrize("returns", [(), ("token_accuracy", "predictions"), ("entropy",), ("token_loss", "z_loss")])
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiled_gradients_are_made_once(
    kernel: str, returns: tuple[str, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the forward, unless other results are there that may have gradients: then in the backward alone."""
    from liger_kernels_loss import _chunked

    asked: list[bool] = []
    inner = _chunked.gradients_like

    def recorded(*args: Any) -> Any:
        asked.append(any(args[3]))
        return inner(*args)

    hidden, weight, target = inputs(7, 16, 57, device)
    found = {}
    for compiled in (False, True):

        def fn(*tensors: Tensor) -> Tensor:
            result = linear_cross_entropy(*tensors, returns=returns, kernel=kernel)
            return result if isinstance(result, Tensor) else result.loss

        run = torch.compile(fn, backend="aot_eager", fullgraph=True) if compiled else fn
        run(hidden, weight, target)
        with monkeypatch.context() as patch:
            patch.setattr(_chunked, "gradients_like", recorded)
            asked.clear()
            loss = run(hidden, weight, target)
            found[compiled] = (loss, *torch.autograd.grad(loss, (hidden, weight)))
    differentiable = {"entropy", "token_loss"} & set(returns)
    assert asked == ([False, True] if differentiable else [True])
    assert all(relative(a, b) < 1e-6 for a, b in zip(found[True], found[False], strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("by", ["int", "tensor"])
def test_compile_with_a_divisor_that_changes(by: str, backend: str, device: str) -> None:
    """As a trainer passes it: another number of items in each step."""
    calls = []
    for rows, items in ((7, 5), (9, 6), (12, 11), (30, 29)):
        hidden, weight, target = inputs(rows, 16, 57, device)
        num_items = items if by == "int" else torch.tensor(items, device=device)
        calls.append(([hidden, weight, target], {"num_items": num_items}))

    def fn(*tensors: Tensor, **kwargs: Any) -> Tensor:
        return linear_cross_entropy(*tensors, **kwargs)

    assert check_compile(fn, calls, backend=backend) <= 2


def test_autocast_while_compiling(device: str) -> None:
    hidden = torch.randn(20, 16, device=device, requires_grad=True)
    weight = torch.randn(31, 16, device=device, requires_grad=True)
    target = torch.randint(0, 31, (20,), device=device)

    def fn(*tensors: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return linear_cross_entropy(*tensors)

    check_compile(fn, [([hidden, weight, target], {})])


@pytest.mark.gpu
def test_only_some_rows_at_a_time_on_a_gpu() -> None:
    hidden, weight, target = inputs(8192, 1024, 128256, "cuda", torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(hidden, weight, target).backward()
    peak = torch.cuda.max_memory_allocated() - before
    logits = 2 * 4096 * 128256
    assert peak < logits + hidden.nbytes + weight.nbytes + 64 * 2**20
