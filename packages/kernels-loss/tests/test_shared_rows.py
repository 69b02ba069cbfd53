"""The kernel of cross_entropy where a team of programs shares each row: very wide ones are, and here all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from liger.testing.cases import Case, find, make_cases

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from liger_kernels_loss import _rows_triton as rows  # noqa: E402

if TYPE_CHECKING:
    from liger.launch import GPU

WIDTHS = (4096, 4099)  # with loads of 16 bytes, and of one value
TYPICAL = [case for case in make_cases(find("cross_entropy/triton")) if case.sizes["V"] == 1025 and case.sizes["N"]]
CASES = [replace(case, sizes={**case.sizes, "V": WIDTHS[i % 2]}) for i, case in enumerate(TYPICAL)]
ALL_OPTIONS = {"label_smoothing": 0.1, "softcap": 5.0, "z_loss": 1e-2}


def small_parts(V: int, itemsize: int, softcap: bool, gradient: bool, device: GPU) -> dict[str, int]:
    """Parts of two blocks of 512 columns: 5 of them, of which the last is not full, or not there."""
    threads = 4 * device.lanes
    return {"DEPTH": 512 // threads, "THREADS": threads, "EACH": 1, "num_warps": 4, "BLOCKS": 2}


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_losses_settings", small_parts)


@pytest.mark.triton
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_contract(case: Case, device: str) -> None:
    case.check(device)


@pytest.mark.triton
@pytest.mark.parametrize("variant", ["", "ignored rows", "class weights"])
@pytest.mark.parametrize("returns", [(), ("token_loss", "entropy", "z_loss", "predictions", "token_accuracy")])
@pytest.mark.parametrize("V", WIDTHS)
def test_contract_with_all_options_together(V: int, returns: tuple[str, ...], variant: str, device: str) -> None:
    options = {**ALL_OPTIONS, **({"returns": returns} if returns else {})}
    kernel = find("cross_entropy/triton")
    Case(kernel=kernel, dtype="bfloat16", sizes={"N": 3, "V": V}, options=options, variant=variant).check(device)


@pytest.mark.triton
@pytest.mark.parametrize("V", WIDTHS)
def test_gradient_in_the_place_of_the_logits(V: int, device: str) -> None:
    """Each part of a row is overwritten while others may still read theirs, and all need the label's logit."""
    from liger import ops

    logits = torch.randn(7, V, device=device).requires_grad_()
    target = torch.arange(7, device=device) * 512 + 511  # the last column of a block, in every part
    target[3] = V - 1
    found = {}
    for inplace in (False, True):
        x = logits * 1.0
        loss = ops.cross_entropy(x, target, inplace_backward=inplace, kernel="triton")
        found[inplace] = (loss.detach(), *torch.autograd.grad(loss, logits))
    for apart, in_place in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(in_place, apart, rtol=0, atol=0)
