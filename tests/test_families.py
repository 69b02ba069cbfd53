"""What model families add to the loss of a plain causal LM: the other checks of each type are `model_checks`."""

import pytest

import liger
from liger.registry import registry
from liger.testing.models import Pair, expect_equal_step, find


@pytest.mark.parametrize("model_type", ["mixtral", "granitemoe", "qwen3_next", "gpt_oss", "ernie4_5_moe"])
@pytest.mark.parametrize("where", ["call", "config"])
def test_the_loss_of_routers_is_added(model_type, where, device):
    pair = Pair(find(model_type), device)
    asked = {"output_router_logits": True}
    plain, patched = pair.both(**(asked if where == "config" else {}))
    out = expect_equal_step(plain, patched, **pair.batch(), **(asked if where == "call" else {}))
    assert float(out.aux_loss.detach()) > 1 and plain.router_aux_loss_coef > 0
    without = patched(**pair.batch(), output_router_logits=False).loss
    assert float((out.loss - without).detach()) == pytest.approx(
        plain.router_aux_loss_coef * float(out.aux_loss), rel=0.1
    )


@pytest.mark.parametrize("model_type", [name for name, patch in registry().models.items() if patch.images])
def test_text_model_and_tower_by_themselves(model_type, device):
    """They are patched as in the model around them: declared, or recognised where their own type is not declared."""
    model = Pair(find(model_type), device).plain()
    paths = {row.path: row.op for row in liger.plan(model).applied}
    base = next(path for path, module in model.named_modules() if module is model.base_model)
    checked = 0
    for name, part in model.base_model.named_children():
        inside = {path: op for path, op in paths.items() if path.startswith(f"{base}.{name}.")}
        if inside and hasattr(part, "config"):
            assert {f"{base}.{name}.{row.path}": row.op for row in liger.plan(part).applied} == inside
            checked += 1
    assert checked == 2
