"""What every op of every package does with arguments and settings that no kernel looks at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from liger.declare import Kernel, load
from liger.registry import registry
from liger.testing.cases import typical

REFERENCES = [registry().kernels(name)[-1] for name in registry().ops]
every_op = pytest.mark.parametrize("kernel", REFERENCES, ids=lambda kernel: kernel.op)


def quantized(t: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)


def nested(layout: torch.layout) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)


@pytest.mark.parametrize(
    "make, found",
    [
        (torch.Tensor.to_sparse, "one with layout torch.sparse_coo; pass {}.to_dense()"),
        (quantized, "a quantized one; pass {}.dequantize()"),
        (nested(torch.strided), "a nested one; pass {}.to_padded_tensor(0.0), or its values()"),
        (nested(torch.jagged), "a nested one; pass {}.to_padded_tensor(0.0), or its values()"),
    ],
    ids=["sparse", "quantized", "nested", "jagged"],
)
@every_op
@pytest.mark.filterwarnings("ignore")  # torch's own, of prototypes
def test_a_tensor_that_is_not_dense_is_refused(
    kernel: Kernel, make: Callable[[torch.Tensor], torch.Tensor], found: str
) -> None:
    case = typical(kernel, "float32")
    tensors, options = case.make()
    for at, (name, tensor) in enumerate(zip(case.arguments(), tensors, strict=False)):
        if tensor is not None:
            given = [*tensors[:at], make(tensor.detach()), *tensors[at + 1 :]]
            with pytest.raises(TypeError) as raised:
                load(case.op.public)(*given, **options)
            assert str(raised.value) == f"{kernel.op}: {name} must be a dense tensor, got {found.format(name)}"
