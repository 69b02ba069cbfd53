"""Cloning a forward over replaced globals."""

import functools
import sys
import types

import pytest
import torch

from liger.errors import PatchRefused
from liger_hf.rope import clone, uses_global

MODULE = types.ModuleType("made_up")
sys.modules["made_up"] = MODULE
exec(
    """
import functools
def rotate(x): return x + 1
def other(x): return x * 10
def plain(self, x, *, y=2): return rotate(x) + other(y)
def decorator(fn):
    @functools.wraps(fn)
    def wrapper(self, x, **k): return fn(self, x, **k) * 2
    return wrapper
def unrelated(fn):
    held = fn
    @functools.wraps(fn)
    def wrapper(self, x, **k): return registry[0](self, x, **k)
    return wrapper
registry = [plain]
def silent(self, x): return other(x)
""",
    MODULE.__dict__,
)


def test_clone_uses_the_replacement_and_upstream_does_not():
    copy = clone(MODULE.plain, "rotate", lambda x: 100 * x)
    assert copy(None, 1) == 120 and MODULE.plain(None, 1) == 22
    assert copy(None, 1, y=0) == 100 and copy.__kwdefaults__ == {"y": 2}
    assert copy.__code__ is not MODULE.plain.__code__ and copy.__module__ == "made_up"
    assert MODULE.rotate(1) == 2


def test_clone_goes_through_decorators():
    layered = MODULE.decorator(MODULE.decorator(MODULE.plain))
    copy = clone(layered, "rotate", lambda x: 100 * x)
    assert copy(None, 1) == 480 and layered(None, 1) == 88
    assert copy.__wrapped__ is not layered.__wrapped__ and copy.__name__ == "plain"


def test_refusals_name_the_layer():
    with pytest.raises(PatchRefused, match="silent does not use a global 'rotate'"):
        clone(MODULE.silent, "rotate", print)
    with pytest.raises(PatchRefused, match="the decorator around plain .* does not hold it in its closure"):
        clone(MODULE.unrelated(MODULE.plain), "rotate", print)


def test_a_name_that_is_only_an_attribute_is_not_a_global():
    def method(self, x):
        return self.rotate(x)

    assert not uses_global(method, "rotate") and uses_global(MODULE.plain, "rotate")


def test_clone_compiles_and_guards_on_its_own_replacement():
    torch._dynamo.reset()
    copy = clone(MODULE.plain, "rotate", functools.partial(torch.mul, 100.0))
    x = torch.ones(3)
    assert torch.equal(torch.compile(copy, backend="eager", fullgraph=True)(None, x), 100 * x + 20)
    assert torch.equal(torch.compile(MODULE.plain, backend="eager", fullgraph=True)(None, x), x + 21)
