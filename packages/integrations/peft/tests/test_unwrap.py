"""The hook on real wrappers of PEFT's."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.utils.other import ModulesToSaveWrapper

from liger_integrations_peft.plugin import liger_rowwise_head, liger_unwrap_module


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


@pytest.mark.parametrize("dora", [False, True])
def test_hook_liger_rowwise_head(dora):
    model = get_peft_model(Model(), LoraConfig(target_modules=["body", "head"], use_dora=dora)).get_base_model()
    assert liger_rowwise_head(model.head) is True
    assert liger_rowwise_head(model.norm) is None and liger_rowwise_head(torch.nn.Linear(2, 2)) is None


def test_an_adapter_that_looks_at_other_rows_is_not_rowwise():
    config = LoraConfig(target_modules=["head"], alora_invocation_tokens=[1, 2])
    model = get_peft_model(Model(), config).get_base_model()
    assert liger_rowwise_head(model.head) is False


def test_an_adapter_on_what_is_no_linear_is_not_its_business():
    class Embeds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(4, 3)

        def forward(self, x):
            return self.embed(x)

    model = get_peft_model(Embeds(), LoraConfig(target_modules=["embed"])).get_base_model()
    assert liger_rowwise_head(model.embed) is None
