"""The shared fits, as data: a model plugin names one per upstream class. Imports no torch.

The options describe what upstream does; each fit's ``match`` checks it on the module at hand before anything changes.
"""

from __future__ import annotations

from liger import Fit


def rms_norm(*, cast: str, eps: str = "variance_epsilon", offset: float | None = None) -> Fit:
    """RMSNorm over the last dimension with a weight called ``weight``.

    Args:
        cast: order of casts, as in ``liger.ops.rms_norm``.
        eps: name of the module's epsilon attribute.
        offset: added to the weight; by default 1 for "gemma" and 0 otherwise.
    """
    offset = (1.0 if cast == "gemma" else 0.0) if offset is None else offset
    return Fit(
        id="rms_norm",
        op="rms_norm",
        adapter="liger_hf.layers:rms_norm",
        options={"cast": cast, "eps": eps, "offset": offset},
        sets=("eps", "cast", "offset"),
        match="liger_hf.layers:match_rms_norm",
        probe="liger_hf.layers:probe_hidden",
    )


GATED = {
    "silu": ("silu_mul", None),
    "gelu_pytorch_tanh": ("gelu_mul", "tanh"),
    "gelu": ("gelu_mul", "none"),
}
"""Activation as upstream's configs name it -> op and its ``approximate``."""


def gated_mlp(*, act: str) -> Fit:
    """``down_proj(act(gate_proj(x)) * up_proj(x))``; calls the three submodules, so quantised ones work too.

    Args:
        act: ``"silu"``, ``"gelu_pytorch_tanh"`` or ``"gelu"``; compared with the module's ``act_fn`` bit by bit.
    """
    if act not in GATED:
        raise ValueError(f"gated_mlp: act is {act!r}, expected one of {', '.join(GATED)}")
    op, approximate = GATED[act]
    return Fit(
        id=f"gated_mlp[{act}]",
        op=op,
        adapter="liger_hf.layers:gated_mlp",
        options={} if approximate is None else {"approximate": approximate},
        sets=() if approximate is None else ("approximate",),
        match="liger_hf.layers:match_gated_mlp",
        probe="liger_hf.layers:probe_hidden",
    )


LAYOUTS = ("half", "interleaved", "deinterleave")
TABLES = ("column", "pair", "first half")
ROPE_CASTS = ("none", "output", "fp32")


def rope(
    layout: str = "half", *, tables: str = "column", cast: str = "none", function: str = "apply_rotary_pos_emb"
) -> Fit:
    """The rotary embedding inside an attention module; upstream's function is compared with the op bit by bit.

    Args:
        layout: where the two columns of a pair are, as in ``liger.ops.rope``.
        tables: columns of cos and sin: one for each of the head ("column"), one for each pair ("pair"), or as many as
            the head of which upstream reads only the "first half", one for each pair (glm, ernie4_5, deepseek_v3).
        cast: what is rounded to which dtype, as in ``liger.ops.rope``.
        function: module-level function that upstream's attention forward calls.
    """
    for name, value, known in (("layout", layout, LAYOUTS), ("tables", tables, TABLES), ("cast", cast, ROPE_CASTS)):
        if value not in known:
            raise ValueError(f"rope: {name} is {value!r}, expected one of {', '.join(known)}")
    further = [value for value, plain in ((tables, "column"), (cast, "none")) if value != plain]
    return Fit(
        id=f"rope[{', '.join([layout, *further])}]",
        op="rope",
        adapter="liger_hf.rope:rope",
        options={"function": function, "layout": layout, "tables": tables, "cast": cast},
        sets=("unsqueeze_dim", "layout", "tables", "cast"),
        match="liger_hf.rope:match",
        probe="liger_hf.rope:probe_attention_pair" if tables == "pair" else "liger_hf.rope:probe_attention",
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
        sets=("ignore_index", "reduction", "num_items", "logit_scale", "softcap"),
        parts="liger_hf.head:parts",
        probe="liger_hf.head:probe_head",
    )
