"""Every check of liger.testing on the model types of this package."""

import pytest

from liger.testing import model_checks

MODEL_TYPES = [
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen2_vl_text",
    "qwen2_5_vl_text",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
]
CHECKS = [pytest.param(*p.values, id=f"{t}-{p.id}") for t in MODEL_TYPES for p in model_checks(t)]


@pytest.mark.parametrize("check", CHECKS)
def test_model(check, device):
    check(device)
