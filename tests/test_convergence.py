"""Training with and without Liger, for every installed model patch. No model is named here.

Types with the same mini are trained once: a text model without a head and the model around it.

In a part of the checks (`LIGER_TEST_PART`) each package is there with one case or more, with others in the next part.
"""

import itertools

import pytest

from liger.registry import registry
from liger.testing.convergence import CHECKS, MODES
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
