"""The declarations plugins return: frozen data, no torch. ``"package.module:attribute"`` strings load on first use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from liger.errors import PluginError

EMPTY: Mapping[str, Any] = MappingProxyType({})


def load(target: str) -> Any:
    """Import what ``"package.module:attribute"`` names.

    Raises:
        PluginError: the string is malformed or the attribute does not exist. An ImportError passes through.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise PluginError(f"expected 'package.module:attribute', got {target!r}")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise PluginError(f"{target!r}: {found!r} has no attribute {part!r}")
        found = getattr(found, part)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A keyword argument of an op.

    Attributes:
        default: its default.
        values: others, which tests use; each must change an output or a gradient.
        silent: its values change no number in small cases, so a test by hand has to show what they do.
        waits: its values make the host wait for the device, and say so.
        overwrites: its values let the op write into the caller's tensors. No case has them, so ``values`` stays empty
            and a test by hand has to show what they do.
    """

    default: Any
    values: tuple[Any, ...] = ()
    silent: bool = False
    waits: bool = False
    overwrites: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Shapes that benchmarks time, in bf16: one dimension varies, the others are fixed.

    Attributes:
        variable: the dimension that varies, the x axis of the plots.
        values: its values, smallest first.
        fixed: the other dimensions.
        variant: a kind of input of ``Op.variants``, where the plain one is not what models have.
    """

    variable: str
    values: tuple[int, ...]
    fixed: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    variant: str = ""

    def points(self) -> list[dict[str, int]]:
        """The sizes to time, in the order of ``values``."""
        return [{**self.fixed, self.variable: value} for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A piece of maths with a name.

    Attributes:
        name: noun phrase in snake case, never a model's name: ``"rms_norm"``.
        public: the function users and adapters call; it checks its arguments and dispatches.
        reference: the definition in plain torch. It is also the op's kernel of rank 0.
        options: every keyword argument except ``kernel``. Others are refused wherever options are given.
        inputs: ``f(device, dtype, *, generator, **sizes) -> (tensors, options)`` used by ``liger.testing`` to make
            cases. Gradients are checked of the tensors that require one, or of all floating ones if none does.
        sizes: named dimensions with the values cases are made from. The first counts rows: it is also tried at 1 and 0.
        production: sizes as real models have them, for the compile gate; the first also with every option and variant.
        sweeps: what benchmarks time; ``production`` if empty.
        model: where benchmarks find a dimension in a named model's config, ``{"H": "hidden_size"}``; "tokens" is the
            number of tokens of a step. A dimension that is not named keeps its value in the sweep.
        peers: other libraries' implementations by name, made with ``liger.bench.peer``, which benchmarks time where the
            library is installed.
        mixed: arguments that may be float32 beside others of 16 bits; each is tested so.
        variants: further kinds of input, each tested once per dtype by ``inputs(..., variant=name)``.
        reduction: terms summed into one output element, as a name in ``sizes``; loosens the contract by its root.
        module: the ``torch.nn.Module`` offered as ``liger.nn.<class name>``, if any.
        traced_on: device types on which ``torch.compile`` is given the reference unless a kernel was chosen by hand:
            where inductor, which fuses it with what is around it, makes models that are no slower than with a kernel.
    """

    name: str
    public: str
    reference: str
    options: Mapping[str, Option] = field(default_factory=lambda: EMPTY)
    inputs: str | None = None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: EMPTY)
    production: tuple[Mapping[str, int], ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    model: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    peers: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    mixed: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    reduction: str | None = None
    module: str | None = None
    traced_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a kernel is asked to do, without the tensors."""

    op: str
    device: str
    capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    options: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    by_hand: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a kernel can do: an allow-list. An empty field allows everything.

    Attributes:
        devices: device types, e.g. ``("cuda", "xpu")``.
        dtypes: names of the floating dtypes its tensors may have, e.g. ``("float32", "bfloat16")``.
        min_capability: lowest CUDA compute capability.
        max_size: largest value of each named dimension.
        options: for an option, the values it serves; options not named are all served.
        interpreter: a Triton kernel. Chosen by hand it also takes meta tensors (they launch nothing) and,
            under ``TRITON_INTERPRET=1``, CPU tensors.
    """

    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    min_capability: tuple[int, int] | None = None
    max_size: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: EMPTY)
    interpreter: bool = False

    def reasons(self, call: Call) -> list[str]:
        """Return why ``call`` cannot be served, each with both values; an empty list means it can."""
        return [*self.static_reasons(call), *self.limit_reasons(call.sizes, call.options)]

    def static_reasons(self, call: Call) -> list[str]:
        """The part of ``reasons`` that depends on device and dtypes alone, and so is decided once."""
        out = []
        if self.devices and call.device not in self.devices and not self._by_hand(call):
            out.append(f"device={call.device} (supported: {', '.join(self.devices)})")
        wrong = sorted({d for d in call.dtypes if self.dtypes and d not in self.dtypes})
        if wrong:
            out.append(f"dtype={', '.join(wrong)} (supported: {', '.join(self.dtypes)})")
        if self.min_capability and call.capability and call.capability < self.min_capability:
            out.append(f"compute capability {call.capability} is below {self.min_capability}")
        return out

    def limit_reasons(self, sizes: Mapping[str, int], options: Mapping[str, Any]) -> list[str]:
        """The part of ``reasons`` that depends on sizes and options, checked on each call."""
        out = []
        for name, limit in self.max_size.items():
            if name in sizes and sizes[name] > limit:
                out.append(f"{name}={sizes[name]} exceeds {limit}")
        for name, values in self.options.items():
            if name in options and options[name] not in values:
                out.append(f"{name}={options[name]!r} (supported: {', '.join(map(repr, values))})")
        return out

    def _by_hand(self, call: Call) -> bool:
        if not (self.interpreter and call.by_hand):
            return False
        return call.device == "meta" or (call.device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a kernel works, for those who choose or review it; ``liger explain OP --profile`` prints it.

    The checks hold it to the truth where a machine can: what is saved, which gradients there are, what is launched.

    Attributes:
        tier: ``"elementwise"``, ``"reduction"`` (along a row) or ``"fused"`` (several ops, or with products).
        saved: tensors kept for the backward; an argument by its name, others as ``"rstd (R,) float32"``.
        recomputed: what the backward computes again instead of reading it.
        gradients: the formula of each gradient, by the argument's name.
        grid: what one program does and how many there are, by the name of the ``@triton.jit`` function.
        precision: the steps whose dtype or order matters.
    """

    tier: str
    saved: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    gradients: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    grid: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    precision: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One implementation of an op.

    Attributes:
        op, name: ``rms_norm/triton``.
        fn: takes the reference's arguments, all options by keyword, and returns what it returns.
        rank: among the kernels able to serve a call the highest rank wins; equal ranks are an error.
            0 is the reference, 10 a tuned kernel. A faster one from elsewhere takes a higher number.
        needs: what it can serve.
        bytes: ``f(tensors, options) -> {"forward": n, "backward": m}``, the bytes it must move in each mode that
            benchmarks time. "full" is a forward and a backward; alone, where gradients are made in the forward.
        flops: the same for floating-point operations, where products are the limit and not the memory.
        profile: how it works.
        measured: architectures that its launch settings were timed on, ``("sm90",)``; on others rules decide unseen.
    """

    op: str
    name: str
    fn: str
    rank: int
    needs: Needs = field(default_factory=Needs)
    bytes: str | None = None
    flops: str | None = None
    profile: Profile | None = None
    measured: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """``op/name``, e.g. ``rms_norm/triton``."""
        return f"{self.op}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a kind of module meets an op.

    Attributes:
        id: unique name, e.g. ``"rms_norm"``; it is part of the pickle of a patched module.
        op: name of the op.
        adapter: ``f(original_class, op, **options) -> class attributes``; mostly ``@liger.swap.forward`` over
            ``f(op, module, *upstream_args, **options)``.
        options: constants the adapter reads (attribute names, cast order, activation). Hashable values.
        sets: options of the op that the adapter passes itself; asking for others through ``autopatch`` is an error.
        match: ``f(module, options) -> str | None``: why this module does not fit, or None if it does. A reason that
            begins with ``liger.report.IDLE`` is no mistake where other modules of the class fit.
        parts: ``f(module, options) -> list[liger.swap.Part]`` for a fit that spans several modules; it may raise
            PatchRefused with the reason.
        probe: ``f(module, generator) -> Probe``: how to run the module by itself, for ``verify=True``.
    """

    id: str
    op: str
    adapter: str
    options: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    sets: tuple[str, ...] = ()
    match: str | None = None
    parts: str | None = None
    probe: str | None = None


class Probe(NamedTuple):
    """A way to run a module by itself.

    Attributes:
        run: ``f(module, *inputs) -> tensor``; called with the module, its replacement and a float64 copy.
        inputs: tensors; gradients are compared of those that require one, and of the parameters in use.
        uses: names of the direct children that are used; None for the whole module.
    """

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    uses: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPatch:
    """What a model plugin declares for one ``config.model_type``.

    Attributes:
        model_type: as in ``config.model_type``.
        module: the upstream module that defines the classes.
        fits: upstream class name -> fit. A class that another module defines is named in full, as
            ``"torch.nn.modules.normalization.LayerNorm"``. None is the fit that a plugin recognises, where configs
            differ in it.
        head: the fit of the causal-LM class, or None.
        mini: ``f() -> config`` of a model small enough to train in seconds on a CPU; of a text model or tower without a
            head, that of a model around it.
        images: for models that see, ``f(ids) -> inputs``: of token ids (B, T), T >= 12, what the mini's forward takes
            to see an image in each row, the ids with the image's among it. Tests use it.
    """

    model_type: str
    module: str
    fits: Mapping[str, Fit | None]
    head: Fit | None
    mini: str
    images: str | None = None
