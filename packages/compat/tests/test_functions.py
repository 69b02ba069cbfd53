"""Functions, modules and functionals: the peer's positional arguments give the numbers of their definitions in torch.

Loss and gradients in fp32; that the peer gives the same was compared by hand, as it cannot be installed beside this.
"""

import pytest
import torch
import torch.nn.functional as F

from liger.testing.models import RELATIVE
from liger_kernel import _functions, _loss_functions, _said, ops
from liger_kernel.transformers import functional, rope

N, H, V = 12, 32, 53
EPS = 1e-5


def rand(*shape):
    return torch.randn(*shape, generator=GENERATOR)


GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, V, (N,), generator=GENERATOR)
LABELS[3] = -100
KEPT = LABELS != -100
WEIGHTS = 0.1 + torch.rand(V, generator=GENERATOR)
COS, SIN = (torch.cat([rand(1, 6, 8)] * 2, -1) for _ in range(2))
AXES = [torch.cat([rand(3, 2, 6, 8)] * 2, -1) for _ in range(2)]
FREQS = torch.polar(torch.ones(1, 6, 8), rand(1, 6, 8))
PROBABILITIES, TEACHER = rand(N, V).softmax(-1), (rand(N, H), rand(V, H))


def norm(x, w, offset=0.0, eps=EPS):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (offset + w)


def modulated(x, w, scale, shift, offset=0.0):
    scale, shift = (
        t.view(x.shape) if t.numel() == x.numel() else t.view(-1, *[1] * (x.dim() - 2), H) for t in (scale, shift)
    )
    return norm(x, w, offset) * (1 + scale) + shift


def turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def by_axes(table):
    return torch.cat([part[i] for i, part in enumerate(table[..., :8].split([2, 3, 3], -1))] * 2, -1).unsqueeze(1)


def complex_turn(x):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * FREQS.unsqueeze(2)
    return torch.view_as_real(z).flatten(-2)


def poly(x, w, b):
    unit = lambda u: u * torch.rsqrt(u.pow(2).mean(-1, keepdim=True) + 1e-6)  # noqa: E731
    return w[0] * unit(x**3) + w[1] * unit(x**2) + w[2] * unit(x) + b


def kl(a, b):
    return (a.exp() * (a - b)).sum(-1)


def js(q, p, beta):
    if beta in (0.0, 1.0):
        return kl(p, q) if beta == 0.0 else kl(q, p)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def lp(x):
    return x.log_softmax(-1)


def scaled(x, w, reduction):
    z = x @ w.T
    rows = F.cross_entropy(z, LABELS, reduction="none") * (
        lp(z).gather(1, LABELS.clamp(min=0)[:, None])[:, 0].exp().detach()
    )
    rows = rows * KEPT
    return {"mean": rows.sum() / KEPT.sum(), "sum": rows.sum(), "none": rows}[reduction]


CASES = {
    "rms": (lambda x, w: ops.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", True, None), norm, [(N, H), (H,)]),
    "rms gemma": (
        lambda x, w: ops.LigerRMSNormFunction.apply(x, w, EPS, 1.0, "gemma"),
        lambda x, w: norm(x, w, 1.0),
        [(N, H), (H,)],
    ),
    "rms of a functional": (lambda x, w: functional.liger_rms_norm(x, w, EPS), norm, [(N, H), (H,)]),
    "add rms": (
        lambda x, r, w: ops.LigerFusedAddRMSNormFunction.apply(x, r, w, EPS, 0.0, "llama", True),
        lambda x, r, w: (norm(x + r, w), x + r),
        [(N, H), (N, H), (H,)],
    ),
    **{
        f"modulated {shape} {offset} {mode}": (
            lambda x, w, a, b, o=offset, m=mode: ops.LigerModulatedRMSNormFunction.apply(x, w, a, b, EPS, o, m),
            lambda x, w, a, b, o=offset: modulated(x, w, a, b, o),
            [(3, 4, H), (H,), shape, shape],
        )
        for shape in ((H,), (1, H), (3, H), (N, H), (3, 4, H))
        for offset, mode in ((0.0, "gemma"), (1.0, "gemma"), (1.0, "llama"), (0.0, "none"))
    },
    "modulated without shift": (
        lambda x, w, a: functional.liger_modulated_rms_norm(x, w, a, eps=EPS),
        lambda x, w, a: modulated(x, w, a, torch.zeros_like(a)),
        [(3, 4, H), (H,), (3, H)],
    ),
    "layer norm": (
        lambda x, w, b: ops.LigerLayerNormFunction.apply(x, w, b, EPS),
        lambda x, w, b: F.layer_norm(x, (H,), w, b, EPS),
        [(N, H), (H,), (H,)],
    ),
    "group norm": (
        lambda x, w, b: ops.LigerGroupNormFunction.apply(x, w, b, 8, 4, EPS),
        lambda x, w, b: F.group_norm(x, 4, w, b, EPS),
        [(2, 8, 6), (8,), (8,)],
    ),
    "poly": (lambda x, w, b: ops.LigerPolyNormFunction.apply(x, w, b, 1e-6, True), poly, [(N, H), (3,), ()]),
    "dyt": (
        ops.LigerDyTFunction.apply,
        lambda x, a, g, b: g * torch.tanh(a * x) + b,
        [(N, H), (1,), (H,), (H,)],
    ),
    "rope": (
        lambda q, k: ops.LigerRopeFunction.apply(q, k, COS, SIN, None, 1),
        lambda q, k: tuple(turn(t, COS[:, None], SIN[:, None]) for t in (q, k)),
        [(2, 4, 6, 16), (2, 2, 6, 16)],
    ),
    "rope of tables without a batch": (
        lambda q, k: functional.liger_rope(q, k, COS[0], SIN[0]),
        lambda q, k: tuple(turn(t, COS[:, None], SIN[:, None]) for t in (q, k)),
        [(2, 4, 6, 16), (2, 2, 6, 16)],
    ),
    "rope in vision": (
        lambda q, k: rope.liger_rotary_pos_emb_vision(q, k, COS[0], SIN[0]),
        lambda q, k: tuple(turn(t, COS[0][:, None], SIN[0][:, None]) for t in (q, k)),
        [(6, 4, 16), (6, 4, 16)],
    ),
    "rope of gpt_oss": (
        lambda q, k: rope.liger_rotary_pos_emb_gpt_oss(q, k, COS[..., :8], SIN[..., :8]),
        lambda q, k: tuple(turn(t, COS[:, None], SIN[:, None]) for t in (q, k)),
        [(2, 4, 6, 16), (2, 2, 6, 16)],
    ),
    "rope of gpt_oss of tables without a batch": (
        lambda q, k: rope.liger_rotary_pos_emb_gpt_oss(q, k, COS[0, :, :8], SIN[0, :, :8]),
        lambda q, k: tuple(turn(t, COS[:, None], SIN[:, None]) for t in (q, k)),
        [(2, 4, 6, 16), (2, 2, 6, 16)],
    ),
    "mrope": (
        lambda q, k: ops.LigerQwen2VLMRopeFunction.apply(q, k, *AXES, [2, 3, 3], 1),
        lambda q, k: tuple(turn(t, *map(by_axes, AXES)) for t in (q, k)),
        [(2, 4, 6, 16), (2, 2, 6, 16)],
    ),
    "llama4": (
        lambda q, k: ops.LigerLlama4RopeFunction.apply(q, k, FREQS[0]),
        lambda q, k: (complex_turn(q), complex_turn(k)),
        [(2, 6, 4, 16), (2, 6, 2, 16)],
    ),
    "silu": (ops.LigerSiLUMulFunction.apply, lambda a, b: F.silu(a) * b, [(N, H), (N, H)]),
    "silu times": (
        lambda a, b: ops.LigerSiLUMulFunction.apply(a, b, 0.5, 2.0),
        lambda a, b: F.silu(a * 0.5) * b * 2.0,
        [(N, H), (N, H)],
    ),
    "silu packed": (
        lambda y: ops.LigerFusedGateUpSiLUMulFunction.apply(y, True),
        lambda y: F.silu(y[:, :H]) * y[:, H:],
        [(N, 2 * H)],
    ),
    "gelu": (ops.LigerGELUMulFunction.apply, lambda a, b: F.gelu(a, approximate="tanh") * b, [(N, H), (N, H)]),
    "relu squared": (ops.LigerReLUSquaredFunction.apply, lambda x: F.relu(x).square(), [(N, H)]),
    "mlp": (
        lambda x, g, u, d: ops.LigerMLPFunction.apply(x, g, u, d, 0.5, 2.0),
        lambda x, g, u, d: 2.0 * (F.silu(0.5 * (x @ g.T)) * (x @ u.T)) @ d.T,
        [(N, H), (V, H), (V, H), (H, V)],
    ),
    "softmax": (ops.LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), [(N, H)]),
    "sparsemax": (
        lambda x: ops.LigerSparsemaxFunction.apply(x, 0),
        lambda x: (x - (x.sum(0) - 1) / 2).clamp(min=0),  # for two entries closer than 1
        [(2, 1)],
    ),
    **{
        f"cross-entropy {reduction}": (
            lambda x, r=reduction: ops.LigerCrossEntropyFunction.apply(x, LABELS, WEIGHTS, -100, 0.0, 0.1, r)[0],
            lambda x, r=reduction: F.cross_entropy(x, LABELS, WEIGHTS, label_smoothing=0.1, reduction=r),
            [(N, V)],
        )
        for reduction in ("mean", "sum", "none")
    },
    **{
        f"linear cross-entropy {reduction}": (
            lambda x, w, b, r=reduction: ops.LigerFusedLinearCrossEntropyFunction.apply(
                x, w, LABELS, b, WEIGHTS, -100, 0.0, 0.1, r, 20.0
            )[0],
            lambda x, w, b, r=reduction: F.cross_entropy(
                20.0 * torch.tanh((x @ w.T + b) / 20.0), LABELS, WEIGHTS, label_smoothing=0.1, reduction=r
            ),
            [(N, H), (V, H), (V,)],
        )
        for reduction in ("mean", "sum", "none")
    },
    **{
        f"token scaling {reduction}": (
            lambda x, w, r=reduction: functional.liger_fused_linear_cross_entropy(
                x, w, LABELS, reduction=r, use_token_scaling=True
            ),
            lambda x, w, r=reduction: scaled(x, w, r),
            [(N, H), (V, H)],
        )
        for reduction in ("mean", "sum", "none")
    },
    "scaled cross-entropy": (
        lambda x, w: ops.LigerFusedLinearScaledCrossEntropyFunction.apply(x, w, LABELS, 0.7, -100, 1, True),
        lambda x, w: (
            F.cross_entropy(x @ w.T / 0.7, LABELS, reduction="none"),
            KEPT * -(lp(x @ w.T / 0.7).exp() * lp(x @ w.T / 0.7)).sum(-1),
        ),
        [(N, H), (V, H)],
    ),
    **{
        f"jsd {beta}": (
            lambda x, y, b=beta: ops.LigerJSDFunction.apply(lp(x), lp(y.detach()), LABELS, b, -100),
            lambda x, y, b=beta: js(lp(x), lp(y.detach()), b)[KEPT].mean(),
            [(N, V), (N, V)],
        )
        for beta in (0.0, 0.3, 1.0)
    },
    "linear jsd": (
        lambda x, w: ops.LigerFusedLinearJSDFunction.apply(x, w, *TEACHER, LABELS, 0.3, -100, 1.5),
        lambda x, w: js(lp(x @ w.T / 1.5), lp(TEACHER[0] @ TEACHER[1].T / 1.5), 0.3)[KEPT].mean(),
        [(N, H), (V, H)],
    ),
    **{
        f"kl {reduction}": (
            lambda x, r=reduction: ops.LigerKLDivLossFunction.apply(lp(x), PROBABILITIES, r),
            lambda x, d=divisor: F.kl_div(lp(x), PROBABILITIES, reduction="none").sum() / d,
            [(N, V)],
        )
        for reduction, divisor in (("batchmean", N), ("mean", N * V), ("sum", 1))
    },
    "kl of a functional": (
        lambda x: functional.liger_kl_div(lp(x), PROBABILITIES),
        lambda x: F.kl_div(lp(x), PROBABILITIES, reduction="sum") / (N * V),
        [(N, V)],
    ),
    **{
        f"tvd {reduction}": (
            lambda x, r=reduction: ops.LigerTVDLossFunction.apply(x.softmax(-1), PROBABILITIES, LABELS, r, -100),
            lambda x, d=divisor: 0.5 * (x.softmax(-1) - PROBABILITIES)[KEPT].abs().sum() / d,
            [(N, V)],
        )
        for reduction, divisor in (("batchmean", KEPT.sum()), ("mean", KEPT.sum() * V), ("sum", 1))
    },
}


def run(function, shapes, seed=5):
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(s, generator=generator).requires_grad_() for s in shapes]
    out = function(*leaves)
    out = out if isinstance(out, tuple) else (out,)
    sum((o * torch.linspace(0.5, 1.5, o.numel()).view(o.shape)).sum() for o in out).backward()
    return [*(o.detach() for o in out), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_its_definition(case):
    ours, definition, shapes = case
    found, expected = run(ours, shapes), run(definition, shapes)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and (a - b).norm() <= RELATIVE * b.norm()


def test_what_is_asked_for_beside_the_loss():
    logits = rand(N, V)
    loss, z_loss, accuracy, predicted = ops.LigerCrossEntropyFunction.apply(
        logits, LABELS, None, -100, 1e-2, 0.0, "mean", None, True, True, True
    )
    best = logits.argmax(-1)
    assert torch.equal(predicted, best.masked_fill(~KEPT, -1))
    assert accuracy == (best == LABELS)[KEPT].float().mean()
    torch.testing.assert_close(z_loss, 1e-2 * logits.logsumexp(-1)[KEPT].square().mean())
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS) + z_loss)
    assert ops.LigerCrossEntropyFunction.apply(logits, LABELS)[1:] == (None, None, None)
    by_row = _loss_functions.cross_entropy(logits, LABELS, reduction="none", return_token_accuracy=True)
    assert torch.equal(by_row[2], ((best == LABELS) & KEPT).float())
    out = functional.liger_cross_entropy(logits, LABELS, return_predicted_tokens=True)
    assert isinstance(out, functional.CrossEntropyOutput) and torch.equal(out.predicted_tokens, predicted)


def test_functionals_take_the_peers_names():
    a, b = rand(N, H), rand(N, H)
    assert torch.equal(functional.liger_swiglu(a=a, b=b), ops.LigerSiLUMulFunction.apply(a, b))
    assert torch.equal(functional.liger_geglu(a=a, b=b), ops.LigerGELUMulFunction.apply(a, b))
    assert torch.equal(functional.liger_relu_squared(x=a), F.relu(a).square())
    with pytest.raises(TypeError, match="kernel"):  # an option of our op, which the peer does not have
        functional.liger_relu_squared(a, kernel="torch")
    q, p = lp(rand(N, V)), lp(rand(N, V))
    found = functional.liger_jsd(input=q, target=p, shift_labels=LABELS, beta=0.3, ignore_index=-100)
    assert torch.equal(found, ops.LigerJSDFunction.apply(q, p, LABELS, 0.3, -100))


@pytest.mark.parametrize(("dtype", "rows", "columns"), [(torch.float16, 600, 300), (torch.bfloat16, 257, 8)])
def test_tvd_counts_more_than_a_16_bit_dtype_can(dtype, rows, columns):
    p, q = (rand(rows, columns).softmax(-1).to(dtype) for _ in range(2))
    labels = torch.zeros(rows, dtype=torch.int64)
    labels[0] = -100
    for shift_labels, first in ((None, 0), (labels, 1)):
        total = 0.5 * (p[first:].float() - q[first:].float()).abs().sum()
        for reduction, divisor in (("batchmean", rows - first), ("mean", (rows - first) * columns)):
            found = _loss_functions.tvd(p, q, shift_labels, reduction)
            torch.testing.assert_close(found, total / divisor)


def test_token_scaling_counts_weights_in_fp32():
    hidden, head, labels = rand(600, H), rand(V, H), torch.zeros(600, dtype=torch.int64)
    options = {"reduction": "mean", "use_token_scaling": True}
    narrow, wide = (
        _loss_functions.linear_cross_entropy(hidden, head, labels, ce_weight=torch.full((V,), 300.0).to(t), **options)
        for t in (torch.float16, torch.float32)  # 600 * 300 is beyond fp16
    )
    torch.testing.assert_close(narrow[0], wide[0])


@pytest.mark.parametrize("shape", [(H,), (1, H), (3, H), (N, H)])
@pytest.mark.parametrize("mode", ["llama", "gemma"])
def test_an_offset_is_added_to_a_narrow_weight_in_fp32(shape, mode):
    x, w = rand(3, 4, H).bfloat16(), (3e-3 * rand(H)).bfloat16()
    scale, shift = rand(*shape).bfloat16(), rand(*shape).bfloat16()
    zero = torch.zeros_like(scale)
    plain = _functions.rms_norm(x, w, EPS, 1.0, mode)
    assert torch.equal(_functions.modulated_rms_norm(x, w, zero, zero, EPS, 1.0, mode), plain)
    found = _functions.modulated_rms_norm(x, w, scale, shift, EPS, 1.0, mode)
    expected = modulated(*(t.double() for t in (x, w, scale, shift)), 1.0)
    torch.testing.assert_close(found.double(), expected, rtol=2**-6, atol=2**-6)
    if mode == "llama":  # rounds after each step, as the norm beside it
        scale, shift = (t.view(x.shape if shape == (N, H) else (-1, 1, H)) for t in (scale, shift))
        assert torch.equal(found, plain * (1 + scale) + shift)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_a_frozen_hidden_state_and_narrow_labels_count(dtype):
    head, bias = (rand(*shape).requires_grad_() for shape in ((V, H), (V,)))
    found = functional.liger_fused_linear_cross_entropy(TEACHER[0], head, LABELS.to(dtype), bias)
    expected = F.cross_entropy(TEACHER[0] @ head.T + bias, LABELS)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(loss, (head, bias)) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_of_the_callers_is_overwritten():
    logits = rand(N, V).requires_grad_()
    x, w = rand(N, H), rand(H)
    copies = [t.detach().clone() for t in (logits, x, w)]
    functional.liger_cross_entropy(logits, LABELS).backward()
    ops.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", True)
    assert all(torch.equal(a, b) for a, b in zip((logits, x, w), copies, strict=True))


def test_arguments_that_do_nothing_are_said_once():
    x, w = rand(N, H), rand(H)
    with pytest.warns(_said.CompatWarning, match="row_mode=True does nothing") as idle:
        ops.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", True, True)
    with pytest.warns(_said.CompatWarning, match="position_ids do nothing") as once:
        _functions.rope(rand(1, 1, 6, 16), rand(1, 1, 6, 16), COS, SIN, torch.arange(6))
    with pytest.warns(_said.CompatWarning, match="size_average=False does nothing"):
        functional.liger_cross_entropy(rand(N, V), LABELS, size_average=False)
    assert {warning.filename for warning in (*idle, *once)} == {__file__}


@pytest.mark.parametrize("asked", [{}, {"return_z_loss": True, "return_token_accuracy": True}])
@pytest.mark.parametrize("fused", [False, True])
def test_class_weights_are_not_those_of_the_z_loss(fused, asked):
    x, head = rand(N, H).requires_grad_(), rand(V, H).requires_grad_()
    logits = x.double() @ head.double().T
    z_loss = 0.1 * logits.logsumexp(-1)[KEPT].square().mean()
    expected = F.cross_entropy(logits, LABELS, WEIGHTS.double(), label_smoothing=0.2) + z_loss
    options = {"lse_square_scale": 0.1, "label_smoothing": 0.2, **asked}
    if fused:
        found = functional.liger_fused_linear_cross_entropy(x, head, LABELS, ce_weight=WEIGHTS, **options)
    else:
        found = functional.liger_cross_entropy(x @ head.T, LABELS, WEIGHTS, **options)
    loss = found.loss if asked else found
    torch.testing.assert_close(loss, expected.float())
    if asked:
        torch.testing.assert_close(found.z_loss, z_loss.detach().float())
        assert found.token_accuracy == (logits.argmax(-1) == LABELS)[KEPT].float().mean()
    for a, b in zip(*(torch.autograd.grad(one, (x, head), retain_graph=True) for one in (loss, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_divergence_of_no_rows_is_0():
    ignored, student, head = torch.full((N,), -100), rand(N, H).requires_grad_(), rand(V, H)
    losses = (
        functional.liger_jsd(lp(student @ head.T), lp(rand(N, V)), ignored),
        functional.liger_fused_linear_jsd(student, head, *TEACHER, ignored),
    )
    sum(losses).backward()
    assert losses == (0.0, 0.0) and not student.grad.any()


@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_of_tokens(masked):
    logits, ids = rand(2, 6, V).requires_grad_(), torch.randint(0, V, (2, 9), generator=GENERATOR)
    mask = (torch.arange(18).view(2, 9) % 3 > 0) if masked else None
    found = ops.grpo_loss.fused_selective_log_softmax(logits, ids, 0.7, mask)
    expected = lp(logits.detach()[:, :-1] / 0.7).gather(2, ids[:, -5:, None])[..., 0]
    torch.testing.assert_close(found, expected * mask[:, -5:] if masked else expected)
    assert not found.requires_grad


def test_an_offset_is_that_of_the_weight():
    x = rand(2, H)
    with pytest.warns(_said.CompatWarning, match=r": rms_norm: offset=1.0 does nothing: there is no weight"):
        found = [_functions.rms_norm(x, None, EPS, 1.0, mode) for mode in ("llama", "gemma", "none")]
    with pytest.warns(_said.CompatWarning, match=r"modulated_rms_norm: offset=1.0 does nothing: there is no weight"):
        found.append(_functions.modulated_rms_norm(x, None, torch.zeros(H), None, EPS, 1.0))
    for one in found:
        torch.testing.assert_close(one, norm(x, 1.0))


@pytest.mark.parametrize("shape", [(N, V), (N, H)])
def test_a_teacher_gets_no_gradient(shape):
    student, teacher = (rand(*shape).requires_grad_() for _ in range(2))
    heads = [rand(V, H).requires_grad_() for _ in range(2)]
    if shape[1] == V:
        losses = [f(student, teacher) for f in (ops.LigerJSDFunction.apply, functional.liger_jsd)]
    else:
        losses = [ops.LigerFusedLinearJSDFunction.apply(student, heads[0], teacher, heads[1])]
    sum(losses).backward()
    assert student.grad.any() and teacher.grad is None is heads[1].grad


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: _functions.modulated_rms_norm(rand(2, H), rand(H), rand(H), None, EPS, 0.0, "no"),
            ValueError,
            "cast is 'no'",
        ),
        (lambda: _functions.group_norm(rand(2, 8, 3), None, None, 6, 2, EPS), ValueError, "num_channels is 6"),
        (
            lambda: _functions.rope(rand(1, 1, 6, 16), rand(1, 1, 6, 16), COS, SIN, rotary_dim=8),
            ValueError,
            "rotary_dim is 8",
        ),
        (lambda: _loss_functions.tvd(PROBABILITIES, PROBABILITIES, reduction="max"), ValueError, "reduction is 'max'"),
        (
            lambda: ops.LigerVocabParallelCEFunction.apply(rand(N, V), LABELS, None, -100, 0.1, "megatron", "global"),
            NotImplementedError,
            "label smoothing by",
        ),
        (
            lambda: ops.LigerFusedLinearScaledCrossEntropyFunction.apply(*TEACHER, LABELS, 1.0, -100, 1, False, LABELS),
            NotImplementedError,
            "selected_token_ids",
        ),
    ],
)
def test_what_is_not_there_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()
