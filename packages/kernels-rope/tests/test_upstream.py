"""rope has the bits of every form of upstream's function, also in the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from liger import ops

Tables = Callable[[torch.Tensor], torch.Tensor]


def both(t: torch.Tensor) -> torch.Tensor:
    """A table as most families make it, from the angles of pairs."""
    return torch.cat((t, t), dim=-1)


def twice(t: torch.Tensor) -> torch.Tensor:
    """As cohere makes it."""
    return t.repeat_interleave(2, dim=-1)


def alone(t: torch.Tensor) -> torch.Tensor:
    """As gpt_oss makes it."""
    return t


INTERLEAVED, PAIR, FP32 = {"layout": "interleaved"}, {"tables": "pair"}, {"cast": "fp32"}
# model, function, how it makes its tables, part of the head that is rotated, our options
FORMS: tuple[tuple[str, str, Tables, float, dict[str, str]], ...] = (
    ("llama", "apply_rotary_pos_emb", both, 1, {}),
    ("pixtral", "apply_rotary_pos_emb", both, 1, {}),
    ("gpt_neox", "apply_rotary_pos_emb", both, 0.5, {}),
    ("gpt_oss", "apply_rotary_pos_emb", alone, 1, PAIR),
    ("glm", "apply_rotary_pos_emb", both, 0.5, INTERLEAVED | PAIR),
    ("glm4", "apply_rotary_pos_emb", both, 0.5, INTERLEAVED | PAIR),
    ("helium", "apply_rotary_pos_emb", both, 1, INTERLEAVED | PAIR),
    ("glm4v", "apply_rotary_pos_emb", twice, 0.5, INTERLEAVED),
    ("cohere", "apply_rotary_pos_emb", twice, 1, INTERLEAVED | FP32),
    ("cohere2", "apply_rotary_pos_emb", twice, 1, INTERLEAVED | FP32),
    ("ernie4_5", "apply_rotary_pos_emb", both, 1, INTERLEAVED | PAIR | FP32),
    ("ernie4_5_vl_moe", "apply_rotary_pos_emb", twice, 1, INTERLEAVED | FP32),
    ("deepseek_v3", "apply_rotary_pos_emb", both, 1, {}),
    ("deepseek_v3", "apply_rotary_pos_emb_interleave", both, 1, {"layout": "deinterleave"} | PAIR),
    ("olmo2", "apply_rotary_pos_emb", both, 1, {"cast": "output"}),
    ("qwen2_vl", "apply_rotary_pos_emb_vision", both, 1, FP32),
    ("qwen3_vl", "apply_rotary_pos_emb_vision", both, 1, FP32),
    ("glm4v", "apply_rotary_pos_emb_vision", both, 1, FP32),
)


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16], ids=["fp32_tables", "bf16_tables"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("model", "function", "make", "part", "options"), FORMS, ids=[f"{m}-{f}" for m, f, *_ in FORMS]
)
def test_bits(
    model: str,
    function: str,
    make: Tables,
    part: float,
    options: dict[str, str],
    dtype: torch.dtype,
    table: torch.dtype,
    kernel: str,
    device: str,
    generator: torch.Generator,
) -> None:
    modeling = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    upstream: Any = getattr(modeling, function)
    vision = function.endswith("vision")  # (T, N, D) and (T, D)
    shape = (5,) if vision else (2, 5)
    q, k = (torch.randn(*shape, n, 32, generator=generator).to(device, dtype) for n in (4, 1))
    if not vision:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    angle = 6.3 * torch.rand(*shape, int(16 * part), generator=generator)
    cos, sin = (make(t.to(device, table)) for t in (angle.cos(), angle.sin()))
    expected = upstream(q, k, cos, sin)
    if options.get("tables") == "pair":
        cos, sin = cos[..., : angle.shape[-1]], sin[..., : angle.shape[-1]]  # views: nothing is copied
    for got, theirs in zip(ops.rope(q, k, cos, sin, **options, kernel=kernel), expected, strict=True):
        assert got.dtype == theirs.dtype and torch.equal(got, theirs)


@pytest.mark.parametrize("kernel", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("layout", ["half", "interleaved", "deinterleave"])
@pytest.mark.parametrize("cast", ["none", "output", "fp32"])
@pytest.mark.parametrize("pair", [False, True])
def test_gradients_of_tables_in_every_form(
    layout: str, cast: str, pair: bool, kernel: str, device: str, generator: torch.Generator
) -> None:
    """Against autograd through the rotation as a matrix product, in float32."""
    q, k = (torch.randn(2, n, 3, 8, generator=generator).to(device) for n in (2, 1))
    cos, sin = (torch.randn(1, 3, 2 if pair else 4, generator=generator).to(device) for _ in range(2))
    inputs = [t.requires_grad_() for t in (q, k, cos, sin)]
    options = {"layout": layout, "cast": cast, "tables": "pair" if pair else "column"}
    ours = ops.rope(*inputs, **options, kernel=kernel)
    theirs = rotate_by_matrices(*inputs, layout=layout, pair=pair)
    seeds = [torch.randn(y.shape, generator=generator).to(device) for y in ours]
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected)
    found = torch.autograd.grad(ours, inputs, seeds)
    for got, expected in zip(found, torch.autograd.grad(theirs, inputs, seeds), strict=True):
        torch.testing.assert_close(got, expected)


def rotate_by_matrices(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: str, pair: bool
) -> list[torch.Tensor]:
    """y[row] = x[col] * cos[entry] + sign * x[other] * sin[entry], written out for four rotated columns of eight."""
    halves = layout == "half", layout != "interleaved"  # in x, in y
    ins, outs = ([(0, 2), (1, 3)] if h else [(0, 1), (2, 3)] for h in halves)
    columns: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}
    for number, ((a, b), (first, second)) in enumerate(zip(ins, outs, strict=True)):
        at, to = (number, number) if pair else (first, second)
        c1, s1, c2, s2 = (t[:, None, :, i] for i in (at, to) for t in (cos, sin))
        columns[first] = lambda x, a=a, b=b, c=c1, s=s1: x[..., a] * c - x[..., b] * s
        columns[second] = lambda x, a=a, b=b, c=c2, s=s2: x[..., b] * c + x[..., a] * s
    return [torch.cat((torch.stack([columns[i](x) for i in range(4)], -1), x[..., 4:]), -1) for x in (q, k)]
