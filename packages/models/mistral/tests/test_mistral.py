"""Every check of liger.testing on the model types of this package."""

import pytest

from liger.testing import model_checks

MODEL_TYPES = ["mistral", "ministral", "ministral3", "mixtral", "pixtral", "mistral3"]
CHECKS = [pytest.param(*p.values, id=f"{t}-{p.id}") for t in MODEL_TYPES for p in model_checks(t)]


@pytest.mark.parametrize("check", CHECKS)
def test_model(check, device):
    check(device)
