"""The shared fits, as data: a model plugin names one per upstream class. Imports no torch.

The options describe what upstream does; each fit's ``match`` checks it on the module at hand before anything changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liger import Fit

PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
"""What the projections of an MLP are for -> their usual names."""


def rms_norm(*, cast: str, eps: str = "variance_epsilon", offset: float | None = None) -> Fit:
    """RMSNorm over the last dimension with a weight called ``weight``, or without one where the module has none.

    Args:
        cast: order of casts, as in ``liger.ops.rms_norm``.
        eps: name of the module's epsilon attribute.
        offset: added to the weight; by default 1 for "gemma" and 0 otherwise.
    """
    offset = (1.0 if cast == "gemma" else 0.0) if offset is None else offset
    return _norm("rms_norm", {"cast": cast, "eps": eps, "offset": offset}, sets=("eps", "cast", "offset"))


def weightless_norm(*, eps: str = "eps", rounded: bool = False) -> Fit:
    """RMSNorm whose forward reads no weight, though the module may hold one (falcon_mamba).

    Args:
        eps: name of the module's epsilon attribute.
        rounded: upstream rounds 1 / rms to the input's dtype (deepseek_v4), which the op does not: upstream's own
            forward runs on 16-bit inputs.
    """
    options = {"eps": eps, "rounded": rounded}
    return _norm("rms_norm", options, sets=("eps", "cast", "offset"), adapter="weightless_norm")


def t5_norm(*, eps: str = "variance_epsilon") -> Fit:
    """RMSNorm of T5 and its kin, whose weight decides what is rounded: an fp32 weight leaves the result in fp32.

    Args:
        eps: name of the module's epsilon attribute.
    """
    return _norm("rms_norm", {"eps": eps}, sets=("eps", "cast", "offset"), adapter="t5_norm")


def layer_norm(*, eps: str | float = "eps", fp32: bool = False) -> Fit:
    """LayerNorm over the last dimension, ``weight`` and ``bias`` where the module has them; ``torch.nn.LayerNorm``.

    Args:
        eps: name of the module's epsilon attribute, or the number itself where upstream wrote one (olmo).
        fp32: upstream hands float32 to ``F.layer_norm`` and rounds the result (olmo), which on a CPU has other bits.
    """
    return _norm("layer_norm", {"eps": eps, "fp32": fp32}, sets=("eps",))


def layer_norm_1p(*, eps: str = "eps") -> Fit:
    """LayerNorm with a weight that is added to 1, and a bias (nemotron); ``eps`` names the epsilon attribute."""
    return _norm("layer_norm", {"eps": eps}, sets=("eps",), adapter="layer_norm_1p")


def cohere_norm(*, eps: str = "variance_epsilon") -> Fit:
    """Cohere's norm, also with a weight for each head; ``eps`` names the module's epsilon attribute."""
    return _norm("cohere_norm", {"eps": eps}, sets=("eps",))


def l2norm(*, eps: str = "eps", cast: str = "fp32") -> Fit:
    """Rows divided by their Euclidean length, without a weight (dory).

    Args:
        eps: name of the module's epsilon attribute.
        cast: as in ``liger.ops.l2norm``.
    """
    return _norm("l2norm", {"eps": eps, "cast": cast}, sets=("eps", "cast"))


def group_norm() -> Fit:
    """``torch.nn.GroupNorm`` of (N, C, ...), with or without weight and bias, and subclasses that keep its forward."""
    return _norm("group_norm", {}, sets=("eps", "num_groups"), probe="group_norm")


def gated_rms_norm(
    *,
    norm_before_gate: bool,
    cast: str = "llama",
    activation: str = "silu",
    eps: str = "variance_epsilon",
    groups: str | None = None,
    group_size: str | None = None,
) -> Fit:
    """RMSNorm and a gate: ``forward(x, gate)``.

    Args:
        norm_before_gate: False where the product with the gate is normalised (mamba2 and after it).
        cast: order of casts, as in ``liger.ops.gated_rms_norm``.
        activation: of the gate, "silu" or "sigmoid".
        eps: name of the module's epsilon attribute.
        groups: name of the attribute that holds the number of groups, if there are any (falcon_h1).
        group_size: name of the attribute that holds the columns of one (mamba2).
    """
    if groups is not None and group_size is not None:
        raise ValueError(f"gated_rms_norm: groups is {groups!r} and group_size {group_size!r}, expected one of them")
    options = {"norm_before_gate": norm_before_gate, "cast": cast, "activation": activation}
    names = {"eps": eps, "groups": groups, "group_size": group_size}
    sets = ("eps", "activation", "norm_before_gate", "groups", "cast")
    return _norm("gated_rms_norm", {**options, **names}, sets=sets, probe="gated_norm")


def _norm(
    op: str, options: dict[str, Any], sets: tuple[str, ...], probe: str = "norm", adapter: str | None = None
) -> Fit:
    adapter = adapter or op
    return Fit(
        id=adapter,
        op=op,
        adapter=f"liger_hf.norms:{adapter}",
        options=options,
        sets=sets,
        match=f"liger_hf.norms:match_{adapter}",
        probe=f"liger_hf.norms:probe_{probe}",
    )


GATED = {
    "silu": ("silu_mul", None),
    "gelu_pytorch_tanh": ("gelu_mul", "tanh"),
    "gelu": ("gelu_mul", "none"),
}
"""Activation as upstream's configs name it -> op and its ``approximate``."""
PACKED = ("gate_up", "up_gate", "interleaved")


def gated_mlp(
    *,
    act: str,
    multipliers: bool = False,
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
    act_fn: str | None = "act_fn",
    limit: str | None = None,
    unless: str | None = None,
    dropout: str | None = None,
    residual: str | None = None,
) -> Fit:
    """``down_proj(act(gate_proj(x)) * up_proj(x))``; calls the three submodules, so quantised ones work too.

    Args:
        act: ``"silu"``, ``"gelu_pytorch_tanh"`` or ``"gelu"``; compared with the module's activation bit by bit.
        multipliers: the module has a ``gate_multiplier`` and a ``down_multiplier`` (falcon_h1), and the usual names.
        gate, up, down, act_fn: names of the projections and of the activation; None where its forward calls a function
            (lfm2).
        limit: name of an attribute; upstream cuts gate and up off there, and up at its negative too (deepseek_v4).
        unless: name of an attribute; where it is not 0 the module does more, and is left alone (gemma3n's sparsity).
        dropout: name of a module between product and projection (t5gemma).
        residual: name of the attribute that holds the probability of a dropout behind the projection (seed_oss).
    """
    op, options = _gated("gated_mlp", act)
    usual = {**PROJECTIONS, "act_fn": "act_fn"}
    given = {"gate": gate, "up": up, "down": down, "act_fn": act_fn, "limit": limit, "unless": unless}
    given |= {"dropout": dropout, "residual": residual}
    names = {name: value for name, value in given.items() if value != usual.get(name)}
    if multipliers and names:
        raise ValueError(f"gated_mlp: multipliers=True takes no other names, but they are {names}")
    adapter = "scaled_mlp" if multipliers else "gated_mlp"
    sets = (*options, "gate_multiplier") if multipliers else tuple(options)
    return _mlp(f"{adapter}[{act}]", op, adapter, {**options, **names}, sets)


def packed_mlp(
    *,
    act: str,
    layout: str = "gate_up",
    merged: str = "gate_up_proj",
    down: str = "down_proj",
    act_fn: str = "activation_fn",
) -> Fit:
    """The same with gate and up in one projection, which is not split.

    Args:
        act: as in ``gated_mlp``.
        layout: where gate and up are, as in ``liger.ops.silu_mul_packed``.
        merged, down, act_fn: names of the projections and of the activation.
    """
    op, options = _gated("packed_mlp", act, layout)
    names = {"merged": merged, "down": down, "act_fn": act_fn}
    return _mlp(f"packed_mlp[{act}]", op, "packed_mlp", {**options, **names}, tuple(options))


def clamped_mlp(
    *, layout: str = "gate_up", merged: str = "gate_up_proj", alpha: str = "swiglu_alpha", limit: str = "swiglu_limit"
) -> Fit:
    """The same with the clamped activation of ``clamped_experts``, in its forward (minimax_m3_vl).

    Args:
        layout, merged: as in ``packed_mlp``.
        alpha, limit: as in ``clamped_experts``.
    """
    return _clamped("clamped_mlp", layout, {"up_offset": 1.0, "merged": merged, "alpha": alpha, "limit": limit})


def mlp(*, act: str = "relu2") -> Fit:
    """``down_proj(act(up_proj(x)))`` without a gate.

    Args:
        act: ``"relu2"``, the square of ReLU (nemotron, arcee).
    """
    if act != "relu2":
        raise ValueError(f"mlp: act is {act!r}, expected relu2")
    return _mlp(f"mlp[{act}]", "relu_squared", "mlp", {}, ())


def experts(*, act: str, layout: str = "gate_up", limit: str | None = None) -> Fit:
    """Activation of a mixture's experts, where their forward calls ``_apply_gate``.

    Args:
        act, layout: as in ``packed_mlp``.
        limit: as in ``gated_mlp``, with gate and up as halves.
    """
    if limit is not None:
        _known("experts", "layout", layout, PACKED[:1])
        op, options = _gated("experts", act)
        return _mlp(f"cut_experts[{act}]", op, "cut_experts", {**options, "limit": limit}, tuple(options))
    op, options = _gated("experts", act, layout)
    return _mlp(f"experts[{act}]", op, "experts", {**options, "reads": ()}, tuple(options))


def clamped_experts(
    *, layout: str = "interleaved", alpha: str = "alpha", limit: str = "limit", up_offset: float = 1.0
) -> Fit:
    """The same with the clamped activation of gpt_oss, and of minimax_m3_vl: "gate_up", "swiglu_alpha", "swiglu_limit".

    Args:
        layout: as in ``packed_mlp``.
        alpha, limit: names of the attributes that hold steepness and limit.
        up_offset: added to the clamped up.
    """
    reads = (("alpha", alpha), ("limit", limit))
    return _clamped("clamped_experts", layout, {"up_offset": up_offset, "reads": reads})


def _clamped(fit: str, layout: str, options: dict[str, Any]) -> Fit:
    _known(fit, "layout", layout, PACKED)
    sets = ("layout", "up_offset", "alpha", "limit")
    return _mlp(fit, "silu_mul_clamped_packed", fit, {"layout": layout, **options}, sets)


def _gated(fit: str, act: str, layout: str | None = None) -> tuple[str, dict[str, str]]:
    """The op of an activation and a layout, and its options."""
    _known(fit, "act", act, tuple(GATED))
    op, approximate = GATED[act]
    options = {} if approximate is None else {"approximate": approximate}
    if layout is None:
        return op, options
    _known(fit, "layout", layout, PACKED)
    return f"{op}_packed", {**options, "layout": layout}


def _known(fit: str, name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{fit}: {name} is {value!r}, expected one of {', '.join(known)}")


def _mlp(id_: str, op: str, adapter: str, options: Mapping[str, Any], sets: tuple[str, ...]) -> Fit:
    return Fit(
        id=id_,
        op=op,
        adapter=f"liger_hf.mlps:{adapter}",
        options=options,
        sets=sets,
        match=f"liger_hf.mlps:match_{adapter}",
        probe=f"liger_hf.mlps:probe_{'experts' if 'experts' in adapter else 'mlp'}",
    )


LAYOUTS = ("half", "interleaved", "deinterleave")
TABLES = ("column", "pair", "first half")
ROPE_CASTS = ("none", "output", "fp32")


def rope(
    layout: str = "half",
    *,
    tables: str = "column",
    cast: str = "none",
    function: str = "apply_rotary_pos_emb",
    last: bool = False,
) -> Fit:
    """The rotary embedding inside an attention module; upstream's function is compared with the op bit by bit.

    Args:
        layout: where the two columns of a pair are, as in ``liger.ops.rope``.
        tables: columns of cos and sin: one for each of the head ("column"), one for each pair ("pair"), or as many as
            the head of which upstream reads only the "first half", one for each pair (glm, ernie4_5, deepseek_v3).
        cast: what is rounded to which dtype, as in ``liger.ops.rope``.
        function: module-level function that upstream's attention forward calls.
        last: it rotates the last columns of each head and not the first, one tensor at a time (deepseek_v4).
    """
    for name, value, known in (("layout", layout, LAYOUTS), ("tables", tables, TABLES), ("cast", cast, ROPE_CASTS)):
        _known("rope", name, value, known)
    further = [value for value, plain in ((tables, "column"), (cast, "none")) if value != plain] + ["last"] * last
    return Fit(
        id=f"rope[{', '.join([layout, *further])}]",
        op="rope",
        adapter="liger_hf.rope:rope",
        options={"function": function, "layout": layout, "tables": tables, "cast": cast, "last": last},
        sets=("unsqueeze_dim", "layout", "tables", "cast"),
        match="liger_hf.rope:match",
        probe="liger_hf.attention:probe_attention_pair" if tables == "pair" else "liger_hf.attention:probe_attention",
    )


def rope_complex(*, function: str = "apply_rotary_emb", unsqueeze_dim: int = 2) -> Fit:
    """The rotary embedding by complex numbers inside an attention module, compared in the same way.

    Args:
        function: as in ``rope``; llama4's vision tower calls "vision_apply_rotary_emb".
        unsqueeze_dim: where upstream's q and k have their heads: 2 for llama4, 1 for deepseek_v2.
    """
    return Fit(
        id="rope_complex",
        op="rope_complex",
        adapter="liger_hf.rope:rope_complex",
        options={"function": function, "unsqueeze_dim": unsqueeze_dim},
        sets=("unsqueeze_dim",),
        match="liger_hf.rope:match_complex",
        probe="liger_hf.attention:probe_complex",
    )


def causal_lm_head(*, softcap: str | None = None) -> Fit:
    """Head and loss of a causal LM as one op, without the full logits.

    Args:
        softcap: attribute path on the model of the final logit soft cap, read at each call. What lies between head and
            loss is found by running upstream's forward, and must agree.
    """
    return Fit(
        id="causal_lm_head",
        op="linear_cross_entropy",
        adapter="liger_hf.head:causal_lm",
        options={"softcap_path": softcap},
        sets=("ignore_index", "reduction", "num_items", "logit_scale", "softcap", "returns"),
        parts="liger_hf.head:parts",
        probe="liger_hf.head:probe_head",
    )
