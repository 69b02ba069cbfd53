"""The vocabulary-parallel cross-entropies in processes that each hold a part, against one device that holds all."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from liger import ops, prefer
from liger.dispatch import TABLE
from liger.testing import assert_contract, check_compile, count_ops, no_sync
from liger.testing.contract import evaluate, random_like
from liger.testing.ranks import Found, Rank, run_ranks
from liger_kernels_loss._result import RETURNS
from liger_kernels_loss.cross_entropy import cross_entropy_reference
from liger_kernels_loss.linear_cross_entropy import linear_cross_entropy_reference

pytestmark = pytest.mark.xdist_group("ranks")
REFERENCES = {"cross_entropy": cross_entropy_reference, "linear_cross_entropy": linear_cross_entropy_reference}
# Positions of the arguments that are split, and the dimension.
SPLIT = {"cross_entropy": {0: 1, 2: 0}, "linear_cross_entropy": {1: 0, 3: 0, 4: 0}}
N, H = 7, 16
THREE, ONE_COLUMN, TWO = (40, 30, 27), (499, 1, 500), (96, 1)


class Case(NamedTuple):
    """One call of an op by as many ranks as there are ``sizes``."""

    op: str
    kernel: str
    sizes: tuple[int, ...]
    options: dict[str, Any]
    extras: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32

    @property
    def id(self) -> str:
        """Readable and unique."""
        options = [f"{name}={value}" for name, value in self.options.items()]
        sizes = ",".join(map(str, self.sizes))
        return "-".join([self.op, self.kernel, sizes, str(self.dtype)[6:], *options, *self.extras]).replace(" ", "_")

    def whole(self) -> list[Tensor | None]:
        """The arguments of one device."""
        generator = torch.Generator().manual_seed(zlib.crc32(repr((self.op, self.sizes, self.extras)).encode()))
        classes, rows = sum(self.sizes), 0 if "no rows" in self.extras else N

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        target = self._target(classes, generator)[:rows]
        if "probabilities" in self.extras:
            target = normal(rows, classes).softmax(-1)
        class_weight = 0.1 + normal(classes).abs() if "class weights" in self.extras else None
        token_weight = normal(rows).abs() if "token weights" in self.extras else None
        if "bytes" in self.extras:
            target = target.clamp(0, 255).to(torch.uint8)
        leaves: list[Tensor | None]
        if self.op == "cross_entropy":
            logits = normal(rows, classes) * torch.tensor([1.0, 30.0, 1e-3])[torch.arange(rows) % 3, None]
            if "padding" in self.extras:  # a whole shard
                logits[:, sum(self.sizes[:-1]) :] = -float("inf")
            leaves = [logits]
        else:
            leaves = [normal(rows, H), normal(classes, H) / 4]
        made = [leaf.to(self.dtype).requires_grad_() for leaf in leaves if leaf is not None]
        if self.op == "cross_entropy":
            return [*made, target, class_weight, token_weight]
        bias = normal(classes).to(self.dtype).requires_grad_() if "bias" in self.extras else None
        if "frozen head" in self.extras:
            made[1].requires_grad_(False)
        return [*made, target, bias, class_weight, token_weight]

    def _target(self, classes: int, generator: torch.Generator) -> Tensor:
        """Both ends of the first shard, the start of the second, the last class, one ignored, two anywhere."""
        classes -= self.sizes[-1] if "padding" in self.extras else 0
        first, ignored = self.sizes[0], self.options.get("ignore_index", -100)
        anywhere = torch.randint(0, classes, (2,), generator=generator)
        target = torch.tensor([0, first - 1, ignored, min(first, classes - 1), classes - 1, *anywhere])
        return torch.full_like(target, ignored) if "all ignored" in self.extras else target

    def local(self, rank: int, device: str) -> list[Tensor | None]:
        """The arguments of one rank."""
        tensors = self.whole()
        split = dict(SPLIT[self.op])
        if "probabilities" in self.extras:
            split[1 if self.op == "cross_entropy" else 2] = 1
        for at, dim in split.items():
            if (t := tensors[at]) is not None:
                tensors[at] = t.detach().split(self.sizes, dim)[rank].requires_grad_(t.requires_grad)
        return [None if t is None else t.detach().to(device).requires_grad_(t.requires_grad) for t in tensors]


# -- Cases -------------------------------------------------------------------------------------------------------------
SINGLE: list[dict[str, Any]] = [
    {},
    {"ignore_index": 0},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"softcap": 5.0},
    {"logit_scale": -0.5},
    {"temperature": 2.0},
    {"z_loss": 0.01},
    {"num_items": 7},
    {"returns": RETURNS},
    {"check_labels": True},
]
EVERYTHING = {"label_smoothing": 0.2, "softcap": 50.0, "logit_scale": 1.3, "temperature": 0.7, "z_loss": 0.02}
WEIGHTS = ("class weights", "token weights")
MIXED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("class weights",)),
    ({}, ("token weights",)),
    (EVERYTHING, WEIGHTS),
    ({**EVERYTHING, "reduction": "none", "returns": RETURNS}, WEIGHTS),
    ({**EVERYTHING, "returns": RETURNS}, ("probabilities", *WEIGHTS)),
    ({"reduction": "sum"}, ("probabilities",)),
    (EVERYTHING, ("all ignored", *WEIGHTS)),
    ({"returns": RETURNS}, ("no rows",)),
]
LINEAR_ONLY: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("bias",)),
    ({"workspace_mb": 0.0005, "returns": RETURNS}, ("bias",)),  # chunks of 3 rows for 40 columns, of 4 for 27
    ({"workspace_mb": 0.0005, "reduction": "none"}, ("probabilities", "class weights")),
    ({"compact": True, "returns": RETURNS}, ("class weights",)),
    ({"reduce_hidden_gradient": False}, ()),
    ({"accum_dtype": "float32"}, ("frozen head",)),
]


def make_cases() -> list[Case]:
    """Each option alone and all together in plain torch; the other kernels on what reaches all of their code."""
    cases = []
    for op in REFERENCES:
        cases.append(Case(op, "torch", (200, 100), {"ignore_index": 0}, ("class weights", "bytes")))  # 10 - 200 is 66
        more = [*MIXED, *(LINEAR_ONLY if op == "linear_cross_entropy" else [({"returns": RETURNS}, ("padding",))])]
        cases += [Case(op, "torch", THREE, options) for options in SINGLE]
        cases += [Case(op, "torch", THREE, *both) for both in more]
        cases += [Case(op, "triton", TWO, *both) for both in more]
        cases += [Case(op, "reference", THREE, *both) for both in MIXED[3:5]]
        cases.append(Case(op, "torch", THREE, EVERYTHING, WEIGHTS, torch.float16))
        for kernel in ("torch", "triton"):
            cases.append(Case(op, kernel, TWO, EVERYTHING))
            cases.append(Case(op, kernel, ONE_COLUMN, {**EVERYTHING, "returns": RETURNS}, WEIGHTS))
            cases.append(Case(op, kernel, THREE, EVERYTHING, WEIGHTS, torch.bfloat16))
    return [case for case in cases if case.kernel != "triton" or importlib.util.find_spec("triton")]


CALLS = make_cases()


# -- In the processes --------------------------------------------------------------------------------------------------
def public(case: Case, **options: Any) -> Callable[..., Any]:
    """The op with the case's kernel."""
    return functools.partial(getattr(ops, f"vocab_parallel_{case.op}"), kernel=case.kernel, **options)


def run(case: Case, rank: Rank) -> tuple[list[Tensor], dict[int, Tensor]] | None:
    """Outputs and gradients of one rank; None if it has no part of the case."""
    if len(case.sizes) > rank.ranks or rank.rank >= len(case.sizes):
        return None
    options = {} if len(case.sizes) == rank.ranks else {"group": pair()}
    made = evaluate(public(case, **options), case.local(rank.rank, rank.device), case.options)
    return [t.cpu() for t in made.outputs], {at: g.cpu() for at, g in made.gradients.items() if g is not None}


@functools.cache
def pair() -> Any:
    """The group of the first two ranks, which all have made."""
    return dist.new_group([0, 1])


def compiled(rank: Rank) -> list[int]:
    """Graphs for two lengths, forward and backward; the results are eager's."""
    graphs: list[int] = []
    if rank.rank > 1:
        return graphs
    for op in REFERENCES:
        case = Case(op, "torch", TWO, {"label_smoothing": 0.1, "returns": ("entropy",)}, ("class weights",))
        tensors = case.local(rank.rank, rank.device)
        at = 1 if op == "cross_entropy" else 2
        calls = []
        for rows in (7, 5, 4):
            some = [t if t is None or i not in (0, at) else t.detach()[:rows] for i, t in enumerate(tensors)]
            calls.append(([some[0].requires_grad_(), *some[1:]], case.options))  # type: ignore[union-attr]
        graphs.append(check_compile(public(case, group=pair()), calls))
    return graphs


def without_sync(rank: Rank) -> None:
    """Once the group has been asked, nothing waits."""
    for op in REFERENCES if rank.device != "cpu" else ():
        case = Case(op, "triton", TWO, EVERYTHING, WEIGHTS)
        tensors = case.local(rank.rank, rank.device)
        first = evaluate(public(case), tensors, case.options)
        seeds = random_like(first.outputs, loss=1.0)  # from the host
        with no_sync():
            evaluate(public(case), tensors, case.options, seeds)


def message(call: Callable[[], Any]) -> str:
    """The error that the call raises, as text."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def chosen(rank: Rank, op: str) -> dict[tuple[str, str], int]:
    """The kernel of a call whose ``torch`` kernel takes 35 columns, which the third rank has fewer than.

    Forward and backward stand under different preferences.
    """
    if rank.ranks < 3:
        return {}
    case = Case(op, "torch", THREE, {})
    tensors = [t for t in case.local(rank.rank, rank.device) if t is not None]
    call = functools.partial(getattr(ops, f"vocab_parallel_{op}"), *tensors)
    call()  # the candidates are decided
    entry = f"vocab_parallel_{op}__torch"
    before = getattr(TABLE, entry)
    setattr(TABLE, entry, dataclasses.replace(before, max_size=(("V", 35),)))
    try:
        with count_ops() as counts:
            loss = call()
    finally:
        setattr(TABLE, entry, before)
    with prefer("torch"):
        loss.backward()
    return dict(counts)


def refusals(rank: int, device: str) -> dict[str, Callable[[], Any]]:
    """Calls that all three ranks make and that raise on all of them."""
    case = Case("linear_cross_entropy", "torch", THREE, {})
    hidden, weight, target, *_ = case.local(rank, device)
    assert hidden is not None
    assert weight is not None
    assert target is not None
    linear, logits = ops.vocab_parallel_linear_cross_entropy, torch.zeros(N, weight.shape[0], requires_grad=True)
    narrow = torch.zeros(N, H - 1) if rank == 1 else torch.zeros(N, H)
    plain = ops.vocab_parallel_cross_entropy

    def twice(fn: Callable[..., Any], first: Tensor, *args: Any) -> None:
        (g,) = torch.autograd.grad(fn(first, *args, kernel=kernel), first, create_graph=True)
        g.sum().backward()

    kernel = "torch"
    found: dict[str, Callable[[], Any]] = {
        "labels": lambda: linear(hidden, weight, target.clamp_min(0) + 97, check_labels=True),
        "hidden": lambda: linear(narrow, torch.zeros(5, narrow.shape[1]), target),
        "rows": lambda: plain(torch.zeros(3 + rank, 5), torch.zeros(3 + rank, dtype=torch.long)),
        "dtypes": lambda: plain(torch.zeros(3, 6, dtype=torch.float64 if rank else torch.float32), target[:3] * 0),
        "group": lambda: plain(logits, target, group=3),
        "outsider": lambda: plain(logits, target, group=dist.GroupMember.NON_GROUP_MEMBER),
        "shards": lambda: plain(logits, target, shards=(97,)),
        "own shard": lambda: plain(logits, target, shards=(1, 2, 3)),
        "shards type": lambda: plain(logits, target, shards=97),
        "second": lambda: twice(plain, logits, target),
        "second linear": lambda: twice(linear, hidden, weight, target),
    }
    return found


def refused(rank: Rank) -> dict[str, str]:
    """What each of them says."""
    calls = refusals(rank.rank, rank.device) if rank.ranks == 3 else {}
    return {name: message(call) for name, call in calls.items()}


CASES: dict[str, Callable[[Rank], Any]] = {
    "pair": lambda rank: str(pair()),
    **{case.id: functools.partial(run, case) for case in CALLS},
    "compiled": compiled,
    "no sync": without_sync,
    **{f"chosen {op}": functools.partial(chosen, op=op) for op in REFERENCES},
    "refused": refused,
}


# -- Tests -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Of three processes on the CPU."""
    if torch.cuda.is_available():
        pytest.skip("processes on the CPU need the interpreter, which is for machines without a GPU")
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"), ranks=3)


class _Replay(torch.autograd.Function):
    """Gives back what was found, whatever the inputs."""

    @staticmethod
    def forward(ctx: Any, outputs: list[Tensor], gradients: dict[int, Tensor], *inputs: Tensor | None) -> Any:
        ctx.gradients, ctx.count = gradients, len(inputs)
        ctx.mark_non_differentiable(*[t for t in outputs if not t.is_floating_point()])
        return tuple([t.clone() for t in outputs])

    @staticmethod
    def backward(ctx: Any, *dy: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *[ctx.gradients.get(at) for at in range(ctx.count)]


def check_case(case: Case, ranks: Sequence[tuple[list[Tensor], dict[int, Tensor]]]) -> None:
    """Each rank has the outputs and hidden's gradient of one device, and its own part of the other gradients."""
    outputs, gradients = ranks[0][0], {}
    for at in ranks[0][1]:
        parts = [found[at] for _, found in ranks]
        if at in SPLIT[case.op]:
            gradients[at] = torch.cat(parts, SPLIT[case.op][at])
        elif case.options.get("reduce_hidden_gradient", True):
            assert all(same(part, parts[0]) for part in parts), "the ranks' gradients of hidden differ"
            gradients[at] = parts[0]
        else:
            gradients[at] = torch.stack(parts).sum(0)
    for others, _ in ranks:
        assert all(map(same, outputs, others)), "the ranks' results differ"
    options = {name: value for name, value in case.options.items() if name != "reduce_hidden_gradient"}

    def replay(*inputs: Tensor | None, **options: Any) -> tuple[Tensor, ...]:
        return _Replay.apply(outputs, gradients, *inputs)  # type: ignore[no-any-return, no-untyped-call]

    assert_contract(replay, REFERENCES[case.op], case.whole(), options, reduction=sum(case.sizes), waits=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bits, nan equal to nan."""
    return torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0))


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.id)
def test_equals_one_device(case: Case, found: Found) -> None:
    check_case(case, found.of(case.id)[: len(case.sizes)])


def test_compiles_over_a_group(found: Found) -> None:
    assert all(graphs <= 2 for rank in found.of("compiled")[:2] for graphs in rank)


@pytest.mark.parametrize("op", REFERENCES)
def test_all_ranks_choose_one_kernel(op: str, found: Found) -> None:
    """One that every rank's shard is small enough for; and the backward is that kernel's."""
    assert found.of(f"chosen {op}") == [{(f"vocab_parallel_{op}", "reference"): 1}] * 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("labels", "ValueError: vocab_parallel_linear_cross_entropy: target has 7 of 7 labels outside [0, 97)"),
        ("hidden", "different sizes of hidden, [16, 15, 16]"),
        ("rows", "different numbers of rows, [3, 4, 5]"),
        ("dtypes", "different dtypes, ['torch.float32', 'torch.float64', 'torch.float64']"),
        ("group", "TypeError: vocab_parallel_cross_entropy: group is 3, expected a process group"),
        ("outsider", "expected a process group that this process is in"),
        ("shards", "shards names 1 ranks, but the group has 3"),
        ("own shard", "classes for rank"),
        ("shards type", "TypeError: vocab_parallel_cross_entropy: shards is 97"),
        ("second", "RuntimeError: vocab_parallel_cross_entropy: this kernel has no second derivative"),
        ("second linear", "RuntimeError: vocab_parallel_linear_cross_entropy: "),
    ],
)
def test_refused_on_every_rank(name: str, words: str, found: Found) -> None:
    for rank in found.of("refused"):
        assert words in rank[name]


@pytest.mark.parametrize("kernel", ["torch", pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_out_of_range_gives_nan_in_its_row(kernel: str, label: int, device: str) -> None:
    logits = torch.zeros(3, 5, device=device, requires_grad=True)
    target = torch.tensor([0, label, 4], device=device)
    loss = ops.vocab_parallel_cross_entropy(logits, target, reduction="none", kernel=kernel)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isnan().tolist() == [False, True, False]
    assert gradient.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.gpu(2)
def test_two_gpus(tmp_path: Path) -> None:
    found = run_ranks(__file__, tmp_path, device="cuda")
    for case in CALLS:
        if len(case.sizes) == 2:
            check_case(case, found.of(case.id))
    found.of("no sync")


@pytest.mark.parametrize("flag", ["reduce_hidden_gradient", "compact", "check_labels"])
def test_flags_are_true_or_false(flag: str) -> None:
    hidden, weight, target = torch.randn(2, 4), torch.randn(5, 4), torch.tensor([0, 1])
    with pytest.raises(TypeError, match=f"vocab_parallel_linear_cross_entropy: {flag} must be a bool, got str"):
        ops.vocab_parallel_linear_cross_entropy(hidden, weight, target, group="self", **{flag: "no"})
