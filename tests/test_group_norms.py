"""``torch.nn.GroupNorm`` in a model: patched wherever torch's forward runs, for any input that it takes; undone."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import liger
from liger.declare import load
from liger.testing import count_ops
from liger.testing.compare import compare
from liger.testing.models import expect_equal_step, snapshot, step
from liger_hf import fits
from liger_hf.norms import group_norm
from liger_hf.recognise import recognise_module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import sweep
import tiny_models

FIT = fits.group_norm()
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
KERNELS = pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=INTERPRETED)])


class Acme(nn.Module):
    """A model of a type that nobody declares."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.config, self.norm = SimpleNamespace(model_type="acme"), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def norm(kind: str = "affine", groups: int = 2) -> nn.GroupNorm:
    """Of 8 channels, with parameters that are not 1 and 0."""
    made = nn.GroupNorm(groups, 8, affine=kind != "no parameters")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(8, generator=generator))
    if kind == "no bias":
        made.bias = None
    return made


@pytest.mark.parametrize("kind", ["affine", "no bias", "no parameters"])
@pytest.mark.parametrize("groups", [1, 2, 8])
@KERNELS
def test_each_kind_is_recognised_and_verified(kind: str, groups: int, kernel: str) -> None:
    model = Acme(norm(kind, groups))
    assert recognise_module(model.norm) == FIT
    (row,) = liger.plan(model, prefer=kernel, verify=True, strict=True).applied
    assert row.op == "group_norm" and f"/{kernel} on cpu" in row.reason


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "no positions": lambda: torch.randn(3, 8),
    "sound": lambda: torch.randn(3, 8, 5),
    "image": lambda: torch.randn(3, 8, 4, 5),
    "channels last": lambda: torch.randn(3, 8, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(3, 5, 8).transpose(1, 2),
    "every other": lambda: torch.randn(6, 8, 10)[::2, :, ::2],
}


def outcome(model: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of the input and the parameters."""
    x = x.detach().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *model.parameters()], dy)]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@KERNELS
def test_inputs_of_any_strides(kind: str, dtype: torch.dtype, kernel: str) -> None:
    """Result and gradients are within the contract of upstream's, the truth upstream's in fp64."""
    torch.manual_seed(0)
    plain = Acme(norm()).to(dtype)
    exact, patched = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    liger.autopatch(patched, prefer=kernel, strict=True)
    x = INPUTS[kind]().to(dtype)
    dy = torch.randn(x.shape).to(dtype)
    results = (outcome(patched, x, dy), outcome(plain, x, dy), outcome(exact, x.double(), dy.double()))
    for found, expected, truth in zip(*results, strict=True):
        compare(found, expected, truth, reduction=x.numel(), per_row=False)


OTHERS = {  # transformers' class: arguments, reason
    "poolformer.PoolFormerGroupNorm": ((8,), None),
    "emu3.Emu3VQVAEGroupNorm": ((), "upstream's forward takes (input, quant_states), the adapter (x)"),
    "pe_video.PeVideoMaskedGroupNorm": ((2, 8), "upstream's forward takes (x, padding_mask), the adapter (x)"),
}


@pytest.mark.parametrize("cls", OTHERS)
def test_subclasses_of_transformers(cls: str) -> None:
    model, _, name = cls.partition(".")
    arguments, reason = OTHERS[cls]
    made = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    found = recognise_module(made(*arguments) if arguments else made(num_groups=2, num_channels=8))
    assert found == FIT if reason is None else reason in str(found)


class Half(nn.GroupNorm):
    """Another forward of the same signature."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Quantised(torch.Tensor):
    """Not to be read directly."""


def test_what_is_refused() -> None:
    assert "its forward is not that of torch.nn.GroupNorm" in str(recognise_module(Half(2, 8)))
    odd = norm()
    odd._parameters["weight"] = torch.ones(8).as_subclass(Quantised)  # type: ignore[assignment]
    assert "Quantised, not a plain parameter" in load(FIT.match or "")(odd, FIT.options)
    with pytest.raises(TypeError, match="'num_groups' is read from the model by the fit 'group_norm'"):
        liger.autopatch(Acme(norm()), options={"group_norm": {"num_groups": 4}})


def test_groups_of_one_value_are_upstreams_error() -> None:
    model = Acme(norm(groups=8))
    liger.autopatch(model, prefer="reference")
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        model(torch.randn(1, 8))
    assert model(torch.randn(2, 8)).shape == (2, 8)


def test_under_autocast_the_dtype_is_upstreams(device: str) -> None:
    plain, x = norm().to(device), torch.randn(3, 8, 5, device=device).bfloat16()
    patched = functools.partial(group_norm.__liger_adapter__, liger.ops.group_norm)  # type: ignore[attr-defined]
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert patched(plain, x).dtype == plain(x).dtype


def test_a_speech_model() -> None:
    """Moonshine's encoder: the bits of upstream, and nothing of the patch is left after it."""
    torch.manual_seed(0)
    plain = tiny_models.make("moonshine", tiny_models.types()["moonshine"][1])
    inputs = sweep._runs(copy.deepcopy(plain))[1]
    assert inputs is not None
    patched = copy.deepcopy(plain)
    before = snapshot(patched)
    report = liger.autopatch(patched, only="group_norm", prefer="reference")
    assert [row.path for row in report.applied] == ["model.encoder.groupnorm"]
    with count_ops() as counts:
        expect_equal_step(plain, patched, **inputs)
    assert counts == {("group_norm", "reference"): 1}
    loss, gradients, _ = step(plain, **inputs)
    found, got, _ = step(patched, **inputs)
    assert torch.equal(found, loss) and all(torch.equal(got[name], g) for name, g in gradients.items())
    liger.unpatch(patched)
    assert snapshot(patched) == before
