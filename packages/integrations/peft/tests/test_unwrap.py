"""The hook on real wrappers of PEFT's."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.utils.other import ModulesToSaveWrapper

from liger_integrations_peft.plugin import liger_unwrap_module


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


@pytest.fixture
def wrapped():
    return get_peft_model(Model(), LoraConfig(target_modules=["body"], modules_to_save=["norm", "head"]))


def test_hook_liger_unwrap_module(wrapped):
    assert liger_unwrap_module(wrapped) == [wrapped.get_base_model()]


def test_modules_to_save_gives_the_original_and_every_copy(wrapped):
    wrapped.add_adapter("second", LoraConfig(target_modules=["body"], modules_to_save=["norm", "head"]))
    head = wrapped.get_base_model().head
    assert isinstance(head, ModulesToSaveWrapper)
    assert liger_unwrap_module(head) == [
        head.original_module,
        head.modules_to_save["default"],
        head.modules_to_save["second"],
    ]


def test_everything_else_is_not_its_business(wrapped):
    lora = wrapped.get_base_model().body
    assert isinstance(lora, LoraLinear)  # adds to what it wraps, so its parts must not be used in its place
    assert liger_unwrap_module(lora) is None
    assert liger_unwrap_module(Model()) is None


def test_a_class_of_the_same_name_from_elsewhere_is_not_peft():
    assert liger_unwrap_module(type("PeftModel", (Model,), {})()) is None
