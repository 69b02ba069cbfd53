"""The checks of ``liger.testing.models``: each ``check_*`` gets a Pair and raises ContractViolation."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import tempfile
from collections import Counter
from typing import Any
from unittest import mock

import torch

import liger
from liger.errors import AlreadyPatched, LigerError
from liger.testing.compiled import count_graphs
from liger.testing.memory import largest_allocation
from liger.testing.models import (
    Pair,
    deep_copies,
    expect,
    expect_close,
    expect_close_gradients,
    expect_equal_step,
    expect_unchanged,
    skip_unknown_calls,
    snapshot,
    step,
)
from liger.testing.observe import count_ops

REFERENCE = {"prefer": "reference"}


# -- What is declared ------------------------------------------------------------------------------------------------
def check_pinned(pair: Pair) -> None:
    """Every class that the patch names is upstream's, stands in the mini, and each of its modules is patched."""
    model, patch = pair.plain(), pair.patch
    report = liger.plan(model)
    left = {row.cls: row.reason for row in report.skipped if not row.idle}
    expect(not left, f"rows left: {left}")
    named = {name.rpartition(".")[2] for name in patch.fits} | ({type(model).__name__} if patch.head else set())
    unused = named - {row.cls for row in report.applied}
    expect(not unused, f"the patch names {sorted(unused)}, which the mini does not have")


# -- Numbers -----------------------------------------------------------------------------------------------------------
def check_loss_and_gradients_fp32(pair: Pair) -> None:
    """Loss and all gradients equal unpatched."""
    plain, patched = pair.both()
    for inputs in ({}, {"num_items_in_batch": 5}, {"num_items_in_batch": torch.tensor(5)}):
        out = expect_equal_step(plain, patched, **pair.batch(), **inputs)
        expect("logits" not in out and out.logits is None, "a training step returned logits")


def check_attention_mask_and_padding(pair: Pair) -> None:
    """Padded rows."""
    plain, patched = pair.both()
    batch = pair.batch()
    mask = torch.ones_like(batch["input_ids"])
    mask[0, -4:] = 0
    batch["labels"][0, -4:] = -100
    expect_equal_step(plain, patched, **batch, attention_mask=mask)


def check_layers_bit_equal(pair: Pair) -> None:
    """With references and without the head, logits are those of upstream bit for bit, in fp32 and bf16."""
    for dtype in (torch.float32, torch.bfloat16):
        plain, patched = pair.both(dtype, {**REFERENCE, "skip": "linear_cross_entropy"})
        expected, found = (_logits(m, input_ids=pair.batch()["input_ids"]) for m in (plain, patched))
        expect(torch.equal(found, expected), f"logits in {dtype} are not bit-equal with reference kernels")
        loss, _, _ = step(plain, **pair.batch())
        got, _, _ = step(patched, **pair.batch())
        expect(torch.equal(got, loss), f"the loss in {dtype} is not bit-equal with reference kernels")


def _logits(model: Any, **inputs: Any) -> torch.Tensor:
    """Of a forward without gradients; what a router draws is the same each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**inputs).logits  # type: ignore[no-any-return]


def check_images(pair: Pair) -> None:
    """With an image in each row: loss and all gradients, those of the vision tower too; logits bit for bit."""
    batch = pair.batch()
    batch |= pair.seen(batch["input_ids"])
    plain, patched = pair.both()
    expect_equal_step(plain, patched, **batch)
    without = [name for name, parameter in plain.named_parameters() if parameter.grad is None]
    expect(len(without) < len(list(plain.parameters())) / 4, f"no gradient reaches {without}")
    for dtype in (torch.float32, torch.bfloat16):
        plain, patched = pair.both(dtype, {**REFERENCE, "skip": "linear_cross_entropy"})
        seen = {**batch, **pair.seen(batch["input_ids"], dtype)}
        expected, found = (_logits(m, **seen) for m in (plain, patched))
        expect(torch.equal(found, expected), f"logits of images in {dtype} are not bit-equal with reference kernels")


def check_head_alone_bf16(pair: Pair) -> None:
    """The fused loss alone, in bf16, against an fp32 copy of the same model: at most twice upstream's error."""
    plain, patched = pair.both(torch.bfloat16, {"only": "linear_cross_entropy"})
    truth, _, _ = step(pair.plain(torch.bfloat16).float(), **pair.batch())
    loss, _, _ = step(plain, **pair.batch())
    found, _, _ = step(patched, **pair.batch())
    allowed = 2 * abs(float(loss - truth)) + 2**-8 * abs(float(truth))
    expect(abs(float(found - truth)) <= allowed, f"loss {float(found)}, fp32 {float(truth)}, upstream {float(loss)}")


def check_call_counts(pair: Pair) -> None:
    """Every module that was reported applied calls its op once whenever upstream calls it; unpatched calls none.

    Where a fit replaces a function, the op is called as often as that (gemma4 calls it for queries and for keys).
    """
    plain, patched = pair.both()
    expected, functions = Counter[str](), set()
    for row in liger.plan(plain).applied:
        module = plain.get_submodule(row.path)
        if name := dict(type(patched.get_submodule(row.path)).__liger_spec__.options).get("function"):
            functions.add((_home(module, name), name, row.op))
        else:
            module.register_forward_pre_hook(lambda *_, op=row.op: expected.update([op]))
    with count_ops() as none, contextlib.ExitStack() as stack:
        for home, name, op in functions:
            counting = _counting(vars(home)[name], expected, op)
            stack.enter_context(mock.patch.object(home, name, counting))
        step(plain, **pair.batch())
    expect(not none, f"an unpatched model called {dict(none)}")
    with count_ops() as counts:
        step(patched, **pair.batch())
    found: Counter[str] = Counter()
    for (op, _), number in counts.items():
        found[op] += number
    skip_unknown_calls(pair.patch.model_type, found, expected)
    expect(found == expected, f"ops called {dict(found)}, upstream calls {dict(expected)}")


def _home(module: Any, name: str) -> Any:
    """The module in whose globals upstream's forward finds a function."""
    forward = inspect.unwrap(type(module).forward, stop=lambda layer: name in layer.__code__.co_names)
    return sys.modules[forward.__module__]


def _counting(function: Any, counts: Counter[str], op: str) -> Any:
    """The function, noting each call under ``op``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        counts.update([op])
        return function(*args, **kwargs)

    return call


def check_gradient_checkpointing(pair: Pair) -> None:
    """Both modes."""
    for reentrant in (False, True):
        plain, patched = pair.both()
        for model in (plain, patched):
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        expect_equal_step(plain, patched, **pair.batch())


def check_autocast(pair: Pair) -> None:
    """bf16 autocast over fp32 weights: upstream's error against fp32 is not exceeded twice over."""
    plain, patched = pair.both()
    truth, _, _ = step(pair.plain(), **pair.batch())
    with torch.autocast(pair.device, dtype=torch.bfloat16):
        loss, wanted, _ = step(plain, **pair.batch())
        found, got, _ = step(patched, **pair.batch())
    allowed = 2 * abs(float(loss - truth)) + 2**-8 * abs(float(truth))
    expect(abs(float(found - truth)) <= allowed, f"loss {float(found)}, fp32 {float(truth)}, upstream {float(loss)}")
    for name, gradient in wanted.items():
        expect(got[name].dtype == gradient.dtype, f"gradient of {name} is {got[name].dtype}, not {gradient.dtype}")
        expect_close(got[name], gradient, f"gradient of {name}", 5e-2)


# -- The forward's contract --------------------------------------------------------------------------------------------
def check_shift_labels(pair: Pair) -> None:
    """shift_labels beats labels."""
    plain, patched = pair.both()
    batch = pair.batch()
    shifted = batch["labels"].roll(-2, 1)
    shifted[:, -1] = -100
    expect_equal_step(plain, patched, **batch, shift_labels=shifted)
    expect_equal_step(plain, patched, **batch, shift_labels=shifted, num_items_in_batch=7)


def check_all_labels_ignored(pair: Pair) -> None:
    """Mean is nan as upstream's, num_items gives 0; gradients are finite and 0."""
    plain, patched = pair.both()
    batch = pair.batch(ignored=13)
    loss, _, _ = step(plain, **batch)
    found, got, _ = step(patched, **batch)
    expect(bool(loss.isnan()) == bool(found.isnan()), f"mean over no labels: {float(found)}, upstream {float(loss)}")
    found, got, _ = step(patched, **batch, num_items_in_batch=3)
    expect(float(found) == 0, f"sum over no labels / 3 is {float(found)}")
    expect(all(not g.any() for g in got.values()), "gradients of a loss over no labels are not zero")


def check_tuple_output(pair: Pair) -> None:
    """return_dict=False: the same length, None in place of the logits."""
    plain, patched = pair.both()
    expected = plain(**pair.batch(), return_dict=False)
    found = patched(**pair.batch(), return_dict=False)
    expect(len(found) == len(expected), f"tuple of {len(found)}, upstream {len(expected)}")
    expect(found[1] is None, "position 1 is not None")
    expect_close(found[0].detach(), expected[0].detach(), "the loss")


def check_positional_labels(pair: Pair) -> None:
    """labels given by position."""
    plain, patched = pair.both()
    batch = pair.batch()
    names = [n for n in inspect.signature(plain.forward).parameters if n != "self"]
    arguments: list[Any] = [None] * (names.index("labels") + 1)
    arguments[0], arguments[-1] = batch["input_ids"], batch["labels"]
    try:
        expected = plain(*arguments).loss.detach()
    except TypeError:
        return  # upstream takes some of them by name alone (llava_next)
    expect_close(patched(*arguments).loss.detach(), expected, "the loss")
    expect(
        inspect.signature(patched.forward) == inspect.signature(plain.forward), "the signature of forward has changed"
    )


def check_logits_to_keep(pair: Pair) -> None:
    """An int and an index tensor, without labels and with labels that fit."""
    plain, patched = pair.both()
    batch = pair.batch()
    index = torch.tensor([0, 3], device=pair.device)
    for keep in (1, index):
        expected = plain(batch["input_ids"], logits_to_keep=keep).logits
        found = patched(batch["input_ids"], logits_to_keep=keep).logits
        expect_close(found, expected, "kept logits")
    labels = batch["labels"][:, -4:]
    expected = plain(batch["input_ids"], labels=labels, logits_to_keep=4).loss
    found = patched(batch["input_ids"], labels=labels, logits_to_keep=4).loss
    expect_close(found.detach(), expected.detach(), "the loss over kept positions")


def check_evaluation(pair: Pair) -> None:
    """Evaluation with and without labels: stock outputs; skip_logits leaves the logits out and keeps the loss."""
    plain, patched = pair.both()
    plain.eval(), patched.eval()
    batch = pair.batch()
    with torch.no_grad():
        expected, found = plain(**batch), patched(**batch)
        expect(list(found.keys()) == list(expected.keys()), f"keys {list(found)}, upstream {list(expected)}")
        expect_close(found.logits, expected.logits, "logits in evaluation")
        expect_close(found.loss, expected.loss, "the loss in evaluation")
        without, bare = patched(batch["input_ids"]), plain(batch["input_ids"])
        expect(list(without.keys()) == list(bare.keys()), "keys without labels differ")
        skipped = patched(**batch, skip_logits=True)
        expect(skipped.logits is None and not skipped.loss.requires_grad, "skip_logits=True returned logits")
        expect_close(skipped.loss, expected.loss, "the loss with skip_logits=True")
    try:
        patched(batch["input_ids"], skip_logits=True)
    except ValueError:
        return
    expect(False, "skip_logits=True without labels is not refused")


def check_skip_logits(pair: Pair) -> None:
    """True and False, in training and evaluation: keys, logits and loss."""
    plain, patched = pair.both()
    batch = pair.batch()
    for training in (True, False):
        plain.train(training), patched.train(training)
        with torch.no_grad():
            expected = plain(**batch)
            kept, skipped = patched(**batch, skip_logits=False), patched(**batch, skip_logits=True)
        expect(list(kept) == list(expected), f"keys {list(kept)} with skip_logits=False, upstream {list(expected)}")
        expect_close(kept.logits, expected.logits, "logits with skip_logits=False")
        without = [k for k in expected if k != "logits"]
        expect(skipped.logits is None and list(skipped) == without, f"keys {list(skipped)} with skip_logits=True")
        for out in (kept, skipped):
            expect_close(out.loss, expected.loss, "the loss")


def check_c22_evaluation_contract(pair: Pair) -> None:
    """Under no_grad: kept logits, generation, what compute_metrics gets, no gradient buffers, the loss of training."""
    plain, patched = pair.both()
    batch = pair.batch(tokens=9)
    trained = patched(**batch).loss.detach()
    plain.eval(), patched.eval()
    with torch.no_grad():
        for keep in (1, torch.tensor([0, 3], device=pair.device)):
            expected = plain(batch["input_ids"], logits_to_keep=keep).logits
            found = patched(batch["input_ids"], logits_to_keep=keep).logits
            expect_close(found, expected, f"logits_to_keep={keep}")
        made = [
            m.generate(batch["input_ids"], max_new_tokens=5, do_sample=False, pad_token_id=0) for m in (plain, patched)
        ]
        expect(torch.equal(*made), "greedy tokens differ")
        outputs = [m(**batch).to_tuple()[:2] for m in (plain, patched)]
        expect_close(outputs[1][1], outputs[0][1], "what compute_metrics gets")
        expect_close(patched(**batch, skip_logits=True).loss, trained, "the loss in evaluation")
        with largest_allocation() as backbone:
            plain.base_model(batch["input_ids"])
        with largest_allocation() as largest:
            patched(**batch, skip_logits=True)
    rows = batch["input_ids"].numel()
    weight = patched.get_output_embeddings().weight
    allowed = max(weight.numel(), rows * weight.shape[0] + 1, backbone() + 1)
    expect(largest() < allowed, "a gradient buffer of the head's size was made")


def check_logits_option(pair: Pair) -> None:
    """skip_logits=False and logits= in training."""
    plain, patched = pair.both()
    batch = pair.batch()
    expected = plain(**batch)
    for inputs in ({"skip_logits": False}, {"logits": "full"}, {"logits": "lazy"}):
        found = patched(**batch, **inputs)
        expect_close(found.logits.detach(), expected.logits.detach(), f"logits with {inputs}")
        expect_close(found["logits"].detach(), expected.logits.detach(), f"out['logits'] with {inputs}")
        expect_close(found.loss.detach(), expected.loss.detach(), f"the loss with {inputs}")
    wrong: list[dict[str, Any]] = [{"logits": "some"}, {"logits": "full", "skip_logits": True}]
    for refused in wrong:
        try:
            patched(**batch, **refused)
        except ValueError:
            continue
        expect(False, f"{refused} is not refused")


def check_token_accuracy(pair: Pair) -> None:
    """Without logits, with logits, in training and evaluation: the share of argmax hits."""
    plain, patched = pair.both()
    batch = pair.batch(tokens=40)
    with torch.no_grad():
        # train the labels towards the model's own guesses, or hardly any would be right
        best = plain(batch["input_ids"]).logits[:, :-1].argmax(-1)
        batch["labels"][:, 8:30] = best[:, 7:29]
        logits = plain(batch["input_ids"]).logits[:, :-1].argmax(-1)
    target = batch["labels"][:, 1:]
    kept = target != -100
    expected = ((logits == target) & kept).sum() / kept.sum()
    for training in (True, False):
        patched.train(training)
        for inputs in ({}, {"skip_logits": True}, {"logits": "full"}, {"logits": "lazy"}):
            out = patched(**batch, **inputs, return_token_accuracy=True)
            expect(
                abs(float(out.token_accuracy - expected)) < 1e-6, f"token accuracy {float(out.token_accuracy)} {inputs}"
            )
            expect(0.3 < float(expected) < 1, "the case shows nothing")
    expect("token_accuracy" not in patched(**batch), "token_accuracy is returned unasked")
    wrong: list[dict[str, Any]] = [{"return_dict": False, **batch}, {"input_ids": batch["input_ids"]}]
    for refused in wrong:
        try:
            patched(**refused, return_token_accuracy=True)
        except ValueError:
            continue
        expect(False, "token accuracy without a place or without labels is not refused")


def check_generate(pair: Pair) -> None:
    """Greedy tokens equal upstream's."""
    plain, patched = pair.both()
    plain.eval(), patched.eval()
    prompt = pair.batch()["input_ids"][:, :4]
    made = [m.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0) for m in (plain, patched)]
    expect(torch.equal(*made), f"generated {made[1].tolist()}, upstream {made[0].tolist()}")


# -- Things that must not be disturbed ---------------------------------------------------------------------------------
def check_classes_and_state(pair: Pair) -> None:
    """isinstance, names, state_dict keys, repr."""
    plain, patched = pair.both()
    expect(list(plain.state_dict()) == list(patched.state_dict()), "state_dict keys differ")
    expect(repr(plain) == repr(patched), "repr differs")
    for (path, a), (_, b) in zip(plain.named_modules(), patched.named_modules(), strict=True):
        expect(isinstance(b, type(a)) and type(a).__qualname__ == type(b).__qualname__, f"class of {path} differs")


def check_hooks(pair: Pair) -> None:
    """Forward, pre- and backward hooks on every module fire as often as upstream's."""
    backward = True
    try:
        expected = _count_hooks(pair.plain(), pair, backward)
    except RuntimeError:  # upstream writes into the output of a module (llama4): autograd forbids that under such hooks
        backward = False
        expected = _count_hooks(pair.plain(), pair, backward)
    found = _count_hooks(pair.both()[1], pair, backward)
    expect(expected == found, f"hooks fired differently: {(expected - found) + (found - expected)}")


def _count_hooks(model: Any, pair: Pair, backward: bool) -> Counter[str]:
    fired: Counter[str] = Counter()
    for path, module in model.named_modules():
        if type(module).__name__.endswith(("RMSNorm", "MLP", "Attention", "Linear")):
            module.register_forward_pre_hook(lambda *a, p=path: fired.update([f"pre {p}"]))
            module.register_forward_hook(lambda *a, p=path: fired.update([f"post {p}"]))
            if backward:
                module.register_full_backward_hook(lambda *a, p=path: fired.update([f"back {p}"]))
    step(model, **pair.batch())
    return fired


def check_copies(pair: Pair) -> None:
    """A deepcopy and an unpickled copy are patched and independent; save_pretrained loads as an unpatched model."""
    plain, patched = pair.both()
    for what, model in deep_copies(patched).items():
        expect(liger.is_patched(model), f"{what} is not patched")
        expect_equal_step(plain, model, **pair.batch())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        patched.save_pretrained(folder)
        loaded = type(plain).from_pretrained(folder).to(pair.device).train()
    expect(not liger.is_patched(loaded), "a loaded checkpoint is patched")
    expect_equal_step(loaded, patched, **pair.batch())


def check_undo(pair: Pair) -> None:
    """After unpatch everything is identical to the snapshot before; also for a deepcopy and an unpickled copy."""
    model = pair.plain()
    step(model, **pair.batch())  # transformers installs capture hooks at the first forward
    before, shape = snapshot(model), snapshot(model, identities=False)
    liger.autopatch(model)
    step(model, **pair.batch())
    for what, copied in deep_copies(model).items():
        liger.unpatch(copied)
        if copied is model:
            expect_unchanged(before, snapshot(copied), f"undo of {what}")
        expect_unchanged(shape, snapshot(copied, identities=False), f"undo of {what}")
        expect_equal_step(pair.plain(), copied, 0.0, **pair.batch())


def check_patch_again(pair: Pair) -> None:
    """Equal options: a no-op that says so. Other options: AlreadyPatched. Nothing changes either way."""
    model = pair.plain()
    liger.autopatch(model)
    before = snapshot(model)
    report = liger.autopatch(model)
    left = [row for row in report.rows if not row.idle and "already" not in row.reason]
    expect(not report.applied and not left, f"patched twice: {report}")
    try:
        liger.autopatch(model, prefer="reference")
    except AlreadyPatched:
        expect_unchanged(before, snapshot(model), "patching again")
        return
    expect(False, "patching with other options is not refused")


def check_other_models_untouched(pair: Pair) -> None:
    """A second model of the same type, before and after, is not affected."""
    bystander = pair.plain(seed=3)
    step(bystander, **pair.batch())
    before = snapshot(bystander)
    _, patched = pair.both()
    step(patched, **pair.batch())
    expect_unchanged(before, snapshot(bystander), "an unpatched model")
    expect(not liger.is_patched(bystander) and not liger.is_patched(pair.plain()), "another model is patched")


def check_failure_leaves_nothing(pair: Pair) -> None:
    """An error in the middle of patching leaves the model as it was."""
    from liger import patch

    model = pair.plain()
    step(model, **pair.batch())
    before = snapshot(model)
    real, calls = patch._swap, Counter[str]()

    def failing(action: Any) -> Any:
        calls["swap"] += 1
        if calls["swap"] == 4:
            raise LigerError("planted")
        return real(action)

    patch._swap = failing
    try:
        liger.autopatch(model)
    except LigerError:
        expect_unchanged(before, snapshot(model), "a patch that failed")
    else:
        expect(False, "the planted error did not surface")
    finally:
        patch._swap = real


def check_resume(pair: Pair) -> None:
    """Saved while patched and resumed unpatched, and the reverse, optimiser state included: one trajectory."""
    finals = []
    for first, second in ((False, True), (True, False), (False, False)):
        model, state = _train(pair.plain(), first, None, pair)
        resumed = pair.plain(seed=9)
        resumed.load_state_dict(model.state_dict())
        finals.append(_train(resumed, second, state, pair)[0].state_dict())
    for name, expected in finals[2].items():
        for final in finals[:2]:
            expect_close(final[name], expected, f"{name} after resuming", 1e-4)


def _train(model: Any, patched: bool, state: Any, pair: Pair) -> tuple[Any, Any]:
    if patched:
        liger.autopatch(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, eps=1e-4
    )  # a large eps, or noise in tiny gradients is amplified
    if state is not None:
        optimizer.load_state_dict(state)
    for seed in range(3):
        step(model, **pair.batch(seed=seed))
        optimizer.step()
    return model, optimizer.state_dict()


# -- torch.compile -----------------------------------------------------------------------------------------------------
def check_compile_eager(pair: Pair) -> None:
    """fullgraph on the eager backend, no more graphs than upstream."""
    _compile(pair, "eager")


def check_compile_aot_eager(pair: Pair) -> None:
    """fullgraph on the aot_eager backend, no more graphs than upstream."""
    _compile(pair, "aot_eager")


def _compile(pair: Pair, backend: str) -> None:
    batches = [pair.batch(tokens=n) for n in (11, 11, 13, 9)]  # the same length twice, then two new ones
    graphs = []
    steps = []
    for model in pair.both():
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        try:
            with count_graphs() as count:
                steps.append([step(compiled, **b)[:2] for b in batches])
        except Exception:
            if steps:
                raise
            return  # upstream itself does not compile with this backend: nothing to compare with
        graphs.append(count())
    for (loss, wanted), (found, got) in zip(*steps, strict=True):
        expect_close(found, loss, "the compiled loss")
        expect_close_gradients(got, wanted, "the compiled gradient")
    expect(0 < graphs[1] <= graphs[0], f"{graphs[1]} graphs, upstream needs {graphs[0]}")
