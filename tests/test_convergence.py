"""Training with and without Liger, for every installed model patch. No model is named here.

In a part of the checks (`LIGER_TEST_PART`) each package is there with one case or more, with others in the next part.
"""

import functools
import itertools
import pydoc_data.topics

import pytest
import torch

import liger
from liger.registry import registry
from liger.testing.kernels import part
from liger.testing.models import Pair, find, gradients

STEPS, ROWS, TOKENS, TOP, RATE = 32, 4, 64, 5, 1e-3


def batches(device):
    """Real English text, byte by byte; it depends on the Python version, so runs are compared with each other."""
    text = " ".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)[: STEPS * ROWS * TOKENS].long()
    return ids.view(STEPS, ROWS, TOKENS).to(device)


def backwards(inputs):
    """The same batch with its rows in reverse order; all images of a batch lie one behind the other."""
    return {name: value.unflatten(0, (ROWS, -1)).flip(0).flatten(0, 1) for name, value in inputs.items()}


def train(pair, dtype, patched, order=dict, **inputs):
    """Losses (STEPS,), gradients of step 1, final parameters, log-probs of the trained model on the first batch."""
    model = pair.plain(dtype)
    if patched:
        liger.autopatch(model, strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-5)
    losses, first = [], None
    for ids in batches(pair.device):
        optimizer.zero_grad()
        loss = model(**order({**pair.seen(ids), "labels": ids}), **(inputs if patched else {})).loss
        loss.backward()
        first = first or gradients(model)
        optimizer.step()
        losses.append(loss.detach().float())
    model.eval()
    with torch.no_grad():
        logprobs = model(input_ids=batches(pair.device)[0]).logits.float().log_softmax(-1)
    return torch.stack(losses), first, {n: p.detach() for n, p in model.named_parameters()}, logprobs


@functools.lru_cache(maxsize=4)
def baseline(model_type, dtype, device):
    """Training without Liger; the tests of a model type share it."""
    return train(Pair(find(model_type), device), dtype, False)


def relative(found, expected, least=1e-30):
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(least))


def noise(gradients):
    """Norm below which a gradient may be one fp32 rounding of the largest: that of a bias of keys is nothing else."""
    return max(float(g.norm()) for g in gradients.values()) * torch.finfo(torch.float32).eps / 1e-5


def moved(parameter):
    """How far AdamW can move a parameter: one that begins at 0 and has no gradient but noise is small beside it."""
    return STEPS * RATE * parameter.numel() ** 0.5


MODES = {"fused-loss": {}, "with-logits": {"logits": "full"}}


def cases(test):
    """Model types and modes of ``test`` in this part."""
    index, of = part()
    types = sorted(registry().models, key=lambda name: (registry().owner("model", name), name))
    chosen = []
    for _, names in itertools.groupby(types, lambda name: registry().owner("model", name)):
        every = list(itertools.product(names, ("fp32", "bf16"), MODES))
        chosen += every[index % min(of, len(every)) :: of]
    return [pytest.param(name, MODES[mode], id=f"{name}-{mode}") for name, which, mode in chosen if which == test]


@pytest.mark.parametrize("model_type, inputs", cases("fp32"))
def test_fp32(model_type, inputs, device):
    losses, first, final, logprobs = baseline(model_type, torch.float32, device)
    got = train(Pair(find(model_type), device), torch.float32, True, **inputs)
    assert losses[-4:].mean() < losses[:4].mean() - 0.5, "the baseline does not learn, so equality would show nothing"
    assert float(((got[0] - losses).abs() / losses).max()) < 1e-4
    for name, gradient in first.items():
        assert relative(got[1][name], gradient, noise(first)) < 1e-5, name
    for name, parameter in final.items():
        assert relative(got[2][name], parameter, moved(parameter)) < 1e-3, name
    values, indices = logprobs.topk(TOP)
    assert float((got[3].gather(-1, indices) - values).abs().max()) < 1e-2


def apart(run, truth):
    """How far a training is from another one, by what is compared."""
    (losses, first, final, _), (true_losses, true_first, true_final, _) = run, truth
    return {
        "losses": relative(losses, true_losses) * STEPS**0.5,  # on one step
        **{f"gradient of {n}": relative(first[n], g, noise(true_first)) for n, g in true_first.items()},
        **{f"final {n}": relative(final[n], p, moved(p)) for n, p in true_final.items()},
    }


def further(found, allowed):
    """What is more than twice as far, and by more than a rounding."""
    return [name for name, error in found.items() if error > 2 * allowed[name] + 2**-8]


@pytest.mark.parametrize("model_type, inputs", cases("bf16"))
def test_bf16(model_type, inputs, device):
    """bf16 runs part ways; both must stay equally close to the same training in fp32.

    Routers pick other experts after a rounding. Where patched is too far, upstream is also trained with the rows of
    each batch in reverse, the same but for roundings, and the further of its two trainings counts.
    """
    pair = Pair(find(model_type), device)
    truth = baseline(model_type, torch.float32, device)
    found = apart(train(pair, torch.bfloat16, True, **inputs), truth)
    allowed = apart(baseline(model_type, torch.bfloat16, device), truth)
    if further(found, allowed):
        other = apart(train(pair, torch.bfloat16, False, order=backwards), truth)
        allowed = {name: max(error, other[name]) for name, error in allowed.items()}
    assert not further(found, allowed)
