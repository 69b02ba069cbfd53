"""Experts whose weights are stacked: the numbers of upstream, whatever the router does."""

import pytest
import torch

import liger
from liger.testing.models import Pair, expect_equal_step, find, step

SIZES = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}


def only_two(model):
    """Let the router of each layer send every token to experts 1 and 6."""

    def choose(module, args, result):
        logits, _, chosen = result
        chosen = torch.tensor([1, 6], device=chosen.device).expand_as(chosen)
        return logits, torch.softmax(logits, -1).gather(-1, chosen), chosen

    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(choose)
    return model


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_c10_experts_without_tokens(device, implementation):
    models = Pair(find("qwen3_moe"), device)
    config = {**SIZES, "output_router_logits": True, "mlp_only_layers": []}
    plain, model = (only_two(models.plain(**config)) for _ in range(2))
    for each in (plain, model):
        each.set_experts_implementation(implementation)
    report = liger.autopatch(model)
    (row,) = {(row.op, row.fit, row.status, row.reason) for row in report.rows if row.cls == "Qwen3MoeExperts"}
    assert row[:2] == ("silu_mul_packed", "experts[silu]")  # gate and up projection in one stack
    eager = "its eager forward does not call _apply_gate; load the model with another experts_implementation"
    assert row[2:] == (("refused", eager) if implementation == "eager" else ("applied", ""))
    out = expect_equal_step(plain, model, **models.batch())
    _, gradients, expected = step(plain, **models.batch())
    torch.testing.assert_close(out.aux_loss, expected.aux_loss)
    for name, gradient in step(model, **models.batch())[1].items():
        if ".experts." in name:
            assert gradients[name].shape == gradient.shape
            used = gradient.flatten(1).abs().amax(1) > 0
            assert used.nonzero().flatten().tolist() == [1, 6]


def test_c10_experts_of_no_tokens(device):
    models = Pair(find("qwen3_moe"), device)
    plain, model = models.both(choices=None, **SIZES, mlp_only_layers=[])
    for each in (plain, model):
        experts = each.model.layers[0].mlp.experts
        nothing = torch.empty(0, experts.hidden_dim, device=device, requires_grad=True)
        routes = torch.empty(0, 2, dtype=torch.long, device=device), torch.empty(0, 2, device=device)
        out = experts(nothing, *routes)
        out.sum().backward()
        assert out.shape == (0, experts.hidden_dim) and nothing.grad.shape == nothing.shape
