"""Arguments that choose a backend of the peer's, or its workspace: said to do nothing, and numbers stay as they are."""

import warnings

import pytest
import torch

from liger_kernel import _functions, _loss_functions, _said
from liger_kernel import transformers as lk

N, H, V = 12, 32, 53
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, V, (N,), generator=GENERATOR)
LABELS[3] = -100
SHAPES = {
    "linear_cross_entropy": ((N, H), (V, H)),
    "jsd": ((N, V), (N, V)),
    "linear_jsd": ((N, H), (V, H), (N, H), (V, H)),
}
CHOICES = [
    *(("linear_cross_entropy", name, value) for name in ("ce_impl", "ce_mode") for value in ("cutedsl", "nonsense")),
    ("linear_cross_entropy", "chunk_mem_const", 4),
    *(
        (function, name, value)
        for function in ("jsd", "linear_jsd")
        for name in ("jsd_impl", "jsd_mode")
        for value in ("cutile", "nonsense")
    ),
]


def numbers(function, **given):
    """Loss and gradients."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*shape, generator=generator) for shape in SHAPES[function]]
    inputs = [(t.log_softmax(-1) if function == "jsd" else t).requires_grad_() for t in tensors]
    found = getattr(_loss_functions, function)(*inputs, LABELS, **given)
    loss = found[0] if isinstance(found, tuple) else found
    loss.backward()
    return [loss.detach(), *(t.grad for t in inputs if t.grad is not None)]


def said_to_do_nothing(call, where, name, value, why):
    """The result of a call that warns of one argument, and that says nothing the second time."""
    _said._said.clear()
    with pytest.warns(_said.CompatWarning) as said:
        found = call()
    (message,) = (str(warning.message) for warning in said)
    assert message.startswith(f"liger_kernel: {where}: {name}={value!r} does nothing: ") and why in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
    return found


@pytest.mark.parametrize(("function", "name", "value"), CHOICES)
def test_the_choice_of_a_backend_changes_no_number_and_is_said(function, name, value):
    why = "workspace_mb" if name == "chunk_mem_const" else "kernel= of the function"
    found = said_to_do_nothing(lambda: numbers(function, **{name: value}), function, name, value, why)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = numbers(function)
        default = 1 if name == "chunk_mem_const" else None
        same = numbers(function, **{name: default})
    assert len(found) == len(SHAPES[function][:2]) + (function != "jsd")  # the teacher has no gradient
    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(found, expected, same, strict=True))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4", None])
def test_a_workspace_that_is_none_raises(value):
    with pytest.raises(ValueError, match=f"chunk_mem_const is {value!r}, expected a whole number of at least 1"):
        numbers("linear_cross_entropy", chunk_mem_const=value)


@pytest.mark.parametrize("function", SHAPES)
def test_an_argument_that_there_is_not_raises(function):
    with pytest.raises(TypeError, match="impl"):
        numbers(function, impl="cutedsl")


@pytest.mark.parametrize("name", ["impl", "mode", "backend"])
@pytest.mark.parametrize("value", ["cutile", "nonsense"])
def test_the_choice_of_a_layer_norms_backend_changes_no_number_and_is_said(name, value):
    def make():
        return lk.LigerLayerNorm(H, **{name: value})

    chosen = said_to_do_nothing(make, "LigerLayerNorm", name, value, _functions.CHOSEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = lk.LigerLayerNorm(H, **{name: None})
    generator = torch.Generator().manual_seed(2)
    x, dy = torch.randn(2, N, H, generator=generator)
    found = []
    for layer in (chosen, plain):
        inputs = x.clone().requires_grad_()
        out = layer(inputs)
        out.backward(dy)
        found.append((out, inputs.grad, layer.weight.grad, layer.bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    torch.testing.assert_close(found[0][0], torch.nn.functional.layer_norm(x, (H,), eps=1e-6))
    with pytest.raises(TypeError, match="kernel"):
        lk.LigerLayerNorm(H, kernel=value)
