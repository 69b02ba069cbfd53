"""Every check of liger.testing on the model types of this package."""

import pytest

from liger.testing import model_checks

MODEL_TYPES = ["llama", "smollm3", "arcee", "llama4_text", "llama4", "mllama_text_model", "mllama"]
CHECKS = [pytest.param(*p.values, id=f"{t}-{p.id}") for t in MODEL_TYPES for p in model_checks(t)]


@pytest.mark.parametrize("check", CHECKS)
def test_model(check, device):
    check(device)
