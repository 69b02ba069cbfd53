"""Training with and without Liger, for every installed model patch. No model is named here."""

import functools
import pydoc_data.topics

import pytest
import torch

import liger
from liger.registry import registry
from liger.testing.models import Pair, find, gradients

STEPS, ROWS, TOKENS, TOP = 32, 4, 64, 5


def batches(device):
    """Real English text, byte by byte; it depends on the Python version, so runs are compared with each other."""
    text = " ".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)[: STEPS * ROWS * TOKENS].long()
    return ids.view(STEPS, ROWS, TOKENS).to(device)


def train(pair, dtype, patched, **inputs):
    """Losses (STEPS,), gradients of step 1, final parameters, log-probs of the trained model on the first batch."""
    model = pair.plain(dtype)
    if patched:
        liger.autopatch(model, strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)
    losses, first = [], None
    for ids in batches(pair.device):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids, **(inputs if patched else {})).loss
        loss.backward()
        first = first or gradients(model)
        optimizer.step()
        losses.append(loss.detach().float())
    model.eval()
    with torch.no_grad():
        logprobs = model(input_ids=batches(pair.device)[0]).logits.float().log_softmax(-1)
    return torch.stack(losses), first, {n: p.detach() for n, p in model.named_parameters()}, logprobs


@functools.cache
def baseline(model_type, dtype, device):
    """Training without Liger; the tests of a model type share it."""
    return train(Pair(find(model_type), device), dtype, False)


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


MODES = [pytest.param({}, id="fused-loss"), pytest.param({"logits": "full"}, id="with-logits")]
TYPES = sorted(registry().models)


@pytest.mark.parametrize("inputs", MODES)
@pytest.mark.parametrize("model_type", TYPES)
def test_fp32(model_type, inputs, device):
    losses, first, final, logprobs = baseline(model_type, torch.float32, device)
    got = train(Pair(find(model_type), device), torch.float32, True, **inputs)
    assert losses[-4:].mean() < losses[:4].mean() - 0.5, "the baseline does not learn, so equality would show nothing"
    assert float(((got[0] - losses).abs() / losses).max()) < 1e-4
    for name, gradient in first.items():
        assert relative(got[1][name], gradient) < 1e-5, name
    for name, parameter in final.items():
        assert relative(got[2][name], parameter) < 1e-3, name
    values, indices = logprobs.topk(TOP)
    assert float((got[3].gather(-1, indices) - values).abs().max()) < 1e-2


@pytest.mark.parametrize("inputs", MODES)
@pytest.mark.parametrize("model_type", TYPES)
def test_bf16(model_type, inputs, device):
    """bf16 runs part ways; both must stay equally close to the same training in fp32."""
    truth, true_first, true_final, _ = baseline(model_type, torch.float32, device)
    losses, first, final, _ = baseline(model_type, torch.bfloat16, device)
    got, got_first, got_final, _ = train(Pair(find(model_type), device), torch.bfloat16, True, **inputs)
    assert (got - truth).norm() <= 2 * (losses - truth).norm() + 2**-8 * truth.norm() / STEPS**0.5
    for name, gradient in true_first.items():
        assert relative(got_first[name], gradient) <= 2 * relative(first[name], gradient) + 2**-8, name
    for name, parameter in true_final.items():
        assert relative(got_final[name], parameter) <= 2 * relative(final[name], parameter) + 2**-8, name
