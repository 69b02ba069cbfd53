"""Losses of policy optimisation from hidden states and a head: the numbers of a definition token by token, in fp64."""

import math

import pytest
import torch

from liger.testing.models import RELATIVE
from liger_kernel import _said, chunked_loss
from liger_kernel._policy import CLIPPING, OTHERS
from liger_kernel.chunked_loss import functional

B, T, H, V = 3, 5, 16, 29
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(0, V, (B, T), generator=GENERATOR)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
ADVANTAGES = torch.tensor([0.7, -1.3, 0.4])
REF = torch.randn(B, T, H, generator=GENERATOR), torch.randn(V, H, generator=GENERATOR) / 4
NOISE = torch.randn(B, T, generator=GENERATOR)
RATIO = torch.rand(B, T, generator=GENERATOR) + 0.5
TEMPERATURE = 1.3


def leaves(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(*s, generator=generator) / d for s, d in (((B, T, H), 1), ((V, H), 4), ((V,), 1))]
    return [t.to(dtype).requires_grad_() for t in drawn]


def logps_of(hidden, head, bias=0.0):
    logits = (hidden.double() @ head.double().T + bias) / TEMPERATURE
    return logits.log_softmax(-1).gather(-1, IDS[..., None])[..., 0]


OLD = (logps_of(*leaves()) + 0.3 * NOISE - torch.tensor([[0.3], [0.0], [0.0]])).detach().float()


def definition(  # token by token
    hidden,
    head,
    bias,
    *,
    loss_type="dapo",
    level="token",
    beta=0.0,
    delta=None,
    old=OLD,
    ratio=None,
    items=None,
    corrected=False,
):
    logps, ref = logps_of(hidden, head, bias), logps_of(*REF)
    old = logps.detach() if old is None else old.double()
    weighted, of_answers, divergences, clipped = 0.0, [], [], []
    for b in range(B):
        counts = [t for t in range(T) if MASK[b, t]]
        a, tokens = ADVANTAGES[b].double(), []
        gaps = {t: logps[b, t] - old[b, t] for t in counts}
        whole = sum(gaps.values())
        for t in counts:
            w = torch.exp(whole / len(counts) if level == "sequence" else gaps[t])
            if loss_type == "cispo":
                loss, cut = -min(w.item(), 0.2) * a * logps[b, t], bool(w > 0.2 and a > 0)
            elif loss_type == "sapo":
                slope = 1.0 if a > 0 else 1.05
                loss, cut = -a * 4 / slope / (1 + torch.exp(-slope * (w - 1))), False
            elif loss_type == "vespo":
                given = () if ratio is None else ratio[b] if len(ratio[b]) == 1 else ratio[b][MASK[b] > 0]
                log_w = whole.item() + sum(math.log(r) for r in given)
                k, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
                loss, cut = -a * logps[b, t] * math.exp(k * log_w + rate - rate * math.exp(log_w)), False
            else:
                free = w if delta is None else torch.minimum(w, torch.tensor(delta).double())
                loss = -torch.minimum(free * a, torch.clamp(w, 0.8, 1.2) * a)
                cut = bool((w > 1.2 and a > 0) or (w < 0.8 and a < 0))
            if ratio is not None and loss_type != "vespo":
                loss = loss * ratio[b, t].double()
            gap = ref[b, t] - logps[b, t]
            divergence = (torch.exp(gap) - gap - 1) * (w if corrected else 1.0)
            tokens.append(loss + beta * divergence)
            divergences.append(divergence.item())
            clipped.append(float(cut))
        of_answers.append(sum(tokens))
        weighted = weighted + sum(tokens) / len(counts)
    total, number = sum(of_answers), MASK.sum().item()
    loss = {
        "grpo": weighted / B,
        "sapo": weighted / B,
        "dr_grpo": total / (B * 9),
        "bnpo": total / number,
        "luspo": total / B,
    }.get(loss_type, total / (items or number))
    means = [sum(divergences) / number] if beta else []
    return loss, [*means, sum(clipped) / number]


def same(actual, expected):
    assert actual.shape == expected.shape
    assert (actual.double() - expected.double()).norm() <= RELATIVE * expected.double().norm()


CASES = {
    **{kind: {"loss_type": kind} for kind in (*CLIPPING, *OTHERS)},
    **{f"{kind} of answers": {"loss_type": kind, "level": "sequence"} for kind in CLIPPING},
    "luspo, divergence": {"loss_type": "luspo", "beta": 0.1},
    "luspo of answers, divergence": {"loss_type": "luspo", "level": "sequence", "beta": 0.1},
    "delta": {"delta": 1.1},
    "on policy": {"old": None, "beta": 0.1},
    "divergence": {"loss_type": "grpo", "beta": 0.1},
    "corrected": {"loss_type": "bnpo", "beta": 0.1, "corrected": True},
    "corrected, of answers": {"loss_type": "grpo", "level": "sequence", "beta": 0.1, "corrected": True},
    "ratio": {"ratio": RATIO},
    "vespo, ratio": {"loss_type": "vespo", "ratio": RATIO},
    "vespo, ratio of answers": {"loss_type": "vespo", "ratio": RATIO[:, :1]},
    "items": {"loss_type": "cispo", "items": 31},
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients(case):
    options = {"loss_type": "dapo", "level": "token", "beta": 0.0, **CASES[case]}
    ours, plain = leaves(), leaves(torch.float64)
    names = {"loss_type": "loss_type", "level": "importance_sampling_level", "beta": "beta", "delta": "delta"}
    given = {theirs: options[name] for name, theirs in names.items() if name in options}
    corrected = options.get("corrected", False)
    loss = chunked_loss.LigerFusedLinearGRPOLoss(
        **given, temperature=TEMPERATURE, max_completion_length=9, use_bias_correction_kl=corrected
    )
    old = options.get("old", OLD)
    more = {"vllm_is_ratio": options.get("ratio"), "num_items_in_batch": options.get("items")}
    value, logged = loss(*ours[:2], IDS, MASK, ADVANTAGES, ours[2], None, old, *REF, **more)
    expected, means = definition(*plain, **options)
    value.backward()
    expected.backward()
    same(value.detach(), expected.detach())
    for a, b in zip(ours, plain, strict=True):
        same(a.grad, b.grad)
    assert len(logged) == len(means) and not any(t.requires_grad for t in logged)
    same(torch.stack(logged), torch.tensor(means))


def test_a_definition_that_clips_nothing_would_not_do():
    clipped = {case: definition(*leaves(), **CASES[case])[1][-1] for case in ("dapo", "cispo", "grpo of answers")}
    assert all(0 < share < 1 for share in clipped.values()), clipped


def test_the_function_takes_the_peers_positional_arguments():
    hidden, head, bias = (t.detach() for t in leaves())
    ref = logps_of(*REF).float()
    first = (hidden.reshape(-1, H), head, IDS, MASK, ADVANTAGES, bias, ref, OLD, None, None, None, 0.1, 0.2, 0.2)
    rest = ("bnpo", None, "token", 1.0, 1.05, TEMPERATURE, True, True, 1, RATIO, 1.1, True, 2.0, 3.0, 3.0, 2.0, None)
    expected, _ = definition(hidden, head, bias, loss_type="bnpo", beta=0.1, delta=1.1, ratio=RATIO, corrected=True)
    for function in (functional.liger_fused_linear_grpo, chunked_loss.grpo_loss.LigerFusedLinearGRPOFunction.apply):
        same(function(*first, *rest)[0], expected)


def test_the_reference_is_taken_from_where_it_is_given():
    hidden, head, _ = (t.detach() for t in leaves())
    sampled = (hidden, head, IDS, MASK, ADVANTAGES)
    loss = chunked_loss.LigerFusedLinearGRPOLoss()
    ref = torch.full((B, T), -3.0)
    expected, _ = loss(*sampled, ref_per_token_logps=ref)
    with pytest.warns(_said.CompatWarning, match="Using ref_per_token_logps; ref_input, which was given too, does"):
        value, _ = loss(*sampled, ref_per_token_logps=ref, ref_input=hidden, ref_weight=head)
    same(value, expected)
    with pytest.raises(ValueError, match="GRPO: use_ref_model is True, but ref_input or ref_weight was not given"):
        loss(*sampled)
    alone, logged = chunked_loss.LigerFusedLinearGRPOLoss(use_ref_model=False)(*sampled)
    same(alone, chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0)(*sampled)[0])
    assert logged[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_type": "ppo"}, "loss_type is 'ppo', Liger has grpo, bnpo"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level is 'word'"),
        ({"importance_sampling_level": "sequence", "loss_type": "cispo"}, "Sequence-level .* is not supported"),
        ({"loss_type": "dr_grpo"}, "'dr_grpo' needs max_completion_length"),
    ],
)
def test_what_a_loss_cannot_be_raises(options, message):
    hidden, head, _ = (t.detach() for t in leaves())
    with pytest.raises(ValueError, match=message):
        chunked_loss.LigerFusedLinearGRPOLoss(**options, beta=0.0)(hidden, head, IDS, MASK, ADVANTAGES)


@pytest.mark.parametrize("name", ["sapo_temperature_pos", "sapo_temperature_neg", "delta"])
@pytest.mark.parametrize(("loss_type", "value"), [("sapo", 0.0), ("grpo", -1.0), ("dapo", float("nan"))])
def test_what_has_to_be_positive_raises_before_and_in_a_call(name, loss_type, value):
    hidden, head, _ = (t.detach() for t in leaves())
    message = f"GRPO: {name} must be positive, got {value}"
    with pytest.raises(ValueError, match=message):
        chunked_loss.LigerFusedLinearGRPOLoss(**{name: value}, loss_type=loss_type)
    loss = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0, loss_type=loss_type)
    setattr(loss, name, value)
    with pytest.raises(ValueError, match=message):
        loss(hidden, head, IDS, MASK, ADVANTAGES)


def test_shapes_that_would_broadcast_raise_and_what_does_nothing_is_said():
    hidden, head, _ = (t.detach() for t in leaves())
    loss = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0)
    with pytest.raises(ValueError, match=r"advantages has shape \(3, 1\), expected \(3,\)"):
        loss(hidden, head, IDS, MASK, ADVANTAGES[:, None])
    with pytest.raises(ValueError, match=r"attention_mask has shape \(5,\), expected \(3, 5\)"):
        loss(hidden, head, IDS, MASK[0], ADVANTAGES)
    for name, wrong in (("old_per_token_logps", OLD[:, :1]), ("ref_per_token_logps", OLD[0])):
        with pytest.raises(ValueError, match=rf"{name} has shape \({wrong.shape[0]},.*, expected \(3, 5\)"):
            loss(hidden, head, IDS, MASK, ADVANTAGES, **{name: wrong})
    with pytest.raises(ValueError, match=r"vllm_is_ratio has shape \(5,\), expected \(3, 5\) or \(3, 1\) or \(3,\)"):
        loss(hidden, head, IDS, MASK, ADVANTAGES, vllm_is_ratio=RATIO[0])
    one = {"vllm_is_ratio": RATIO[:, 0]}, {"vllm_is_ratio": RATIO[:, :1]}
    same(*(loss(hidden, head, IDS, MASK, ADVANTAGES, **given)[0] for given in one))
    loss = chunked_loss.LigerFusedLinearGRPOLoss(beta=0.0, loss_type="cispo", delta=2.0)
    with pytest.warns(_said.CompatWarning, match="GRPO: delta=2.0 does nothing: 'cispo' clips no ratio from two sides"):
        loss(hidden, head, IDS, MASK, ADVANTAGES)
