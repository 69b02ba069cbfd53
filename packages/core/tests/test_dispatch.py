"""From an op to the kernel that serves the call: states, order of choices, options, refusals, compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import planted as plugin  # noqa: E402

import liger  # noqa: E402
from liger import registry  # noqa: E402
from liger.declare import Kernel, Needs  # noqa: E402
from liger.dispatch import LOG, bind, public, reset  # noqa: E402
from liger.errors import KernelUnavailable  # noqa: E402
from liger.testing import count_ops  # noqa: E402

pytestmark = pytest.mark.usefixtures("planted")

RIGHT = Kernel(op="scaled", name="right", fn="planted:kernels.right", rank=10)


@pytest.fixture
def kernels(planted: None) -> Callable[..., None]:
    """Replace the kernels of ``scaled``, keeping its reference."""

    def declare(*chosen: Kernel) -> None:
        known = registry.registry()
        kept = {key: k for key, k in known._kernels.items() if k.name == "reference"}
        known._kernels = kept | {k.id: k for k in chosen}
        known._owners.update({("kernel", k.id): [f"dist-{k.name} 1.0"] for k in chosen})
        reset()

    return declare


def served(width: int = 4, **kwargs: object) -> str:
    """The name of the kernel that serves a call."""
    with count_ops() as counts:
        plugin.scaled(torch.ones(2, width), torch.ones(width), **kwargs)
    ((_, name),) = counts
    return name


# -- Three states ------------------------------------------------------------------------------------------------------
def test_highest_rank_serves_and_limits_fall_back() -> None:
    assert served() == "right"
    assert served(width=301) == "reference"


def test_a_kernel_that_does_not_import_is_not_available(kernels: Callable[..., None]) -> None:
    kernels(dataclasses.replace(RIGHT, fn="no_such_module:kernel"))
    assert served() == "reference"
    with pytest.raises(KernelUnavailable, match="its module does not import: No module named 'no_such_module'"):
        served(kernel="right")


def test_a_reference_is_computed_without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "scaled_reference", lambda x, w, *, factor: torch.nn.functional.linear(x, w[None]))
    x, w = torch.randn(2, 4), torch.randn(4)
    reset()
    expected = plugin.scaled(x, w, kernel="reference")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.linear(x, w[None]).dtype == torch.bfloat16
        for call in (plugin.scaled, torch.compile(plugin.scaled, backend="eager", fullgraph=True)):
            assert torch.equal(call(x, w, kernel="reference"), expected)
    reset()


@pytest.mark.parametrize("value", ["right", "scaled/right", "other, scaled/right"])
def test_a_disabled_kernel_is_not_used(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGER_DISABLE_KERNELS", value)
    reset()
    assert served() not in ("right",)
    with pytest.raises(KernelUnavailable, match="disabled by LIGER_DISABLE_KERNELS"):
        served(kernel="right")


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Needs(devices=("cuda",)), r"device=cpu \(supported: cuda\)"),
        (Needs(dtypes=("bfloat16",)), r"dtype=float32 \(supported: bfloat16\)"),
        (Needs(max_size={"H": 3}), "H=4 exceeds 3"),
        (Needs(options={"factor": (2.0,)}), r"factor=1.0 \(supported: 2.0\)"),
    ],
)
def test_needs_are_an_allow_list_with_reasons(kernels: Callable[..., None], needs: Needs, reason: str) -> None:
    kernels(dataclasses.replace(RIGHT, needs=needs))
    assert served() == "reference"
    with pytest.raises(KernelUnavailable, match=reason) as error:
        served(kernel="right")
    message = str(error.value)
    assert message.startswith("kernel 'right' of scaled was asked for and cannot serve device=cpu")
    assert "scaled/right:" in message and "scaled/reference: prefer='right'" in message


def test_the_error_of_a_chosen_kernel_propagates(kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(plugin.kernels, "right", broken)
    kernels(RIGHT)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        served()


def test_equal_ranks_are_an_error_naming_both_owners(kernels: Callable[..., None]) -> None:
    kernels(RIGHT, dataclasses.replace(RIGHT, name="other"))
    with pytest.raises(KernelUnavailable, match=r"dist-\w+ 1.0.*dist-\w+ 1.0.*equal rank 10.*prefer="):
        served()
    assert served(kernel="other") == "other"


# -- Who chooses -------------------------------------------------------------------------------------------------------
def test_argument_beats_with_beats_bound_beats_rank() -> None:
    x, w = torch.ones(2, 4), torch.ones(4)
    bound = bind("scaled", "wrong_forward", {})

    def name(**kwargs: object) -> str:
        with count_ops() as counts:
            bound(x, w, **kwargs)
        return next(iter(counts))[1]

    assert served() == "right"
    assert name() == "wrong_forward"
    with liger.prefer({"scaled": "reference"}):
        assert served() == name() == "reference"
        assert served(kernel="right") == name(kernel="right") == "right"
        with liger.prefer("one_element"):
            assert served() == "reference"  # an op's own choice beats the choice for all
    with liger.prefer("one_element"):
        assert served() == name() == "one_element"
    assert served() == "right"


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with (
        pytest.raises(KernelUnavailable, match=r"no kernel of scaled has this name.*did you mean 'right'"),
        liger.prefer({"scaled": "rihgt"}),
    ):
        pass
    with pytest.raises(KernelUnavailable, match="no kernel of any op"), liger.prefer("cuda"):
        pass


def test_a_choice_for_all_ops_is_named_when_it_cannot_serve() -> None:
    with (
        liger.prefer("right"),
        pytest.raises(KernelUnavailable, match=r"(?s)'right' of scaled .*H=301 exceeds 300") as error,
    ):
        served(width=301)
    assert "scaled/reference: prefer='right'" in str(error.value)


# -- Options -----------------------------------------------------------------------------------------------------------
def test_argument_beats_with_beats_bound_beats_default() -> None:
    x, w = torch.ones(1, 1), torch.ones(1)
    plain = public("scaled")(plugin.scaled)
    assert plain(x, w).item() == 1
    with liger.options(scaled={"factor": 3.0}):
        assert plain(x, w).item() == 3
        assert plain(x, w, factor=5.0).item() == 5
        with liger.options(scaled={"factor": 7.0}):
            assert plain(x, w).item() == 7
        assert plain(x, w).item() == 3
    assert plain(x, w).item() == 1


def test_unknown_option_is_a_type_error() -> None:
    with (
        pytest.raises(TypeError, match=r"options\['scaled'\]: 'facter' is not an option.*did you mean 'factor'"),
        liger.options(scaled={"facter": 2.0}),
    ):
        pass


# -- Log and compile ---------------------------------------------------------------------------------------------------
def test_each_decision_is_logged_once() -> None:
    served(), served(width=7), served(kernel="reference")
    chosen = [(d.op, d.prefer, d.chosen) for d in LOG.decisions]
    assert chosen == [("scaled", None, "right"), ("scaled", "reference", "reference")]


def test_compiles_without_graph_breaks_and_follows_the_context() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    torch._dynamo.pgo.reset_code_state()
    counters.clear()
    step = torch.compile(plugin.scaled, fullgraph=True, backend="aot_eager")
    w = torch.ones(4)
    for rows in (3, 3, 5, 7):
        x = torch.randn(rows, 4)
        assert torch.equal(step(x, w), x)
    assert counters["stats"]["unique_graphs"] <= 2 and not counters["graph_break"]
    with liger.prefer({"scaled": "wrong_forward"}):
        assert not torch.equal(step(x, w), x)
    assert torch.equal(step(x, w), x)


def test_a_compiled_call_beyond_a_limit_is_served_by_another_kernel() -> None:
    torch._dynamo.reset()
    step = torch.compile(plugin.scaled, fullgraph=True, backend="aot_eager")
    for width in (4, 301):
        with count_ops() as counts:
            step(torch.ones(2, width), torch.ones(width))
        assert next(iter(counts))[1] == ("right" if width == 4 else "reference")


def test_where_an_op_is_traced_its_reference_is_compiled_unless_a_kernel_was_chosen(monkeypatch) -> None:
    known = registry.registry()
    monkeypatch.setitem(known.ops, "scaled", dataclasses.replace(known.ops["scaled"], traced_on=("cpu",)))
    reset()
    step = torch.compile(plugin.scaled, fullgraph=True, backend="aot_eager")

    def compiled(**kwargs: object) -> str:
        torch._dynamo.reset()
        with count_ops() as counts:
            step(torch.ones(2, 4), torch.ones(4), **kwargs)
        ((_, name),) = counts
        return name

    assert (served(), compiled(), served()) == ("right", "reference", "right")
    assert compiled(kernel="right") == "right"
    for preferred in ("right", {"scaled": "right"}):
        with liger.prefer(preferred):
            assert compiled() == "right"
    (decision,) = [d for d in LOG.decisions if d.compiled and d.prefer is None]
    why = dict(decision.rejected)["right"]
    assert decision.chosen == "reference" and why == ("torch.compile fuses the reference with what is around it",)


def test_a_kernel_from_before_an_op_gained_a_tensor_still_serves_calls_without(monkeypatch) -> None:
    """Third parties' kernels do not break when an op gets an optional argument."""
    from liger.dispatch import Candidate, _arity

    def old(x, weight, *, eps):
        return eps

    candidate = Candidate("old", old, _arity(old), (), ())
    x = torch.ones(2)
    assert candidate.accepts((x, x), {}, {}) and candidate.accepts((x, x, None), {}, {})
    assert not candidate.accepts((x, None, x), {}, {})
    assert _arity(lambda *tensors: None) > 100
