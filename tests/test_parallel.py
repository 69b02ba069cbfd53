"""Models inside the wrappers of two processes: loss and gradients are those of one process with all rows."""

import contextlib
import functools
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

import liger
from liger.errors import KernelUnavailable, UnpatchConflict, WrongOrder
from liger.testing import count_ops
from liger.testing.kernels import in_part
from liger.testing.models import Pair, expect_close, expect_close_gradients, find, gradients, step
from liger.testing.ranks import Found, Rank, run_ranks

pytestmark = pytest.mark.xdist_group("parallel")
ROWS = 4
CASES = {}


def case(name, *args, slow=False, **kwargs):
    """Add a call of the function below, with the rank first; a slow one is left out of most runs of a plain `nox`."""

    def add(function):
        if not slow or in_part(name):
            CASES[name] = lambda rank: function(rank, *args, **kwargs)
        return function

    return add


# -- What one process has ----------------------------------------------------------------------------------------------
class Work:
    """A model to patch and to wrap, this rank's rows, and loss and gradients of a plain model with all rows."""

    def __init__(self, rank: Rank, model_type="llama", **config):
        self.rank, self.pair = rank, Pair(find(model_type), rank.device)
        self.batch = self.pair.batch(rows=ROWS)
        self.loss, self.gradients, _ = step(self.pair.plain(**config), **self.batch)
        self.model = self.pair.plain(**config)
        self.mine = {name: t.chunk(rank.ranks)[rank.rank] for name, t in self.batch.items()}
        self.mesh = init_device_mesh(torch.device(rank.device).type, (rank.ranks,), mesh_dim_names=("tp",))

    def check(self, model, batch=None, fused="linear_cross_entropy", **inputs):
        """One step of the wrapped model; the loss is the mean over the ranks."""
        with count_ops() as counts:
            loss, found, out = step(model, **(self.mine if batch is None else batch), **inputs)
        self.compare(loss, found)
        ops = Counter()
        for (op, _), number in counts.items():
            ops[op] += number
        assert bool(ops[fused]) == (out.logits is None), (ops, out.logits)
        assert fused is None or out.logits is None
        return ops

    def compare(self, loss, found, relative=1e-5):
        loss = whole(loss.detach()).clone()
        dist.all_reduce(loss)
        expect_close(loss / self.rank.ranks, self.loss, "the loss", relative)
        self.compare_gradients(found, relative)

    def compare_gradients(self, found, relative=1e-5):
        found = {plain_name(name): whole(gradient) for name, gradient in found.items()}
        assert found.keys() == self.gradients.keys()
        expect_close_gradients(found, self.gradients, "the gradient", relative)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def plain_name(name):
    """Without the parts that wrappers add."""
    return re.sub(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module)\.", "", name)


# -- DDP ---------------------------------------------------------------------------------------------------------------
@case("ddp: patched before")
@case("ddp: patched after", order="after")
@case("ddp: find_unused_parameters", find_unused_parameters=True)
@case("ddp: static_graph", static_graph=True)
@case("ddp: gradient checkpointing", checkpoint=True)
@case("ddp: tied", tied=True)
@case("ddp: gemma2", model_type="gemma2")
def ddp(rank, order="before", checkpoint=False, tied=False, model_type="llama", **options):
    work = Work(rank, model_type, tie_word_embeddings=tied)
    if order == "before":
        liger.autopatch(work.model, strict=True)
    if checkpoint:
        work.model.gradient_checkpointing_enable({"use_reentrant": False})
    wrapped = nn.parallel.DistributedDataParallel(work.model, **options)
    if order == "after":
        liger.autopatch(wrapped, strict=True)
    work.check(wrapped)
    if order == "after":
        liger.unpatch(wrapped)
        work.check(wrapped, fused=None)


@case("ddp: accumulated, with num_items_in_batch and uneven labels")
def accumulated(rank):
    """Two micro-batches in each process; the ranks have different numbers of labels."""
    work = Work(rank)
    work.batch["labels"][0, :9] = -100
    items = (work.batch["labels"][:, 1:] != -100).sum()
    work.loss, work.gradients, _ = step(work.pair.plain(), **work.batch, num_items_in_batch=items)
    liger.autopatch(work.model, strict=True)
    wrapped = nn.parallel.DistributedDataParallel(work.model)
    total = torch.zeros((), device=rank.device)
    for at, rows in enumerate(zip(*(t.split(1) for t in work.mine.values()), strict=True)):
        with wrapped.no_sync() if at == 0 else contextlib.nullcontext():
            loss = wrapped(**dict(zip(work.mine, rows, strict=True)), num_items_in_batch=items).loss * rank.ranks
            loss.backward()  # DDP takes the mean over the ranks, so each of them sums for all
        total += loss.detach()
    work.compare(total, gradients(wrapped))


# -- FSDP2 -------------------------------------------------------------------------------------------------------------
UNITS = {
    "root": lambda model: [],
    "layers": lambda model: list(model.model.layers),
    "own": lambda model: [*model.model.layers, model.lm_head],
    "head": lambda model: [model.lm_head],
    "every norm and projection": lambda model: [
        *(m for m in model.modules() if not list(m.children()) and list(m.parameters())),
        *model.model.layers,
    ],
    "with embeddings": lambda model: [[model.model.embed_tokens, model.lm_head]],
}


def shard(model, units, mesh, **options):
    for unit in UNITS[units](model):
        fully_shard(unit, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@case("fsdp2: root")
@case("fsdp2: layers", "layers")
@case("fsdp2: head in its own unit", "own")
@case("fsdp2: head alone", "head")
@case("fsdp2: every norm and projection", "every norm and projection")
@case("fsdp2: tied, root", "root", tied=True)
@case("fsdp2: tied, layers", "layers", tied=True)
@case("fsdp2: tied, head and embeddings in one unit", "with embeddings", tied=True)
@case("fsdp2: kept whole after forward", "own", reshard_after_forward=False)
@case("fsdp2: gradient checkpointing", "layers", checkpoint=True)
@case("fsdp2: gemma2", "layers", model_type="gemma2")
def fsdp2(rank, units="root", tied=False, checkpoint=False, model_type="llama", **options):
    work = Work(rank, model_type, tie_word_embeddings=tied)
    liger.autopatch(work.model, strict=True)
    if checkpoint:
        work.model.gradient_checkpointing_enable({"use_reentrant": False})
    work.check(shard(work.model, units, work.mesh, **options))
    assert liger.supports(work.model, "fused_loss")


@case("fsdp2: replicated on one dimension of the mesh")
def hybrid(rank):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    work.check(
        shard(work.model, "own", init_device_mesh(work.mesh.device_type, (1, rank.ranks), mesh_dim_names=("a", "b")))
    )


@case("fsdp2: mixed precision", "layers")
@case("fsdp2: mixed precision, head in its own unit", "own")
@case("fsdp2: mixed precision, outputs too", "own", output_dtype=torch.bfloat16)
def mixed_precision(rank, units, **options):
    """Beside an unpatched model under the same policy: ours differ from fp32 by no more than twice as much."""
    work, errors = Work(rank), []
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **options)
    for patched in (False, True):
        model = work.pair.plain()
        if patched:
            liger.autopatch(model, strict=True)
        loss, found, out = step(shard(model, units, work.mesh, mp_policy=policy), **work.mine)
        assert (out.logits is None) == patched
        loss = loss.float()
        dist.all_reduce(loss)
        errors.append([float((loss / rank.ranks - work.loss).abs() / work.loss)])
        for name, wanted in work.gradients.items():
            errors[-1].append(float((whole(found[name]) - wanted).norm() / wanted.norm()))
    ours, theirs = torch.tensor(errors[1]), torch.tensor(errors[0])
    assert (ours <= 2 * theirs + 2**-8).all(), (ours / theirs).max()  # 2^-8: the loss is rounded to bf16 in one place


@case("fsdp2: mixed precision rounds no integer")
def items_under_mixed_precision(rank):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    shard(work.model, "own", work.mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    losses = [work.model(**work.mine, num_items_in_batch=n).loss for n in (1001, torch.tensor(1001))]
    assert losses[0].item() == losses[1].item()


@case("fsdp2: meta, patched, sharded, to_empty")
def meta(rank):
    work = Work(rank)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(work.model.config).train()
    liger.autopatch(model, strict=True)
    shard(model, "own", work.mesh).to_empty(device=rank.device)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, work.model.state_dict(), options=StateDictOptions(full_state_dict=True))
    for (_, found), (_, wanted) in zip(model.named_buffers(), work.model.named_buffers(), strict=True):
        found.copy_(wanted)  # those of RoPE are in no state_dict
    work.check(model)


@case("fsdp2: accumulated")
def fsdp2_accumulated(rank):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    model = shard(work.model, "own", work.mesh)
    total = torch.zeros((), device=rank.device)
    for at, rows in enumerate(zip(*(t.split(1) for t in work.mine.values()), strict=True)):
        model.set_requires_gradient_sync(at == 1)
        loss = model(**dict(zip(work.mine, rows, strict=True))).loss / 2
        loss.backward()
        total += loss.detach()
    work.compare(total, gradients(model))


@case("peft, ddp", "ddp")
@case("peft, fsdp2", "fsdp2")
def peft(rank, wrapper):
    """LoRA on projections, and copies of head and norm that train, patched afterwards; the originals are frozen."""
    from peft import LoraConfig, get_peft_model

    work = Work(rank)
    lora = {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"], "init_lora_weights": False}
    models = []
    for model in (work.pair.plain(), work.model):
        torch.manual_seed(5)
        models.append(get_peft_model(model, LoraConfig(**lora)).train())
    work.loss, work.gradients, _ = step(models[0], **work.batch)
    liger.autopatch(models[1], strict=True)
    if wrapper == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(models[1])
        found = work.check(wrapped)
    else:
        for layer in work.model.model.layers:
            fully_shard(layer, mesh=work.mesh)
        wrapped = fully_shard(models[1], mesh=work.mesh)
        found = work.check(wrapped)
    assert found["rms_norm"] == 5


@case("marked before construction: ddp", "ddp")
@case("marked before construction: tp_plan", "tp_plan")
@case("marked before construction: fsdp2", "fsdp2")
def marked(rank, wrapper):
    """Patched at the first forward, as late as that is: what cannot work then says so before it computes anything."""
    work = Work(rank)
    marks = liger.autopatch("llama")
    model = work.pair.plain()
    marks.revert()
    if wrapper == "ddp":
        work.check(nn.parallel.DistributedDataParallel(model))
    elif wrapper == "tp_plan":
        apply_plan(model, work.mesh)
        work.check(model, work.batch, fused=PARALLEL)
    else:
        shard(model, "layers", work.mesh)
        with pytest.raises(WrongOrder, match="patch before fully_shard"):
            model(**work.mine)


@case("three steps: ddp")
@case("three steps: fsdp2", "layers")
@case("three steps: fsdp2, head in its own unit", "own")
def steps(rank, units=None):
    """Parameters after three steps of SGD, and evaluation without logits after them."""
    work = Work(rank)
    plain = work.pair.plain()
    liger.autopatch(work.model, strict=True)
    wrapped = nn.parallel.DistributedDataParallel(work.model) if units is None else shard(work.model, units, work.mesh)
    for model, batch in ((plain, work.batch), (wrapped, work.mine)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(3):
            step(model, **batch)
            optimizer.step()
    for name, wanted in plain.named_parameters():
        expect_close(whole(work.model.get_parameter(name)).detach(), wanted.detach(), name)
    wrapped.eval()
    with torch.no_grad():
        out = wrapped(**work.mine, skip_logits=True)
        assert out.logits is None
        dist.all_reduce(out.loss)
        expect_close(out.loss / rank.ranks, plain(**work.batch).loss, "the loss of evaluation")
        expect_close(wrapped(**work.mine).logits, plain(**work.mine).logits, "logits")


@case("logits when they are read: ddp")
@case("logits when they are read: fsdp2", "layers")
@case("logits when they are read: fsdp2, head in its own unit", "own")
def lazy(rank, units=None):
    """Before the backward and after it, which takes weights away."""
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    wrapped = nn.parallel.DistributedDataParallel(work.model) if units is None else shard(work.model, units, work.mesh)
    wanted = work.pair.plain()(**work.mine).logits.detach()
    out = wrapped(**work.mine, logits="lazy")
    expect_close(out.logits.detach(), wanted, "logits")
    out.loss.backward()
    out = wrapped(**work.mine, logits="lazy")
    out.loss.backward()
    expect_close(out.logits.detach(), wanted, "logits")


# -- torch.compile around or inside ------------------------------------------------------------------------------------
@case("ddp: compiled", slow=True)
@case("fsdp2: compiled, root", "root")
@case("fsdp2: compiled, head in its own unit", "own", slow=True)
def compiled(rank, units=None):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    wrapped = nn.parallel.DistributedDataParallel(work.model) if units is None else shard(work.model, units, work.mesh)
    model = torch.compile(wrapped, backend="aot_eager")
    work.check(model)
    work.check(model)


# -- FSDP1 -------------------------------------------------------------------------------------------------------------
@case("fsdp1: root", "root")
@case("fsdp1: layers", "layers")
@case("fsdp1: layers, flat parameters", "layers", use_orig_params=False)
@case("fsdp1: head in its own unit", "head")
def fsdp1(rank, units, use_orig_params=True):
    """Gradients are read off one step of SGD, for a flat parameter has one for all."""
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    policies = {
        "root": None,
        "layers": ModuleWrapPolicy({type(work.model.model.layers[0])}),
        "head": functools.partial(_is, work.model.lm_head),
    }
    wrapped = FullyShardedDataParallel(
        work.model,
        auto_wrap_policy=policies[units],
        use_orig_params=use_orig_params,
        device_id=torch.device(rank.device),
    )
    with FullyShardedDataParallel.summon_full_params(wrapped):
        before = {plain_name(n): p.detach().clone() for n, p in wrapped.named_parameters()}
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e3)
    loss, _, out = step(wrapped, **work.mine)
    assert (out.logits is None) == (units != "head")
    assert liger.supports(work.model, "fused_loss") == (units != "head")
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(wrapped):
        after = {plain_name(n): p.detach().clone() for n, p in wrapped.named_parameters()}
    work.compare(loss, {name: (before[name] - after[name]) / 1e3 for name in before})


def _is(wanted, module, recurse, nonwrapped_numel):
    return recurse or module is wanted


# -- Tensor parallelism ------------------------------------------------------------------------------------------------
def apply_plan(model, mesh):
    """transformers' own plan of a model, as ``from_pretrained(tp_plan="auto")`` applies it."""
    plan, names = model.tp_plan, [n for n, _ in model.named_modules()] + [n for n, _ in model.named_parameters()]
    keys = {name: re.sub(r"\d+", "*", name) for name in names}
    styles = {name: plan.get(key) or plan.get(key.rpartition(".")[0]) for name, key in keys.items()}
    split = {name for name, _ in model.named_parameters()}
    chosen = {n: s for n, s in styles.items() if s and (n in split or keys[n] in plan)}
    apply_tensor_parallelism(model, mesh, chosen)
    model.tie_weights()


PARALLEL = "vocab_parallel_linear_cross_entropy"


@case("tp_plan: patched before")
@case("tp_plan: patched after", order="after")
@case("tp_plan: gemma2", model_type="gemma2", num_key_value_heads=2)
@case("tp_plan: qwen3, with norms of heads", model_type="qwen3")
@case("tp_plan: qwen3, patched after", order="after", model_type="qwen3")
@case("tp_plan: phi3, with gate and up in one projection", model_type="phi3", num_key_value_heads=4)
@case("tp_plan: qwen3_moe", model_type="qwen3_moe")
@case("tp_plan: an odd vocabulary", vocab_size=257)
@case("tp_plan: options reach the op of the ranks", options={"workspace_mb": 0.01})
def tp_plan(rank, order="before", model_type="llama", options=None, **config):
    work = Work(rank, model_type, **config)
    choices = {"options": {"linear_cross_entropy": options}} if options else {}
    if order == "before":
        liger.autopatch(work.model, strict=True, **choices)
    apply_plan(work.model, work.mesh)
    if order == "after":
        liger.autopatch(work.model, strict=True, **choices)
    ops = work.check(work.model, work.batch, fused=PARALLEL)
    assert sum(ops.values()) == sum(type(m).__name__.endswith("Norm") for m in work.model.modules()) + 2 * 2 + 1
    out = work.model(**work.batch, logits="full")
    expect_close(out.loss.detach(), work.loss, "the loss with logits")
    accuracy = work.model(**work.batch, return_token_accuracy=True).token_accuracy
    expect_close(accuracy, work.pair.both(**config)[1](**work.batch, return_token_accuracy=True).token_accuracy, "it")
    liger.unpatch(work.model)
    assert not liger.is_patched(work.model)
    work.check(work.model, work.batch, fused=None)


# -- What transformers shares out while it loads -----------------------------------------------------------------------
def load(work, **config):
    """The same model from a folder that all ranks read."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    if work.rank.rank == 0:
        work.model.save_pretrained(folder[0])
    dist.barrier()
    kwargs = {"distributed_config": DistributedConfig(**config)} if config else {"tp_plan": "auto"}
    return AutoModelForCausalLM.from_pretrained(folder[0], dtype=torch.float32, **kwargs).train()


@case("from_pretrained: tp_plan='auto'")
@case("from_pretrained: tp_plan='auto', gemma2", model_type="gemma2")
@case("from_pretrained: sequence parallelism", tp_size=2, enable_sequence_parallel=True)
@case("from_pretrained: tp_plan='auto', qwen3", model_type="qwen3")
@case("from_pretrained: expert parallelism", ("Qwen3MoeExperts",), model_type="qwen3_moe", tp_size=2, ep_size=2)
def loaded(rank, left=(), model_type="llama", **config):
    work = Work(rank, model_type, num_key_value_heads=2)
    model = load(work, **config)
    assert tuple(row.cls for row in liger.autopatch(model).skipped) == left
    work.check(model, work.batch, fused=PARALLEL)


@case("from_pretrained: stages, which have no loss", pp_size=2)
def loaded_stages(rank, **config):
    work = Work(rank)
    model = load(work, **config)
    report = liger.autopatch(model)
    assert Counter(r.op for r in report.applied) == {"rope": 1, "silu_mul": 1, "rms_norm": 2 + rank.rank}
    with torch.no_grad():
        ids = work.batch["input_ids"]
        expect_close(model(input_ids=ids).logits, work.model(input_ids=ids).logits, "logits")


@case("from_pretrained: fsdp", fsdp_size=2)
def loaded_sharded(rank, **config):
    with pytest.raises(WrongOrder, match="patch before fully_shard"):
        liger.autopatch(load(Work(rank), **config))


# -- torch's own plans -------------------------------------------------------------------------------------------------
@case("parallelize_module: patched before")
@case("parallelize_module: patched after", order="after")
@case("parallelize_module: logits stay split", layout=Shard(-1))
@case("parallelize_module: kernels chosen by with", chosen=True)
def torch_plan(rank, order="before", layout=None, chosen=False):
    work = Work(rank)
    if order == "before":
        liger.autopatch(work.model, strict=True)
    head = ColwiseParallel(output_layouts=layout or Replicate(), use_local_output=layout is None)
    plan = {"lm_head": head, "model.layers.*.mlp.down_proj": RowwiseParallel()}
    plan |= {f"model.layers.*.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    parallelize_module(work.model, work.mesh, plan)
    if order == "after":
        liger.autopatch(work.model, strict=True)
    choice = liger.prefer({"linear_cross_entropy": "reference"}) if chosen else contextlib.nullcontext()
    with choice, count_ops() as counts:
        loss, found, _ = step(work.model, **work.batch)
    work.compare(loss, found)
    assert counts[PARALLEL, "reference" if chosen else "torch"] == 1


@case("parallelize_module: activations stay DTensors")
def dtensors(rank):
    """Kernels read memory, so outside of norms the reference computes with them; a kernel chosen by hand says so."""
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    plan = {"model.layers.*.mlp.down_proj": RowwiseParallel()}
    plan |= {f"model.layers.*.mlp.{name}_proj": ColwiseParallel(use_local_output=False) for name in ("gate", "up")}
    parallelize_module(work.model, work.mesh, plan)
    work.check(work.model, work.batch)
    gate, x = DTensor.from_local(torch.randn(3, 4, device=rank.device), work.mesh, [Shard(1)]), torch.randn(3, 8)
    assert torch.equal(
        liger.ops.silu_mul(gate, gate).to_local(), liger.ops.silu_mul(*[gate.to_local()] * 2, kernel="reference")
    )
    with pytest.raises(KernelUnavailable, match="silu_mul: kernel 'triton' takes no DTensors"):
        liger.ops.silu_mul(gate, gate, kernel="triton")
    with pytest.raises(ValueError, match=r"silu_mul: tensors \[0\] of 2 are DTensors, and others are not"):
        liger.ops.silu_mul(gate, x.to(rank.device))
    weight = DTensor.from_local(torch.randn(5, 8, device=rank.device), work.mesh, [Shard(0)])
    with pytest.raises(ValueError, match=r"linear_cross_entropy: tensors \[1\] of 3 .* in the forward of its model"):
        liger.ops.linear_cross_entropy(x.to(weight), weight, torch.zeros(3, dtype=torch.long, device=rank.device))


@case("parallelize_module: compiled", slow=True)
def torch_plan_compiled(rank):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    parallelize_module(work.model, work.mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    model = torch.compile(work.model, backend="aot_eager")
    work.check(model, work.batch, fused=PARALLEL)
    work.check(model, work.batch, fused=PARALLEL)


@case("parallelize_module: tokens shared out between the layers")
def sequence_parallel(rank):
    """The head gets a DTensor that is split by tokens, and norms compute where they are."""
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    work.model.model.norm.register_forward_pre_hook(functools.partial(by_tokens, work.mesh))
    norm = SequenceParallel()
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(work.model, work.mesh, {"model.norm": norm, "lm_head": head})
    with count_ops() as counts:
        loss, found, _ = step(work.model, **{n: t[:, :12] for n, t in work.batch.items()})
    short = {n: t[:, :12] for n, t in work.batch.items()}
    work.loss, work.gradients, _ = step(work.pair.plain(), **short)
    work.compare(loss, found)
    assert counts[PARALLEL, "torch"] == 1


def by_tokens(mesh, module, args):
    return (DTensor.from_local(args[0], mesh, [Replicate()]).redistribute(placements=[Shard(1)]),)


@case("parallelize_module: a head split by hidden size has real logits")
def rowwise_head(rank):
    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    parallelize_module(work.model, work.mesh, {"lm_head": RowwiseParallel(input_layouts=Replicate())})
    work.check(work.model, work.batch, fused=None)
    late = work.pair.plain()
    parallelize_module(late, work.mesh, {"lm_head": RowwiseParallel(input_layouts=Replicate())})
    (row,) = liger.autopatch(late).skipped
    assert row.op == "linear_cross_entropy" and "real logits" in row.reason


@case("fsdp2 over tensor parallelism", "layers", PARALLEL)
@case("fsdp2 over tensor parallelism, head in its own unit: real logits", "own", None)
def two_dimensions(rank, units, fused):
    work = Work(rank)
    mesh = init_device_mesh(work.mesh.device_type, (1, rank.ranks), mesh_dim_names=("dp", "tp"))
    liger.autopatch(work.model, strict=True)
    parallelize_module(work.model, mesh["tp"], {"lm_head": ColwiseParallel(output_layouts=Replicate())})
    shard(work.model, units, mesh["dp"])
    work.check(work.model, work.batch, fused=fused)


# -- Tokens on several ranks -------------------------------------------------------------------------------------------
class Gather(torch.autograd.Function):
    """Keys or values (B, N, T, D) of all ranks, joined along T."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()
        dist.all_reduce(dy)
        return dy.chunk(dist.get_world_size(), 2)[dist.get_rank()]


def attend(module, query, key, value, attention_mask, scaling, **kwargs):
    """Causal attention of this rank's tokens over those of all ranks."""
    key, value = Gather.apply(key), Gather.apply(value)
    at = torch.arange(key.shape[2], device=key.device)
    mask = at[None] <= at.chunk(dist.get_world_size())[dist.get_rank()][:, None]
    out = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


@case("tokens on several ranks, with shift_labels")
@case("tokens on several ranks, gemma2 without its cap of scores", model_type="gemma2", attn_logit_softcapping=None)
def context_parallel(rank, model_type="llama", **config):
    work = Work(rank, model_type, **config)
    tokens = {n: t[:, :12] for n, t in work.batch.items()}
    labels = nn.functional.pad(tokens["labels"], (0, 1), value=-100)[:, 1:]
    items = int((labels != -100).sum())
    work.loss, work.gradients, _ = step(work.pair.plain(**config), **tokens, num_items_in_batch=items)
    liger.autopatch(work.model, strict=True)
    AttentionInterface.register("ranks", attend)
    work.model.config._attn_implementation = "ranks"
    ids, shift, positions = (
        t.chunk(rank.ranks, 1)[rank.rank].contiguous() for t in (tokens["input_ids"], labels, torch.arange(12)[None])
    )
    loss, found, out = step(
        work.model,
        input_ids=ids,
        labels=torch.full_like(ids, 7),  # wrong on purpose: shift_labels beat them
        shift_labels=shift,
        position_ids=positions.to(ids.device),
        num_items_in_batch=items,
    )
    assert out.logits is None
    for gradient in found.values():
        dist.all_reduce(gradient)
    work.compare(loss * rank.ranks, found)


# -- Stages of a pipeline ----------------------------------------------------------------------------------------------
class Stage(nn.Module):
    """A layer, with what comes before the first or after the last; no model around it, and the loss outside."""

    def __init__(self, model, last):
        super().__init__()
        self.layers = nn.ModuleList([model.model.layers[last]])
        self.embed_tokens = None if last else model.model.embed_tokens
        self.norm, self.lm_head = (model.model.norm, model.lm_head) if last else (None, None)

    def forward(self, x, tables):
        x = x if self.embed_tokens is None else self.embed_tokens(x)
        for layer in self.layers:
            x = layer(x, position_embeddings=tables, attention_mask=None)
        return x if self.norm is None else self.lm_head(self.norm(x))


@case("stages of a pipeline")
@case("stages of a pipeline, of a type that is recognised", model_type="helium")
def stages(rank, model_type="llama"):
    work, last = Work(rank), rank.rank == 1
    if model_type == "helium":
        recognised(work)
    stage = Stage(work.model, last)
    report = liger.autopatch(stage, strict=True)
    assert Counter(r.op for r in report.applied) == {"rope": 1, "silu_mul": 1, "rms_norm": 3 if last else 2}
    ids, labels = work.batch.values()
    tables = work.model.model.rotary_emb(torch.zeros(1, device=ids.device), torch.arange(ids.shape[1])[None].to(ids))
    loss = torch.zeros((), device=ids.device)
    if last:
        hidden = torch.empty(*ids.shape, work.model.config.hidden_size, device=ids.device)
        dist.recv(hidden, 0)
        logits = stage(hidden.requires_grad_(), tables)
        loss = work.model.loss_function(logits, labels, logits.shape[-1])
        loss.backward()
        dist.send(hidden.grad, 0)
    else:
        out = stage(ids, tables)
        dist.send(out.detach(), 1)
        dist.recv(gradient := torch.empty_like(out), 1)
        out.backward(gradient)
    found = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in work.model.named_parameters()}
    for gradient in found.values():
        dist.all_reduce(gradient)
    work.compare(loss * 2, found)


def recognised(work):
    """Give the work a model of a type that no package declares."""
    from transformers import HeliumConfig

    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    config = HeliumConfig(**small, num_attention_heads=4, num_key_value_heads=2)
    work.model = AutoModelForCausalLM.from_config(config).to(work.rank.device).train()
    work.loss, work.gradients, _ = step(work.model, **work.batch)
    work.model.zero_grad()


# -- accelerate --------------------------------------------------------------------------------------------------------
@case("accelerate: patched before prepare")
@case("accelerate: patched after prepare", order="after")
def accelerate(rank, order="before"):
    from accelerate import Accelerator

    work = Work(rank)
    accelerator = Accelerator(cpu=rank.device == "cpu")
    assert accelerator.num_processes == rank.ranks
    if order == "before":
        liger.autopatch(work.model, strict=True)
    wrapped, _ = accelerator.prepare(work.model, torch.optim.SGD(work.model.parameters(), lr=0.1))
    if order == "after":
        liger.autopatch(wrapped, strict=True)
    work.check(wrapped)
    inner = accelerator.unwrap_model(wrapped)
    assert inner is work.model and liger.is_patched(inner)
    liger.unpatch(wrapped)
    assert not liger.is_patched(inner)


@case("accelerate: FSDP plugin", 2)
@case("accelerate: FSDP1 plugin", 1)
def accelerate_fsdp(rank, version):
    if rank.device == "cpu":
        return  # accelerate uses no FSDP there
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    work = Work(rank)
    AcceleratorState._reset_state(True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        use_orig_params=True if version == 1 else None,
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    liger.autopatch(work.model, strict=True)
    wrapped, _ = accelerator.prepare(work.model, torch.optim.SGD(work.model.parameters(), lr=0.1))
    loss, found, out = step(wrapped, **work.mine)
    assert out.logits is None
    if version == 2:
        work.compare(loss, found)
    AcceleratorState._reset_state(True)


@case("Trainer(use_liger_kernel=True)")
def trainer(rank):
    """Accumulated batches with different numbers of labels on each process, as without Liger on the same two."""
    from transformers import Trainer, TrainingArguments

    work, runs = Work(rank), []
    labels = work.batch["labels"].repeat(4, 1)
    rows = [{"input_ids": ids, "labels": row} for ids, row in zip(labels.clamp_min(3), labels, strict=True)]
    for at, row in enumerate(rows):
        row["labels"][: at % 5] = -100
    for use in (True, False):
        arguments = TrainingArguments(
            tempfile.mkdtemp(),
            use_liger_kernel=use,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            max_steps=3,
            logging_steps=1,
            learning_rate=0.1,
            optim="sgd",
            use_cpu=rank.device == "cpu",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        run = Trainer(work.pair.plain(), arguments, train_dataset=rows)
        run.train()
        log = [(entry["loss"], entry["grad_norm"]) for entry in run.state.log_history if "loss" in entry]
        runs.append({"log": torch.tensor(log), **dict(run.model.named_parameters())})
        assert run.accelerator.num_processes == rank.ranks and liger.is_patched(run.model) == use
    assert runs[1]["log"].shape == (3, 2)
    for name, wanted in runs[1].items():
        expect_close(runs[0][name].detach(), wanted.detach(), name)


# -- The page ----------------------------------------------------------------------------------------------------------
PAGE = Path(__file__).resolve().parent.parent / "docs" / "distributed.md"
FIRST, *RECIPES = re.findall(r"(?m)^```python\n([\s\S]*?)^```$", PAGE.read_text(encoding="utf-8"))


def recipe(rank, code):
    """After the block that all begin with; what DeepSpeed runs is in test_zero.py."""
    if rank.device == "cpu" and not code.startswith("# needs 2 processes, and DeepSpeed\n"):
        exec(compile(FIRST + code, PAGE.name, "exec"), {})


CASES |= {f"recipe {at}": functools.partial(recipe, code=code) for at, code in enumerate(RECIPES, 1)}


# -- What is refused ---------------------------------------------------------------------------------------------------
@case("refused")
def refused(rank):
    """Before the first step, with the remedy, and the same on all ranks."""
    work = Work(rank)
    late = shard(work.pair.plain(), "layers", work.mesh)
    with pytest.raises(WrongOrder, match="patch before fully_shard"):
        liger.autopatch(late)
    late = FullyShardedDataParallel(work.pair.plain(), device_id=torch.device(rank.device))
    with pytest.raises(WrongOrder, match="patch before wrapping in FullyShardedDataParallel"):
        liger.autopatch(late)
    late = work.pair.plain()
    fully_shard(late.lm_head, mesh=work.mesh)
    with pytest.raises(WrongOrder, match=r"lm_head is already FSDPLinear .*patch before fully_shard"):
        liger.autopatch(late)
    liger.autopatch(work.model)
    shard(work.model, "layers", work.mesh)
    with pytest.raises(UnpatchConflict, match="found .*FSDPLlamaForCausalLM"):
        liger.unpatch(work.model)
    work.check(work.model)


@case("replicate")
def replicated(rank):
    from torch.distributed._composable.replicate import replicate

    work = Work(rank)
    liger.autopatch(work.model, strict=True)
    work.check(replicate(work.model))


# -- Tests -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def found(tmp_path_factory) -> Found:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes(name, found):
    found.of(name)


@pytest.mark.gpu(2)
def test_two_gpus(tmp_path):
    found = run_ranks(__file__, tmp_path, device="cuda")
    for name in CASES:
        found.of(name)
