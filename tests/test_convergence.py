"""Training with and without Liger, for every installed model patch. No model is named here.

Types with the same mini are trained once: a text model without a head and the model around it.

A GPU runs it with Triton, a CPU with references, and with a few kernels in Triton's interpreter for the first steps.

In a part of the checks (`LIGER_TEST_PART`) each package is there with one case or more, with others in the next part.
"""

import itertools
import os

import pytest
import torch

from liger.errors import ContractViolation
from liger.registry import registry
from liger.testing import convergence
from liger.testing.convergence import CHECKS, MODES, check_kernels
from liger.testing.kernels import part
from liger.testing.models import Pair, find, skip_drift


def cases():
    """Model types, dtypes and modes in this part."""
    index, of = part()
    whole = sorted(registry().models.values(), key=lambda patch: patch.head is not None)
    minis = {patch.mini: patch.model_type for patch in whole}  # of those with the same mini one with a head
    types = sorted(minis.values(), key=lambda name: (registry().owner("model", name), name))
    chosen = []
    for _, names in itertools.groupby(types, lambda name: registry().owner("model", name)):
        every = list(itertools.product(names, CHECKS, MODES))
        chosen += every[index % min(of, len(every)) :: of]
    return [pytest.param(*case, id="-".join(case)) for case in chosen]


@pytest.mark.parametrize("model_type, dtype, mode", cases())
def test_training(model_type, dtype, mode, device):
    skip_drift(find(model_type))
    misses = CHECKS[dtype](Pair(find(model_type), device), mode)
    assert not misses, "; ".join(map(str, misses))


INTERPRETED = {"rms_norm": "triton", "rope": "triton"}


def plain_types():
    """Types of a norm, an attention and a gated MLP, and no more, by name."""
    ops = ["rms_norm", "rope", "silu_mul"]
    declared = sorted(registry().models.items())
    return [name for name, patch in declared if sorted(fit.op for fit in patch.fits.values() if fit) == ops]


def test_training_with_interpreted_kernels(device):
    """Of one type two steps, about three seconds: a program of the interpreter takes a millisecond."""
    if device != "cpu":
        pytest.skip("here all kernels are Triton's already")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET is not 1, as the sessions of nox have it")
    name = plain_types()[0]
    skip_drift(find(name))
    misses = check_kernels(Pair(find(name), device), INTERPRETED, steps=2)
    assert not misses, "; ".join(map(str, misses))


def test_a_kernel_that_is_not_called_is_an_error(device):
    with pytest.raises(ContractViolation, match=r"not called: \[\('layer_norm', 'reference'\)\]"):
        check_kernels(Pair(find(plain_types()[0]), device), {"layer_norm": "reference"}, steps=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_rounded_otherwise_are_within_a_unit_in_the_last_place(dtype, device):
    pair = Pair(find(plain_types()[0]), device)
    wide, one, two = pair.plain(), pair.plain(dtype), pair.plain(dtype)
    convergence._round_otherwise(one, wide, 1)
    convergence._round_otherwise(two, wide, 2)
    moved = [(a != w.to(dtype)).any() for a, w in zip(one.parameters(), wide.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    for a, b, w in zip(one.parameters(), two.parameters(), wide.parameters(), strict=True):
        for found in (a, b):
            assert ((found.double() - w.double()).abs() <= torch.finfo(dtype).eps * w.double().abs()).all()
    assert any((a != b).any() for a, b in zip(one.parameters(), two.parameters(), strict=True))
